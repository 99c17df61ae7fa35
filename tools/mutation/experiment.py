"""Judges recorded cases with mutants in place of the right rules, and reports what changes.

The tricky idea: a mutant is never built into the table. A condition is a pure function of what it reads, so it is
evaluated once for each different set of readings, and only where the outcome changes is anything judged again. A wrong
resolved value is put into the memo that the right one would be read from, and what depends on it is evaluated again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from epd_operator.rules.expression import At, Circumstance, Declared, Expr, Leaf, Named, walk
from tools.mutation.mutant import Mutant, RuleMutant, ValueMutant
from tools.mutation.recorded_case import SGLANG

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from epd_operator.rules.expression import Value
    from epd_operator.rules.process import Process
    from epd_operator.rules.rule import Rule
    from tools.mutation.recorded_case import FindingSummary, RecordedCase


RULES: Final = {rule.id: rule for rule in SGLANG.rules}


def _ids(rules: Iterable[Rule]) -> frozenset[str]:
    return frozenset(rule.id for rule in rules)


@dataclass(frozen=True)
class Effect:
    """What a mutant changes in one case.

    Attributes:
        case: The case.
        before: Ids of the rules that are broken.
        broken: Those that are broken under the mutant.
        settings: Resolved values worth showing that differ under the mutant, of a single process.
    """

    case: RecordedCase
    before: frozenset[str]
    broken: frozenset[str]
    settings: Mapping[str, Value]

    @property
    def findings(self) -> list[FindingSummary]:
        """All findings under the mutant."""
        return [*self.case.constant, *(self.case.finding_of(RULES[rule]) for rule in self.broken)]

    @property
    def shows(self) -> bool:
        """Whether the outcome differs: what refuses, what is warned of, or, of what is accepted, the values.

        An error counts as the function of the engine that it names: of several by one function, the engine reports one.
        """
        refusing, warnings = self._outcome(self.before)
        return (refusing, warnings) != self._outcome(self.broken) or (bool(self.settings) and not refusing)

    def _outcome(self, broken: frozenset[str]) -> tuple[set[str], set[str]]:
        result = [*self.case.constant, *(self.case.finding_of(RULES[rule]) for rule in broken)]
        errors = {one.decided_by or one.rule for one in result if one.severity == "error"}
        return errors, {one.rule for one in result if one.severity == "warning"}

    @property
    def wrong_settings(self) -> set[str]:
        """Resolved values that differ from those that the engine was seen to resolve."""
        expected = self.case.settings
        return {name for name, new in self.settings.items() if name in expected and plain(expected[name]) != plain(new)}

    @property
    def noticed(self) -> bool:
        """Whether an expectation fails under the mutant."""
        return bool(self.wrong_settings) or not self.case.holds(self.findings)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


@cache
def dependents() -> Mapping[str, tuple[list[Rule], list[Named]]]:
    """By name of a resolved value, the rules and the resolved values that depend on it, directly or not."""
    named = SGLANG.named()
    rules: dict[str, tuple[list[Rule], list[Named]]] = {name: ([], []) for name in named}
    owned = [node for body in SGLANG.owned.values() for node in walk(body) if isinstance(node, Named)]
    assert not owned, "what the operator sets must not depend on resolved values, or the memo of a flag would be stale"
    for rule in SGLANG.rules:
        for node in walk(rule.when):
            if isinstance(node, Named):
                rules[node.name][0].append(rule)
    for value in named.values():
        for node in walk(value.body):
            if isinstance(node, Named):
                rules[node.name][1].append(value)
    return rules


Reading = tuple[str, Expr]


def readings(expression: Expr) -> list[Reading]:
    """What an expression reads down to the next resolved values, each with its role; an empty role is its own."""
    result: dict[tuple[str, int], Reading] = {}

    def visit(node: Expr, role: str) -> None:
        if isinstance(node, At):
            visit(node.body, node.role)
        elif isinstance(node, Leaf | Named | Circumstance | Declared):
            result[role, id(node)] = (role, node)
        else:
            for part in node.parts:
                visit(part, role)

    visit(expression, "")
    return list(result.values())


def read(inputs: Sequence[Reading], process: Process) -> Hashable:
    """The values of some readings in a process."""
    values = ((node.value(process.at(role)) if role else node.value(process)) for role, node in inputs)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


class _Readings:
    """The processes of all cases, grouped by what an expression reads in them."""

    def __init__(self, expression: Expr, cases: Sequence[RecordedCase]) -> None:
        inputs = readings(expression)
        self.samples: dict[Hashable, Process] = {}
        self.cases: dict[Hashable, dict[RecordedCase, list[str]]] = defaultdict(lambda: defaultdict(list))
        for case in cases:
            for role, process in case.processes.items():
                key = read(inputs, process)
                self.samples.setdefault(key, process)
                self.cases[key][case].append(role)

    def changed(self, right: Expr, wrong: Expr) -> dict[RecordedCase, dict[str, Value]]:
        """Where the wrong expression has another value, and which, by role."""
        result: dict[RecordedCase, dict[str, Value]] = defaultdict(dict)
        for key, process in self.samples.items():
            value = wrong.value(process)
            if value != right.value(process):
                for case, roles in self.cases[key].items():
                    result[case].update(dict.fromkeys(roles, value))
        return result


class Experiment:
    """Some recorded cases, and what a mutant changes in them.

    Args:
        cases: The cases.
    """

    def __init__(self, cases: Sequence[RecordedCase]) -> None:
        self.cases = cases
        self._alike: dict[int, _Readings] = {}
        self._broken: dict[RecordedCase, frozenset[str]] = {}

    def broken(self, case: RecordedCase) -> frozenset[str]:
        """Ids of the rules that are broken in a case."""
        if case not in self._broken:
            self._broken[case] = _ids(case.broken(SGLANG.rules))
        return self._broken[case]

    def effects(self, mutant: Mutant) -> Iterator[Effect]:
        """Every case in which a mutant changes anything that can be seen."""
        if isinstance(mutant, ValueMutant):
            return self._of_value(mutant)
        if mutant.rule.when is mutant.original.when:
            return self._of_scope(mutant)
        return self._of_condition(mutant)

    def _alike_for(self, expression: Expr) -> _Readings:
        if id(expression) not in self._alike:
            self._alike[id(expression)] = _Readings(expression, self.cases)
        return self._alike[id(expression)]

    def _of_condition(self, mutant: RuleMutant) -> Iterator[Effect]:
        rule, wrong = mutant.original, mutant.rule.when
        for case, values in self._alike_for(rule.when).changed(rule.when, wrong).items():
            if not case.applies(rule):
                continue
            places = case.places(rule)
            now = any(values.get(process.role, rule.when.value(process)) for process in places)
            yield from self._flipped(case, rule, now=now)

    def _of_scope(self, mutant: RuleMutant) -> Iterator[Effect]:
        for case in self.cases:
            now = bool(case.broken((mutant.rule,)))
            yield from self._flipped(case, mutant.original, now=now)

    def _flipped(self, case: RecordedCase, rule: Rule, *, now: bool) -> Iterator[Effect]:
        before = self.broken(case)
        if now != (rule.id in before):
            yield Effect(case, before, before ^ {rule.id}, {})

    def _of_value(self, mutant: ValueMutant) -> Iterator[Effect]:
        value = mutant.original
        rules, values = dependents()[value.name]
        names = {value.name, *(one.name for one in values)}  # `in` over expressions would build expressions
        shown = [one for one in SGLANG.resolved if one.name in names]
        for case, wrong in self._alike_for(value.body).changed(value.body, mutant.body).items():
            effect = self._with_wrong(case, value, wrong, rules=rules, values=values, shown=shown)
            if effect is not None:
                yield effect

    def _with_wrong(
        self,
        case: RecordedCase,
        value: Named,
        wrong: Mapping[str, Value],
        *,
        rules: Sequence[Rule],
        values: Sequence[Named],
        shown: Sequence[Named],
    ) -> Effect | None:
        first = case.processes[case.judged[0]]
        right = {one.name: one.value(first) for one in shown}
        stale = {one.name for one in values}
        memos = {role: process.memo for role, process in case.processes.items()}
        for role, process in case.processes.items():
            new = wrong[role] if role in wrong else value.value(process)
            process.memo = {name: known for name, known in memos[role].items() if name not in stale}
            process.memo[value.name] = new
        try:
            broken = self.broken(case) - _ids(rules) | _ids(case.broken(rules))
            settings = {one.name: now for one in shown if (now := one.value(first)) != right[one.name]}
        finally:
            for role, process in case.processes.items():
                process.memo = memos[role]
        if broken == self.broken(case) and not settings:
            return None
        return Effect(case, self.broken(case), broken, settings)
