"""Extends `boundaries.jsonl`: lines that would catch mutants, each with the real engine's answer.

The answer is recorded as it is. Where it differs from our rules, the rules are wrong, and the line is returned so that
they can be corrected.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from epd_operator.rules.rule import Rule
from tools.differential.comparison import compare
from tools.mutation.experiment import RULES, Experiment, dependents
from tools.mutation.growth import (
    REPORTED,
    SEED,
    Explorer,
    Neighbours,
    case_of,
    catches,
    chosen,
    distinguishing,
    near_misses,
)
from tools.mutation.mutant import Mutant, RuleMutant, mutants, through
from tools.mutation.record import BOUNDARIES, EngineVerdict, recorded, recorded_line, rows
from tools.mutation.recorded_case import SGLANG
from tools.mutation.score import noticed, subject_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.differential.answer_cache import AnswerCache
    from tools.differential.comparison import Comparison
    from tools.mutation.search_space import Point

ASKED_AT_ONCE: Final = 100
WAYS: Final = 3
ORDER: Final = {rule.id: at for at, rule in enumerate(SGLANG.rules)}
Say = Callable[[str], None]


@dataclass
class CollectedLines:
    """Lines that the engine was asked about.

    Attributes:
        rows: New rows.
        wrong: Lines on which our rules differ from the engine.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[Comparison] = field(default_factory=list)

    def ask(self, engine: AnswerCache, points: Sequence[Point], say: Say) -> None:
        """Ask the engine about some lines."""
        for start in range(0, len(points), ASKED_AT_ONCE):
            asked = [point.case("boundary") for point in points[start : start + ASKED_AT_ONCE]]
            for one in compare(asked, engine.ask(asked)):
                if one.kind or one.differences:
                    self.wrong.append(one)
                elif one.answer.accepted is not None:
                    self.rows.append(_row(one))
            say(f"asked {min(len(points), start + ASKED_AT_ONCE)} of {len(points)}, {len(self.wrong)} disagree")


def _row(one: Comparison) -> dict[str, Any]:
    case, answer = one.case, one.answer
    row: dict[str, Any] = {"id": case.id, "platform": case.platform, "argv": list(case.argv), "env": dict(case.env)}
    if case.config:
        row["config"] = dict(case.config)
    resolved = {name: value for name, value in answer.resolved.items() if answer.accepted and name in REPORTED}
    return {**row, "accepted": answer.accepted, "decided_by": answer.raised_by, "resolved": resolved}


def engine_decides(rule: Rule) -> bool:
    """Whether a command line can show that a rule is wrong."""
    return bool(rule.roles and rule.decided_by and rule.severity == "error" and not rule.operator_only)


def candidates(explorer: Explorer, experiment: Experiment, say: Say, *, searching: bool) -> list[Point]:
    """Lines to ask about: those that catch what nothing recorded catches, if the engine agrees with the rules.

    Args:
        explorer: Finds lines.
        experiment: Everything recorded.
        say: Called with the progress.
        searching: Look longer for mutants that no line around the rule catches.
    """
    subjects: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants(SGLANG):
        subjects[mutant.subject].append(mutant)
    catchers: dict[Mutant, list[Point]] = {}
    perhaps: dict[str, Point] = {}
    for at, (name, result) in enumerate(subjects.items(), 1):
        subject = subject_named(name)
        if isinstance(subject, Rule) and not engine_decides(subject):
            continue
        left = [mutant for mutant in result if not noticed(experiment, mutant)]
        around = explorer.around(subject) if left else None
        for mutant in left:
            assert around is not None
            caught = catches(around, mutant)
            near = [] if caught else near_misses(around, mutant)
            if not caught and not near and searching:
                caught = _searched(mutant, explorer)
            if caught:
                catchers[mutant] = caught
            perhaps.update((point.key, point) for point in near)
        say(f"{at} of {len(subjects)} subjects, {len(catchers)} mutants to catch")
    silent = [rule for rule in SGLANG.rules if rule.roles and rule.id not in broken_rules(experiment)]
    breaking = [point for rule in silent for point in explorer.witnesses(rule)[:WAYS]]
    return list({point.key: point for point in (*chosen(catchers), *perhaps.values(), *breaking)}.values())


def broken_rules(experiment: Experiment) -> set[str]:
    """Rules that are broken in some case; those that only the operator has, on a line that the engine accepted."""
    result = set()
    for one in experiment.cases:
        accepted = isinstance(one.holds, EngineVerdict) and one.holds.accepted
        result |= {rule for rule in experiment.broken(one) if accepted or not RULES[rule].operator_only}
    return result


def _searched(mutant: Mutant, explorer: Explorer) -> list[Point]:
    """Lines that catch a mutant, found by a local search."""
    draw = Random(f"{SEED} {mutant.subject} {mutant.change}")
    if isinstance(mutant, RuleMutant):
        ways = [mutant]
    else:
        rules = [rule for rule in dependents()[mutant.original.name][0] if engine_decides(rule)]
        ways = [through(mutant, rule) for rule in draw.sample(rules, min(WAYS, len(rules)))]
    points = [
        point for way in ways for point in distinguishing(way, explorer.starts, explorer.witnesses(way.original), draw)
    ]
    return catches(Neighbours(points, Experiment([case_of(point, at) for at, point in enumerate(points)])), mutant)


def minimised(new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The few rows, old and new, that together catch everything that these rows catch and other records do not."""
    everything = {json.dumps([row["platform"], row["argv"], row["env"], row.get("config")]): row for row in new}
    others = Experiment([one for one in recorded() if not one.name.startswith("boundary/")])
    kept = [{**row, "id": f"boundary/{at:05}"} for at, row in enumerate(everything.values())]
    by_id = {row["id"]: row for row in kept}
    experiment = Experiment([recorded_line(row) for row in kept])
    catching: dict[str, set[int]] = defaultdict(set)
    values: dict[tuple[str, int], set[str]] = {}
    for at, mutant in enumerate(mutants(SGLANG)):
        if noticed(others, mutant):
            continue
        for effect in experiment.effects(mutant):
            if effect.noticed:
                catching[effect.case.name].add(at)
                if effect.case.holds(effect.findings):
                    values[effect.case.name, at] = effect.wrong_settings
    broken_elsewhere = broken_rules(others)
    for one in experiment.cases:
        catching[one.name] |= {-1 - ORDER[rule] for rule in broken_rules(Experiment([one])) - broken_elsewhere}
    catching = {name: caught for name, caught in catching.items() if caught}
    shown: dict[str, set[str]] = defaultdict(set)
    while catching:
        best = max(catching, key=lambda name: (len(catching[name]), -len(by_id[name]["argv"]), name))
        done = catching[best]
        for at in done:
            shown[best] |= set(sorted(values.get((best, at), ()))[:1])
        catching = {name: left for name, old in catching.items() if (left := old - done)}
    result = []
    for name in sorted(shown):
        row = by_id[name]
        result.append({**row, "resolved": {key: row["resolved"][key] for key in sorted(shown[name])}})
    return [{**row, "id": f"boundary/{at:05}"} for at, row in enumerate(result)]


def grow(engine: AnswerCache, say: Say, *, searching: bool = True) -> CollectedLines:
    """Look for lines, ask about them, and write the smallest set that catches as much."""
    collected = CollectedLines()
    explorer = Explorer()
    points = candidates(explorer, Experiment(recorded()), say, searching=searching)
    collected.ask(engine, points, say)
    kept = minimised([*rows(BOUNDARIES), *collected.rows])
    BOUNDARIES.write_text("".join(f"{json.dumps(row)}\n" for row in kept), encoding="utf-8")
    say(f"{len(kept)} lines kept")
    return collected
