"""Puts mutants among recorded things and tells what changes.

The tricky idea: a mutant is never built into the table. A condition is a pure function of what it reads, so it is
evaluated once for each different set of readings, and only where the outcome changes is anything looked at again. A
wrong resolved value is put into the memo that the right one would be read from, and what depends on it is found anew.
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
    from tools.mutation.recorded_case import Found, Stand


RULES: Final = {rule.id: rule for rule in SGLANG.rules}


def _ids(rules: Iterable[Rule]) -> frozenset[str]:
    return frozenset(rule.id for rule in rules)


@dataclass(frozen=True)
class Effect:
    """What a mutant changes in one place.

    Attributes:
        stand: where.
        before: Ids of the rules that are broken.
        broken: Those that are broken under the mutant.
        settings: Resolved values worth showing that are others under the mutant, of a single process.
    """

    stand: Stand
    before: frozenset[str]
    broken: frozenset[str]
    settings: Mapping[str, Value]

    @property
    def findings(self) -> list[Found]:
        """Everything found under the mutant."""
        return [*self.stand.constant, *(self.stand.finding_of(RULES[rule]) for rule in self.broken)]

    @property
    def shows(self) -> bool:
        """Whether the outcome is another one: what refuses, what is warned of, or, of what is accepted, the values.

        An error counts as the function of the engine that it names: of several by one function, the engine says one.
        """
        refusing, warnings = self._outcome(self.before)
        return (refusing, warnings) != self._outcome(self.broken) or (bool(self.settings) and not refusing)

    def _outcome(self, broken: frozenset[str]) -> tuple[set[str], set[str]]:
        result = [*self.stand.constant, *(self.stand.finding_of(RULES[rule]) for rule in broken)]
        errors = {one.decided_by or one.rule for one in result if one.severity == "error"}
        return errors, {one.rule for one in result if one.severity == "warning"}

    @property
    def wrong_settings(self) -> set[str]:
        """Resolved values that are not what the engine was seen to make of the flags."""
        expected = self.stand.settings
        return {name for name, new in self.settings.items() if name in expected and plain(expected[name]) != plain(new)}

    @property
    def noticed(self) -> bool:
        """Whether an expectation fails under the mutant."""
        return bool(self.wrong_settings) or not self.stand.holds(self.findings)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


@cache
def dependents() -> Mapping[str, tuple[list[Rule], list[Named]]]:
    """By name of a resolved value, the rules and the other resolved values that go by it, through others or not."""
    named = SGLANG.named()
    rules: dict[str, tuple[list[Rule], list[Named]]] = {name: ([], []) for name in named}
    owned = [node for body in SGLANG.owned.values() for node in walk(body) if isinstance(node, Named)]
    assert not owned, "what the operator sets must not go by resolved values, or the memo of a flag would be stale"
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
    """What an expression reads down to the next resolved values, each with the role it is read at; empty: its own."""
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
    """What stands there in a process."""
    values = ((node.value(process.at(role)) if role else node.value(process)) for role, node in inputs)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


class _Readings:
    """The processes of all stands, those alike to an expression together."""

    def __init__(self, expression: Expr, stands: Sequence[Stand]) -> None:
        inputs = readings(expression)
        self.samples: dict[Hashable, Process] = {}
        self.stands: dict[Hashable, dict[Stand, list[str]]] = defaultdict(lambda: defaultdict(list))
        for stand in stands:
            for role, process in stand.processes.items():
                key = read(inputs, process)
                self.samples.setdefault(key, process)
                self.stands[key][stand].append(role)

    def changed(self, right: Expr, wrong: Expr) -> dict[Stand, dict[str, Value]]:
        """Where the wrong expression comes to something else, and to what, by role."""
        result: dict[Stand, dict[str, Value]] = defaultdict(dict)
        for key, process in self.samples.items():
            value = wrong.value(process)
            if value != right.value(process):
                for stand, roles in self.stands[key].items():
                    result[stand].update(dict.fromkeys(roles, value))
        return result


class Laboratory:
    """Some stands, and what a mutant changes in them."""

    def __init__(self, stands: Sequence[Stand]) -> None:
        self.stands = stands
        self._alike: dict[int, _Readings] = {}
        self._broken: dict[Stand, frozenset[str]] = {}

    def broken(self, stand: Stand) -> frozenset[str]:
        """Ids of the rules that are broken in a stand."""
        if stand not in self._broken:
            self._broken[stand] = _ids(stand.broken(SGLANG.rules))
        return self._broken[stand]

    def effects(self, mutant: Mutant) -> Iterator[Effect]:
        """Every stand in which a mutant changes anything that can be seen."""
        if isinstance(mutant, ValueMutant):
            return self._of_value(mutant)
        if mutant.rule.when is mutant.original.when:
            return self._of_scope(mutant)
        return self._of_condition(mutant)

    def _alike_for(self, expression: Expr) -> _Readings:
        if id(expression) not in self._alike:
            self._alike[id(expression)] = _Readings(expression, self.stands)
        return self._alike[id(expression)]

    def _of_condition(self, mutant: RuleMutant) -> Iterator[Effect]:
        rule, wrong = mutant.original, mutant.rule.when
        for stand, values in self._alike_for(rule.when).changed(rule.when, wrong).items():
            if not stand.applies(rule):
                continue
            places = stand.places(rule)
            now = any(values.get(process.role, rule.when.value(process)) for process in places)
            yield from self._flipped(stand, rule, now=now)

    def _of_scope(self, mutant: RuleMutant) -> Iterator[Effect]:
        for stand in self.stands:
            now = bool(stand.broken((mutant.rule,)))
            yield from self._flipped(stand, mutant.original, now=now)

    def _flipped(self, stand: Stand, rule: Rule, *, now: bool) -> Iterator[Effect]:
        before = self.broken(stand)
        if now != (rule.id in before):
            yield Effect(stand, before, before ^ {rule.id}, {})

    def _of_value(self, mutant: ValueMutant) -> Iterator[Effect]:
        value = mutant.original
        rules, values = dependents()[value.name]
        names = {value.name, *(one.name for one in values)}  # `in` over expressions would build expressions
        shown = [one for one in SGLANG.resolved if one.name in names]
        for stand, wrong in self._alike_for(value.body).changed(value.body, mutant.body).items():
            effect = self._with_wrong(stand, value, wrong, rules, values, shown)
            if effect is not None:
                yield effect

    def _with_wrong(
        self,
        stand: Stand,
        value: Named,
        wrong: Mapping[str, Value],
        rules: Sequence[Rule],
        values: Sequence[Named],
        shown: Sequence[Named],
    ) -> Effect | None:
        first = stand.processes[stand.judged[0]]
        right = {one.name: one.value(first) for one in shown}
        stale = {one.name for one in values}
        memos = {role: process.memo for role, process in stand.processes.items()}
        for role, process in stand.processes.items():
            new = wrong[role] if role in wrong else value.value(process)
            process.memo = {name: known for name, known in memos[role].items() if name not in stale}
            process.memo[value.name] = new
        try:
            broken = self.broken(stand) - _ids(rules) | _ids(stand.broken(rules))
            settings = {one.name: now for one in shown if (now := one.value(first)) != right[one.name]}
        finally:
            for role, process in stand.processes.items():
                process.memo = memos[role]
        if broken == self.broken(stand) and not settings:
            return None
        return Effect(stand, self.broken(stand), broken, settings)
