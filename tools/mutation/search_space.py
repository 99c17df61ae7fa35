"""Command lines around a rule: those that just break it, those that just do not, and those one step away.

The tricky idea: a rule is a condition, so lines that break it are found by descent. The cost of a condition is the
number of its terms with the wrong value; a step changes one flag, variable or platform that a wrong term reads, and is
kept when the cost does not grow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines import table
from epd_operator.engines.sglang.flags import written
from epd_operator.rules import commandline
from epd_operator.rules.expression import (
    Circumstance,
    Compare,
    Const,
    Expr,
    Leaf,
    Logic,
    Named,
    Not,
    OneOf,
    Text,
    When,
    leaves_of,
    walk,
)
from epd_operator.rules.flag import Unreadable
from epd_operator.rules.process import Process
from tools.differential.comparison import VERSION
from tools.differential.generator import MODEL, PLATFORMS, Case
from tools.differential.vocabulary import ENV, FLAGS
from tools.mutation.recorded_case import SGLANG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from random import Random

    from epd_operator.rules.expression import EvaluationScope

    Wanted = tuple[Expr, bool]

CATALOGUE: Final = SGLANG.catalogue(VERSION, "aggregated")
RANK: Final = SGLANG.rank(VERSION)
# Values of a variable besides those that a rule compares it with.
_SWITCHED: Final = ("1", "0", "true", "false", "x")
_INTEGERS: Final = (-1, 0, 1, 2, 4, 8)
_REALS: Final = (-1.0, 0.0, 0.5, 1.0, 1.5)
_TEXTS: Final = ("x", "", "1", "0", "a,b", "{}", "[]", '{"a": 1}', "tcp://*:6557", "http://e:30000")
# What no search would write: settings inside a string.
_JSON: Final = {
    "cuda-graph-config": (
        *(f'{{"{phase}": {{"backend": "{name}"}}}}' for phase in ("prefill", "decode") for name in ("full", "x")),
        *(f'{{"{phase}": {{"max_bs": {size}}}}}' for phase in ("prefill", "decode") for size in (2, '"2"', 1.5)),
        *(
            f'{{"{phase}": {{"bs": {sizes}}}}}'
            for phase in ("prefill", "decode")
            for sizes in ("[2]", "[]", "2", '"x"')
        ),
        *(f'{{"prefill": {{"max_context_size": {size}}}}}' for size in (-1, 0, 256, 1048577)),
    ),
    "watermark-config": (
        *('{"key": "1f"}', '{"key_b": "1f"}', '{"key": "1f", "mixing_probability": 0.4}', '{"enforce_all": true}'),
        *('{"key": "1f", "max_probability": 0}', '{"key": "1f", "context_window": 65}', '{"colour": 1}'),
    ),
}
ROLES: Final = (written("disaggregation-mode"), written("encoder-only"))
STEPS: Final = 600


@dataclass(frozen=True)
class Point:
    """A command line in the making.

    Attributes:
        platform: What it runs on.
        args: Flags by canonical name.
        env: Variables.
        config: Fields of config.json that differ from the released checkpoint's.
    """

    platform: str
    args: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None

    def case(self, name: str) -> Case:
        """As a question to the engine."""
        argv = ("--model-path", MODEL, *commandline.render(self.args, CATALOGUE))
        return Case(name, self.platform, argv, dict(self.env), self.config)

    def process(self) -> Process:
        """As rules see it."""
        facts = SGLANG.checkpoint if self.config is None else table.checkpoint(self.config)
        return Process(role(self.args), self.platform, RANK, self.args, self.env, facts)

    def with_(self, leaf: Leaf, value: Any) -> Point:
        """The same with another value at a flag or variable; None takes it away."""
        source = self.args if leaf.source == "flag" else self.env
        changed = {name: old for name, old in source.items() if name != leaf.name}
        if value is not None:
            changed[leaf.name] = value
        return replace(self, args=changed) if leaf.source == "flag" else replace(self, env=changed)

    @property
    def key(self) -> str:
        """Equal for equal lines."""
        return json.dumps([self.platform, self.args, self.env, self.config], sort_keys=True)


def point_of(case: Case) -> Point | None:
    """A question to the engine as a point; None when its parser would refuse it."""
    parsed = commandline.parse(case.argv, CATALOGUE)
    if parsed.faults:
        return None
    args = {name: value for name, value in parsed.args.items() if name != "model-path"}
    return Point(case.platform, args, dict(case.env), case.config)


def role(args: Mapping[str, Any]) -> str:
    """The role of a process with these flags."""
    if args.get("encoder-only"):
        return "encode"
    mode = args.get("disaggregation-mode")
    return mode if mode in {"prefill", "decode"} else "aggregated"


def bases(configs: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Lines that the engine accepts: where a search begins."""
    modes: tuple[dict[str, Any], ...] = (
        {},
        {"disaggregation-mode": "prefill"},
        {"disaggregation-mode": "decode"},
        {"encoder-only": True},
        {"language-model-only": True},
    )
    plain = [Point(platform, {"tp-size": 4, **mode}) for mode in modes for platform in PLATFORMS]
    return plain + [Point(PLATFORMS[1], {"tp-size": 4}, config=config) for config in configs]


class Values:
    """Values of each flag or variable that an expression reads, on either side of a boundary.

    Args:
        expression: The expression.
    """

    def __init__(self, expression: Expr) -> None:
        nodes = walk(expression)
        self.leaves = [leaf for leaf in leaves_of(expression) if leaf.source in {"flag", "env"}]
        constants = [node.constant for node in nodes if isinstance(node, Const)]
        numbers = [value for value in constants if isinstance(value, int | float) and not isinstance(value, bool)]
        self._near = sorted({at for number in numbers for at in _around(number)})
        self._constants: dict[str, set[Any]] = {}
        for node in nodes:
            constants = _compared(node)
            if constants:
                for leaf in leaves_of(node):
                    self._constants.setdefault(leaf.name, set()).update(constants)
        self._known: dict[str, list[Any]] = {}

    def of(self, leaf: Leaf) -> list[Any]:
        """The values of a leaf, None for an absent one among them."""
        if leaf.name not in self._known:
            constants = sorted(self._constants.get(leaf.name, ()), key=str)
            result = self._variable(leaf.name, constants) if leaf.source == "env" else self._flag(leaf.name, constants)
            self._known[leaf.name] = [None, *result]
        return self._known[leaf.name]

    def _variable(self, name: str, constants: Sequence[Any]) -> list[Any]:
        usual = ENV.get(name, "").replace("|", " ").split()
        return list(dict.fromkeys([*map(str, constants), *usual, *_SWITCHED, *map(str, self._near)]))

    def _flag(self, name: str, constants: Sequence[Any]) -> list[Any]:
        spec = CATALOGUE[name]
        if spec.switch:
            return [True, False] if spec.negatable else [True]
        usual = FLAGS.get(f"--{name}", "").replace("|", " ").split()
        near = [number for number in self._near if spec.type == "float" or isinstance(number, int)]
        numbers = {"int": _INTEGERS, "human-int": _INTEGERS, "float": _REALS}
        tried = [*constants, *usual, *_JSON.get(name, ()), *(spec.choices or (*numbers.get(spec.type, _TEXTS), *near))]
        result: dict[str, Any] = {}
        for value in tried:
            read = _readable(name, str(value).split("~"))
            if read is not None:
                result.setdefault(repr(read), read)
        return list(result.values())


def _readable(name: str, arguments: Sequence[str]) -> Any:
    """The parsed value of some arguments; None when the parser refuses them."""
    spec = CATALOGUE[name]
    try:
        read = [spec.read(argument) for argument in arguments]
    except Unreadable:
        return None
    many = spec.nargs in {"*", "+"}
    return None if None in read or (len(read) > 1 and not many) else read if many else read[0]


def _around(number: float) -> Iterable[float]:
    return (number - 1, number, number + 1, number * 2, number // 2 if isinstance(number, int) else number / 2)


def _compared(node: Expr) -> list[Any]:
    """The constants that a node compares with."""
    match node:
        case OneOf():
            return list(node.choices)
        case Compare():
            return [side.constant for side in node.parts if isinstance(side, Const) and side.constant is not None]
        case Text() if node.argument:
            return [node.argument, f"{node.argument}x", f"x{node.argument}"]
        case _:
            return []


def cost(node: Expr, scope: EvaluationScope, *, want: bool) -> int:
    """How many terms of a condition differ from what is wanted; 0 when it has the wanted value."""
    match node:
        case Logic():
            costs = [cost(term, scope, want=want) for term in node.terms]
            return sum(costs) if (node.symbol == "&&") == want else min(costs, default=1)
        case Not():
            return cost(node.term, scope, want=not want)
        case Named():
            return cost(node.body, scope, want=want)
        case When():
            met = bool(node.condition.value(scope))
            branch = node.then if met else node.other
            other = node.other if met else node.then
            stay = cost(branch, scope, want=want)
            return min(stay, cost(node.condition, scope, want=not met) + cost(other, scope, want=want))
        case Const():
            return 0 if bool(node.constant) == want else 1000
        case _:
            return int(bool(node.value(scope)) != want)


def deciding(node: Expr, given: tuple[Wanted, ...] = ()) -> Iterator[tuple[Expr, Sequence[Wanted]]]:
    """Each term of a condition, with what must be true and false of the others so that it alone decides the whole."""
    match node:
        case Logic():
            for at, term in enumerate(node.terms):
                rest = (*node.terms[:at], *node.terms[at + 1 :])
                alone = (*given, *((other, node.symbol == "&&") for other in rest))
                yield term, alone
                yield from deciding(term, alone)
        case Not():
            yield from deciding(node.term, given)
        case Named():
            yield from deciding(node.body, given)
        case _:
            return


def blamed(node: Expr, scope: EvaluationScope, *, want: bool) -> list[Leaf | None]:
    """What the terms read that differ from what is wanted; None stands for the platform."""
    match node:
        case Logic():
            return [leaf for term in node.terms for leaf in blamed(term, scope, want=want)]
        case Not():
            return blamed(node.term, scope, want=not want)
        case Named():
            return blamed(node.body, scope, want=want)
        case _ if bool(node.value(scope)) == want:
            return []
        case _:
            return list(_read(node))


_READ: dict[int, tuple[Expr, tuple[Leaf | None, ...]]] = {}


def _read(node: Expr) -> tuple[Leaf | None, ...]:
    if id(node) not in _READ:  # The node is kept beside, or its number could come to mean another one.
        result: list[Leaf | None] = [leaf for leaf in leaves_of(node) if leaf.source in {"flag", "env"}]
        about = {part.name for part in walk(node) if isinstance(part, Circumstance)}
        result += [*(ROLES if "role" in about else ()), *((None,) if "platform" in about else ())]
        _READ[id(node)] = node, tuple(result)
    return _READ[id(node)][1]


class Goal:
    """What a line should be: one of some alternatives, each of conditions with their wanted values.

    Args:
        alternatives: The alternatives.
    """

    def __init__(self, *alternatives: Sequence[Wanted]) -> None:
        self.alternatives = alternatives

    def cost(self, point: Point) -> int:
        """How many terms differ from it."""
        process = point.process()
        return min(_sum(alternative, process) for alternative in self.alternatives)

    def blamed(self, point: Point) -> list[Leaf | None]:
        """What the terms read that differ from the nearest alternative."""
        process = point.process()
        nearest = min(self.alternatives, key=lambda alternative: _sum(alternative, process))
        return [leaf for condition, want in nearest for leaf in blamed(condition, process, want=want)]


def _sum(alternative: Sequence[Wanted], process: Process) -> int:
    return sum(cost(condition, process, want=want) for condition, want in alternative)


class LocalSearch:
    """A local search for lines on which an expression is true, or false.

    Args:
        expression: The expression.
        draw: Source of random numbers.
        extra: Flags and variables to change besides those that the expression reads.
    """

    def __init__(self, expression: Expr, draw: Random, extra: Iterable[Leaf] = ()) -> None:
        self.values = Values(expression)
        self.leaves = list(dict.fromkeys([*self.values.leaves, *extra]))
        self.draw = draw

    def step(self, point: Point, blamed: Sequence[Leaf | None] = ()) -> Point:
        """A line that differs in one place, most often in one that is to blame."""
        draw = self.draw
        leaf = draw.choice(blamed) if blamed and draw.random() < 0.7 else draw.choice([None, *self.leaves])
        if leaf is None:
            return replace(point, platform=draw.choice(PLATFORMS))
        return point.with_(leaf, draw.choice(self.values.of(leaf)))

    def neighbours(self, point: Point, most: int) -> list[Point]:
        """Lines that differ in one place, all of them or a sample."""
        result = [replace(point, platform=platform) for platform in PLATFORMS if platform != point.platform]
        leaves = {leaf.name: leaf for leaf in (*self.leaves, *ROLES)}
        result += [point.with_(leaf, value) for leaf in leaves.values() for value in self.values.of(leaf)]
        return result if len(result) <= most else self.draw.sample(result, most)

    def reach(self, start: Point, goal: Goal, steps: int = STEPS) -> Point | None:
        """Search until the cost is 0; None when that takes too long.

        Args:
            start: Where to begin.
            goal: What the line should be.
            steps: Most steps to try.
        """
        point, paid = start, goal.cost(start)
        blamed = goal.blamed(start)
        for _ in range(steps):
            if paid == 0:
                return point
            there = self.step(point, blamed)
            asked = goal.cost(there)
            if asked <= paid:
                point, paid = there, asked
                blamed = goal.blamed(there)
        return point if paid == 0 else None
