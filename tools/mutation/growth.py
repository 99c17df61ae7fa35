"""Finds lines that distinguish mutants from the right rules, for the real engine to judge.

For each rule and each resolved value: lines around it; of these, the ones that would catch a mutant if the engine
agrees with the right rule; of these, the few that catch all. Then `collection` asks the engine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from epd_operator.rules.expression import ROLE, every
from epd_operator.rules.rule import Rule
from tools.corpus.rule_examples import changed, rule_examples
from tools.differential.comparison import VERSION, function
from tools.differential.engine import REPORT
from tools.differential.generator import PLATFORMS, Case, cases
from tools.mutation.experiment import RULES, Experiment, dependents
from tools.mutation.record import VERDICTS, EngineVerdict, rows
from tools.mutation.recorded_case import SGLANG, RecordedCase, spec
from tools.mutation.search_space import ROLES, Goal, LocalSearch, Point, bases, deciding, point_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.rules.expression import Expr, Named
    from tools.mutation.experiment import Effect
    from tools.mutation.mutant import Mutant, RuleMutant
    from tools.mutation.recorded_case import FindingSummary

SEED: Final = 41
DRAWN: Final = 3000
SPECS: Final = 150
AROUND: Final = 1200
WITNESSES: Final = 4
NEIGHBOURS: Final = 150
TRIES: Final = 3
KEPT: Final = 40
PERHAPS: Final = 3
APART: Final = 250
BESIDE: Final = 40
REPORTED: Final = frozenset(
    (*REPORT, *(f"cuda_graph_{phase}{what}" for phase in ("prefill", "decode") for what in ("", "_max_bs")))
)


def alternatives() -> list[Mapping[str, object]]:
    """The other checkpoints that the engine was asked about."""
    return [row["config"] for row in rows(VERDICTS) if row.get("config")]


def case_of(point: Point, at: int) -> RecordedCase:
    """A line as a recorded case that expects nothing."""
    process = point.process()
    return RecordedCase(str(at), VERSION, {process.role: process}, (process.role,), True, (), lambda _: True)


@dataclass
class Neighbours:
    """The lines around one subject.

    Attributes:
        points: The lines.
        experiment: The same as cases, named by their place.
    """

    points: list[Point]
    experiment: Experiment

    def point(self, effect: Effect) -> Point:
        """Where an effect was seen."""
        return self.points[int(effect.case.name)]


class Explorer:
    """Finds lines around rules and resolved values.

    Args:
        drawn: Number of lines to draw.

    Attributes:
        known: Lines of the given verdicts and of the generator, with the ids of the rules that they break.
    """

    def __init__(self, drawn: int = DRAWN) -> None:
        given = [Case(row["id"], row["platform"], row["argv"], row["env"], row.get("config")) for row in rows(VERDICTS)]
        points = [point for case in (*given, *cases(SEED, drawn)) if (point := point_of(case)) is not None]
        experiment = Experiment([])
        self.known = [(point, experiment.broken(case_of(point, 0))) for point in points]
        self.starts = bases(alternatives())
        self._witnesses: dict[str, list[Point]] = {}
        self._around: dict[str, list[Point]] = {}

    def around(self, subject: Rule | Named) -> Neighbours:
        """Lines around a rule or a resolved value."""
        points = self._of_rule(subject) if isinstance(subject, Rule) else self._of_value(subject)
        lines = [case_of(point, at) for at, point in enumerate(points)]
        rules = [subject] if isinstance(subject, Rule) else dependents()[subject.name][0]
        return Neighbours(points, Experiment([*lines, *self._specs({rule.id for rule in rules})]))

    def _specs(self, rules: set[str]) -> list[RecordedCase]:
        """Specs that join any two examples of the same rule, a sample of them on every platform and version."""
        draw = Random(f"{SEED} {sorted(rules)}")
        by_rule: dict[str, list[Mapping[str, object]]] = defaultdict(list)
        for example in rule_examples():
            if example.document is not None and example.rule in rules:
                by_rule[example.rule].append(example.changes)
        joined = [{**one, **other} for entry in by_rule.values() for one in entry for other in entry]
        entry = []
        for changes in draw.sample(joined, min(len(joined), SPECS)):
            where = {"engine.platform": draw.choice(PLATFORMS), "engine.version": draw.choice(SGLANG.versions)}
            for more in ({}, where):
                made = spec("spec", changed({**more, **changes}), lambda _: True)
                entry += [made] if made is not None else []
        return entry

    def witnesses(self, rule: Rule) -> list[Point]:
        """Lines that break a rule, with little that the rule does not need."""
        if rule.id not in self._witnesses:
            draw = Random(f"{SEED} {rule.id}")
            search, goal = LocalSearch(rule.when, draw), broken_goal(rule)
            breaking = [point for point, broken in self.known if rule.id in broken]
            result = [
                shrunk(point, replace(self.starts[0], platform=point.platform), goal)
                for point in draw.sample(breaking, min(WITNESSES, len(breaking)))
            ]
            for at in range(WITNESSES * 8):
                if at >= WITNESSES and result:
                    break
                start = self.starts[at] if at < 3 else draw.choice(self.starts)
                there = search.reach(start, goal)
                if there is not None:
                    result.append(shrunk(there, start, goal))
            self._witnesses[rule.id] = list({point.key: point for point in result}.values())
        return self._witnesses[rule.id]

    def _of_rule(self, rule: Rule) -> list[Point]:
        if not rule.roles:
            return []
        if rule.id not in self._around:
            draw = Random(f"{SEED} {rule.id} around")
            witnesses = self.witnesses(rule)
            result = {point.key: point for point in self._near(LocalSearch(rule.when, draw), witnesses, NEIGHBOURS)}
            for term, alone in deciding(rule.when):
                search = LocalSearch(term, draw, ROLES)
                for point in self._turning(rule, term, alone, witnesses, draw):
                    result.update((near.key, near) for near in (point, *search.neighbours(point, BESIDE)))
            self._around[rule.id] = list(result.values())
        return self._around[rule.id]

    def _turning(
        self,
        rule: Rule,
        term: Expr,
        alone: Sequence[tuple[Expr, bool]],
        witnesses: Sequence[Point],
        draw: Random,
    ) -> list[Point]:
        """Lines on which one term alone decides whether a rule is broken."""
        search = LocalSearch(rule.when, draw, ROLES)
        goal = Goal([(ROLE.isin(rule.roles), True), *alone, (term, True)])
        result = []
        for start in (draw.choice(self.starts), *draw.sample(witnesses, min(1, len(witnesses)))):
            there = search.reach(start, goal, APART)
            if there is not None:
                result.append(shrunk(there, start, goal))
        return result

    def _of_value(self, value: Named) -> list[Point]:
        draw = Random(f"{SEED} {value.name}")
        search = LocalSearch(value.body, draw)
        centres = [_perturbed(search, draw.choice(self.starts)) for _ in range(WITNESSES)]
        centres += [point for rule in dependents()[value.name][0] if rule.roles for point in self.witnesses(rule)]
        centres += [point for point, _ in draw.sample(self.known, min(len(self.known), NEIGHBOURS))]
        return self._near(search, centres, 1 + AROUND // len(centres))

    def _near(self, search: LocalSearch, centres: Sequence[Point], most: int) -> list[Point]:
        result = {point.key: point for point in self.starts}
        for centre in centres:
            result.update((point.key, point) for point in (centre, *search.neighbours(centre, most)))
        return list(result.values())


def _perturbed(search: LocalSearch, start: Point) -> Point:
    """A line a few random steps away."""
    for _ in range(search.draw.choice((0, 1, 2, 3))):
        start = search.step(start)
    return start


def broken_goal(rule: Rule) -> Goal:
    """The goal that a line breaks a rule."""
    return Goal([(whole(rule), True)])


def difference(right: Rule, wrong: Rule) -> Goal:
    """The goal that a line breaks one of two rules and not the other."""
    ours, theirs = whole(right), whole(wrong)
    return Goal([(ours, True), (theirs, False)], [(ours, False), (theirs, True)])


def whole(rule: Rule) -> Expr:
    """The condition of a rule with the roles that it is for."""
    return every(ROLE.isin(rule.roles), rule.when)


def shrunk(point: Point, start: Point, goal: Goal) -> Point:
    """The same, without what it does not need."""
    for source in ("args", "env"):
        for name in list(getattr(point, source)):
            if getattr(start, source).get(name) == getattr(point, source)[name]:
                continue
            smaller = {key: value for key, value in getattr(point, source).items() if key != name}
            if name in getattr(start, source):
                smaller[name] = getattr(start, source)[name]
            less = Point(**{**vars(point), source: smaller})
            if goal.cost(less) == 0:
                point = less
    return point


def predicted(findings: Sequence[FindingSummary]) -> EngineVerdict:
    """The engine's verdict if the right rules are right; the function only where all errors name the same."""
    errors = [finding for finding in findings if finding.severity == "error"]
    deciding = {function(finding.decided_by) for finding in errors}
    return EngineVerdict(not errors, deciding.pop() if len(deciding) == 1 else "")


def catches(neighbours: Neighbours, mutant: Mutant) -> list[Point]:
    """The lines on which a mutant would be noticed."""
    result = []
    for effect in neighbours.experiment.effects(mutant):
        if not effect.case.bare:
            continue
        before = [effect.case.finding_of(RULES[rule]) for rule in neighbours.experiment.broken(effect.case)]
        verdict = predicted(before)
        if not verdict(effect.findings) or (verdict.accepted and REPORTED & effect.settings.keys()):
            result.append(neighbours.point(effect))
            if len(result) == KEPT:
                break
    return result


def near_misses(neighbours: Neighbours, mutant: Mutant) -> list[Point]:
    """Lines on which a mutant would be caught if the engine, of several reasons to refuse, named the right one first.

    They are those on which the mutant loses the only finding that names a function; fewest other reasons first.
    """
    experiment = neighbours.experiment
    points: list[tuple[int, int, str, Point]] = []
    for effect in experiment.effects(mutant):
        if not effect.case.bare:
            continue
        before = {function(RULES[rule].decided_by) for rule in experiment.broken(effect.case) if refuses(RULES[rule])}
        after = {function(RULES[rule].decided_by) for rule in effect.broken if refuses(RULES[rule])}
        if before - after:
            point = neighbours.point(effect)
            points.append((len(before), len(point.args), point.key, point))
    return [one[-1] for one in sorted(points, key=lambda one: one[:3])[:PERHAPS]]


def refuses(rule: Rule) -> bool:
    """Whether a rule refuses command lines."""
    return rule.severity == "error" and not rule.operator_only


def distinguishing(
    mutant: RuleMutant, starts: Sequence[Point], witnesses: Sequence[Point], draw: Random
) -> list[Point]:
    """Lines on which only one of a mutant and its original is broken, found by local search."""
    search = LocalSearch(mutant.original.when, draw, ROLES)
    goal = difference(mutant.original, mutant.rule)
    result = []
    tried = [*draw.sample(starts, min(TRIES, len(starts))), *draw.sample(witnesses, min(TRIES, len(witnesses)))]
    for start in tried:
        there = search.reach(start, goal, APART)
        if there is not None:
            there = shrunk(there, start, goal)
            result.append(cleaned(there, search, goal, mutant.original))
    return result


def cleaned(point: Point, search: LocalSearch, goal: Goal, rule: Rule) -> Point:
    """A line that still distinguishes them and breaks as few other rules as possible."""

    def others(there: Point) -> list[Rule]:
        broken = case_of(there, 0).broken(SGLANG.rules)
        return [one for one in broken if one.id != rule.id and refuses(one)]

    for _ in range(6):
        broken = others(point)
        if not broken:
            return point
        other = LocalSearch(broken[0].when, search.draw)
        for there in other.neighbours(point, 30):
            if goal.cost(there) == 0 and len(others(there)) < len(broken):
                point = there
                break
        else:
            return point
    return point


def chosen(catchers: Mapping[Mutant, Iterable[Point]]) -> list[Point]:
    """The few lines that catch every mutant that any of them catches; the best first."""
    caught: dict[str, set[int]] = defaultdict(set)
    points: dict[str, Point] = {}
    for at, result in enumerate(catchers.values()):
        for point in result:
            points[point.key] = point
            caught[point.key].add(at)
    picked = []
    while caught:
        best = max(caught, key=lambda key: (len(caught[key]), -len(key), key))
        picked.append(points[best])
        done = caught[best]
        caught = {key: left for key, old in caught.items() if (left := old - done)}
    return picked
