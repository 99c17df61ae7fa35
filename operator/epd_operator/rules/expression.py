"""The algebra in which rules and resolved values are written.

The tricky idea: an expression is total and has no order of evaluation. What an engine does step by step, changing its
own settings on the way, is written as a chain of named values, each a pure function of the ones before. That is why
the same expression can be evaluated here and be printed as CEL for an admission policy, and why every finding of a
spec comes at once instead of the first one that the engine happens to meet.

Absence is a value: a flag that nobody gave is None. `==` compares it like any other value; `<`, `<=`, `>`, `>=` are
False as soon as one side is absent; arithmetic with it gives None. `&`, `|`, `~` take plain truth values only, which
is checked when the expression is built, so that a three-state flag cannot slip into a condition.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, TypeAlias

from typing_extensions import override

from epd_operator.api import duration, quantity
from epd_operator.rules.limit import is_long

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | Sequence[Scalar] | None
Kind: TypeAlias = Literal["bool", "int", "float", "str", "list", "none"]


class EvaluationScope(Protocol):
    """What one process would be started with: everything that a leaf can ask for."""

    @property
    def role(self) -> str:
        """`encode`, `prefill`, `decode`, or `aggregated` on a bare command line."""

    @property
    def platform(self) -> str:
        """`cuda-sm90`, `cuda-sm100`, `hip-gfx950` or `cpu`."""

    @property
    def rank(self) -> int:
        """Place of the judged version in the order of profiles."""

    @property
    def memo(self) -> dict[str, Value]:
        """Named values already known in this scope."""

    def flag(self, name: str) -> Value:
        """Value of a flag as the engine gets it; None when it is not given."""

    def variable(self, name: str) -> str | None:
        """Environment variable of the process."""

    def field(self, path: str) -> Value:
        """Typed field of the role; None when absent or when there is no spec."""

    def spec(self, path: str) -> Value:
        """Typed field of the spec; None when absent or when there is no spec."""

    def model(self, name: str) -> Value:
        """A fact of the checkpoint."""

    def at(self, role: str) -> EvaluationScope:
        """The scope of another role of the same spec; that of an empty process when the role is not declared."""

    def declares(self, role: str) -> bool:
        """Whether the spec has this role."""


class Expr(ABC):
    """An expression; build it with the functions of this module and with operators."""

    kind: Kind
    nullable: bool

    @abstractmethod
    def value(self, scope: EvaluationScope) -> Value:
        """The value of the expression in a scope; never raises."""

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The expressions directly below, in the order of the attributes."""
        values = (getattr(self, attribute.name) for attribute in fields(self))  # type: ignore[arg-type] # all are
        flat = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
        return tuple(part for part in flat if isinstance(part, Expr))

    @property
    def given(self) -> Expr:
        """Whether there is a value at all."""
        return ~(self == None) if self.nullable else TRUE  # noqa: E711 - builds an expression

    def isin(self, choices: Sequence[Scalar]) -> Expr:
        """Whether the value is one of fixed choices; an absent one is not."""
        return OneOf(self, tuple(choices))

    def otherwise(self, default: Expr | Scalar) -> Expr:
        """The value, or this default when it is absent."""
        return Otherwise(self, lift(default)) if self.nullable else self

    @override
    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return Compare("==", self, lift(other))

    @override
    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return ~Compare("==", self, lift(other))

    __hash__ = object.__hash__

    def __lt__(self, other: Expr | Scalar) -> Expr:
        return Compare("<", self, lift(other))

    def __le__(self, other: Expr | Scalar) -> Expr:
        return Compare("<=", self, lift(other))

    def __gt__(self, other: Expr | Scalar) -> Expr:
        return Compare(">", self, lift(other))

    def __ge__(self, other: Expr | Scalar) -> Expr:
        return Compare(">=", self, lift(other))

    def __and__(self, other: Expr) -> Expr:
        return Logic("&&", (self, other))

    def __or__(self, other: Expr) -> Expr:
        return Logic("||", (self, other))

    def __invert__(self) -> Expr:
        return Not(self)

    def __add__(self, other: Expr | Scalar) -> Expr:
        return Arithmetic("+", self, lift(other))

    def __sub__(self, other: Expr | Scalar) -> Expr:
        return Arithmetic("-", self, lift(other))

    def __mul__(self, other: Expr | Scalar) -> Expr:
        return Arithmetic("*", self, lift(other))

    def __truediv__(self, other: Expr | Scalar) -> Expr:
        return Arithmetic("/", self, lift(other))

    def __floordiv__(self, other: Expr | Scalar) -> Expr:
        return Arithmetic("//", self, lift(other))

    def __mod__(self, other: Expr | Scalar) -> Expr:
        return Arithmetic("%", self, lift(other))

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value of its own: combine with & | ~, not with and, or, not")


def _plain(condition: Expr) -> Expr:
    if condition.kind != "bool" or condition.nullable:
        raise TypeError(f"a condition must be plain true or false, got {condition}: compare it first")
    return condition


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A fixed value."""

    constant: Value
    kind: Kind = "none"
    nullable: bool = False

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return self.constant


@dataclass(frozen=True, eq=False)
class Leaf(Expr):
    """Something read from the scope.

    Attributes:
        source: Where it is read: a flag, a variable, a field of the role or of the spec, a fact of the checkpoint.
        name: Name or dotted path there.
        unit: `bytes` when the text is a Kubernetes quantity, `seconds` when it is a duration.
    """

    source: Literal["flag", "env", "field", "spec", "model"]
    name: str
    kind: Kind
    nullable: bool = True
    unit: str = ""

    @override
    def value(self, scope: EvaluationScope) -> Value:
        match self.source:
            case "flag":
                return scope.flag(self.name)
            case "env":
                return scope.variable(self.name)
            case "field":
                return self._typed(scope.field(self.name))
            case "spec":
                return self._typed(scope.spec(self.name))
            case "model":
                return scope.model(self.name)

    def _typed(self, written: Value) -> Value:
        """A field of the wrong type counts as absent: it has its own message, and no rule may stumble over it."""
        if self.unit == "bytes":
            amount = quantity.parse(written)
            return None if amount is None else float(amount)
        if self.unit == "seconds":
            length = duration.parse(written)
            return None if length is None else float(length)
        if self.kind == "list":
            return written if isinstance(written, list | tuple) else None
        if type(written) is int and is_long(written):
            return None
        if self.kind == "float" and type(written) is int:
            return float(written)
        return written if _KINDS.get(type(written)) == self.kind else None


@dataclass(frozen=True, eq=False)
class Circumstance(Expr):
    """The role or the platform."""

    name: Literal["role", "platform"]
    kind: Kind = "str"
    nullable: bool = False

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return scope.role if self.name == "role" else scope.platform


@dataclass(frozen=True, eq=False)
class Declared(Expr):
    """Whether the spec has a role."""

    role: str
    kind: Kind = "bool"
    nullable: bool = False

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return scope.declares(self.role)


@dataclass(frozen=True, eq=False)
class Named(Expr):
    """A resolved value: what an engine turns its flags into.

    Attributes:
        name: Unique in a profile; the engine's own attribute name where it has one.
        body: How it follows from what is given.
        settles: The flags, variables or fields that a user changes to change it, the likeliest first.
    """

    name: str
    body: Expr
    settles: tuple[Leaf, ...] = ()
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.body.kind)
        object.__setattr__(self, "nullable", self.body.nullable)

    @override
    def value(self, scope: EvaluationScope) -> Value:
        memo = scope.memo
        if self.name not in memo:
            memo[self.name] = self.body.value(scope)
        return memo[self.name]

    @property
    @override
    def parts(self) -> tuple[Expr, ...]:
        return (self.body,)


@dataclass(frozen=True, eq=False)
class At(Expr):
    """An expression evaluated for another role of the same spec."""

    role: str
    body: Expr
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.body.kind)
        object.__setattr__(self, "nullable", self.body.nullable)

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return self.body.value(scope.at(self.role))


@dataclass(frozen=True, eq=False)
class Since(Expr):
    """One meaning from a version on, another before it.

    Attributes:
        rank: Place of that version in the order of profiles.
    """

    rank: int
    newer: Expr
    older: Expr
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _common(self.newer, self.older))
        object.__setattr__(self, "nullable", _nullable(self.newer, self.older))

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return (self.newer if scope.rank >= self.rank else self.older).value(scope)


@dataclass(frozen=True, eq=False)
class When(Expr):
    """One value under a condition, another without it."""

    condition: Expr
    then: Expr
    other: Expr
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        _plain(self.condition)
        object.__setattr__(self, "kind", _common(self.then, self.other))
        object.__setattr__(self, "nullable", _nullable(self.then, self.other))

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return (self.then if self.condition.value(scope) else self.other).value(scope)


@dataclass(frozen=True, eq=False)
class Otherwise(Expr):
    """A value, or another one when it is absent."""

    subject: Expr
    default: Expr
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _common(self.subject, self.default))
        object.__setattr__(self, "nullable", self.default.nullable)

    @override
    def value(self, scope: EvaluationScope) -> Value:
        value = self.subject.value(scope)
        return self.default.value(scope) if value is None else value


@dataclass(frozen=True, eq=False)
class Compare(Expr):
    """Two values compared; an absent one equals only another absent one and has no order."""

    symbol: Literal["==", "<", "<=", ">", ">="]
    left: Expr
    right: Expr
    kind: Kind = "bool"
    nullable: bool = False

    def __post_init__(self) -> None:
        if self.symbol != "==" and {self.left.kind, self.right.kind} - {"int", "float"}:
            raise TypeError(f"only numbers have an order: {self.left} {self.symbol} {self.right}")
        known = {self.left.kind, self.right.kind} - {"none"}
        if len(known) == 2 and known != {"int", "float"}:
            raise TypeError(f"never equal, {' and '.join(sorted(known))}: {self.left} {self.symbol} {self.right}")

    @override
    def value(self, scope: EvaluationScope) -> Value:
        left, right = self.left.value(scope), self.right.value(scope)
        if self.symbol == "==":
            return left == right
        return left is not None and right is not None and bool(_ORDER[self.symbol](left, right))


@dataclass(frozen=True, eq=False)
class OneOf(Expr):
    """Whether a value is one of fixed choices."""

    subject: Expr
    choices: tuple[Scalar, ...]
    kind: Kind = "bool"
    nullable: bool = False

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return self.subject.value(scope) in self.choices


@dataclass(frozen=True, eq=False)
class Logic(Expr):
    """All of the conditions, or any."""

    symbol: Literal["&&", "||"]
    terms: tuple[Expr, ...]
    kind: Kind = "bool"
    nullable: bool = False

    def __post_init__(self) -> None:
        flat: list[Expr] = []
        for term in self.terms:
            _plain(term)
            flat += term.terms if isinstance(term, Logic) and term.symbol == self.symbol else [term]
        object.__setattr__(self, "terms", tuple(flat))

    @override
    def value(self, scope: EvaluationScope) -> Value:
        if self.symbol == "&&":
            return all(term.value(scope) for term in self.terms)
        return any(term.value(scope) for term in self.terms)


@dataclass(frozen=True, eq=False)
class Not(Expr):
    """The opposite."""

    term: Expr
    kind: Kind = "bool"
    nullable: bool = False

    def __post_init__(self) -> None:
        _plain(self.term)

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return not self.term.value(scope)


@dataclass(frozen=True, eq=False)
class Arithmetic(Expr):
    """A sum, difference, product, quotient, or Python's floor division and remainder; dividing by zero gives 0."""

    symbol: Literal["+", "-", "*", "/", "//", "%"]
    left: Expr
    right: Expr
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        kinds = {self.left.kind, self.right.kind}
        if kinds - {"int", "float"} or (self.symbol in {"//", "%"} and kinds != {"int"}):
            raise TypeError(f"no arithmetic on these: {self.left} {self.symbol} {self.right}")
        object.__setattr__(self, "kind", "float" if "float" in kinds or self.symbol == "/" else "int")
        object.__setattr__(self, "nullable", self.left.nullable or self.right.nullable)

    @override
    def value(self, scope: EvaluationScope) -> Value:
        left, right = self.left.value(scope), self.right.value(scope)
        if left is None or right is None:
            return None
        if self.symbol in {"/", "//", "%"} and right == 0:
            return 0.0 if self.kind == "float" else 0
        try:
            result: Value = _ARITHMETIC[self.symbol](left, right)
        except OverflowError:
            # A whole number on a command line may be longer than any float.
            return None if self.nullable else 0.0
        return result


@dataclass(frozen=True, eq=False)
class Text(Expr):
    """A text in lower case, whether it starts with something, its length, or the whole number that it spells."""

    symbol: Literal["lower", "starts", "contains", "size", "number"]
    subject: Expr
    argument: str = ""
    kind: Kind = field(init=False)
    nullable: bool = field(init=False)

    def __post_init__(self) -> None:
        kinds: dict[str, Kind] = {"lower": "str", "starts": "bool", "contains": "bool", "size": "int", "number": "int"}
        if self.subject.kind not in ({"list", "str"} if self.symbol in {"size", "contains"} else {"str"}):
            raise TypeError(f"no text: {self.subject}")
        object.__setattr__(self, "kind", kinds[self.symbol])
        plain = self.symbol in {"starts", "contains", "size"}
        object.__setattr__(self, "nullable", not plain and (self.subject.nullable or self.symbol == "number"))

    @override
    def value(self, scope: EvaluationScope) -> Value:
        subject = self.subject.value(scope)
        if subject is None:
            return {"starts": False, "contains": False, "size": 0}.get(self.symbol)
        match self.symbol:
            case "size":
                return len(subject)  # type: ignore[arg-type] # the kind was checked when the expression was built
            case "contains":
                return self.argument in subject  # type: ignore[operator] # as above
            case "lower":
                return str(subject).lower()
            case "starts":
                return str(subject).startswith(self.argument)
            case "number":
                return int(str(subject)) if re.fullmatch(NUMBER, str(subject), re.ASCII) else None


@dataclass(frozen=True, eq=False)
class Opaque(Expr):
    """A function that CEL cannot express; an admission policy takes `blind` instead, and the controller catches it.

    Attributes:
        name: What it finds out, for the list of things that an admission policy cannot see.
        function: Total function of the values of the arguments.
        blind: What a policy assumes.
    """

    name: str
    function: Callable[..., Value] = field(repr=False)
    arguments: tuple[Expr, ...]
    kind: Kind
    blind: Value = None
    nullable: bool = True

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return self.function(*(argument.value(scope) for argument in self.arguments))


NUMBER: Final = "-?[0-9]{1,18}"
_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_KINDS: Final[Mapping[type, Kind]] = {bool: "bool", int: "int", float: "float", str: "str"}


def _common(left: Expr, right: Expr) -> Kind:
    kinds = {left.kind, right.kind} - {"none"}
    if kinds == {"int", "float"}:
        return "float"
    if len(kinds) > 1:
        raise TypeError(f"one value of two kinds, {' and '.join(sorted(kinds))}: {left} or {right}")
    return kinds.pop() if kinds else "none"


def _nullable(left: Expr, right: Expr) -> bool:
    return left.nullable or right.nullable or "none" in {left.kind, right.kind}


def lift(value: object) -> Expr:
    """A constant as an expression; expressions as they are."""
    if isinstance(value, Expr):
        return value
    if value is None:
        return NOTHING
    if type(value) in _KINDS:
        return Const(value, _KINDS[type(value)])  # type: ignore[arg-type] # one of the four scalar types
    raise TypeError(f"not a value of the algebra: {value!r}")


TRUE: Final = Const(True, "bool")
FALSE: Final = Const(False, "bool")
NOTHING: Final = Const(None, "none", nullable=True)
ROLE: Final = Circumstance("role")
PLATFORM: Final = Circumstance("platform")


def variable(name: str) -> Leaf:
    """An environment variable of the process, as text."""
    return Leaf("env", name, "str")


def field_of(path: str, kind: Kind, *, unit: str = "") -> Leaf:
    """A typed field of the role, such as `resources.gpu`; with unit `bytes` a quantity, as a float of bytes."""
    return Leaf("field", path, kind, unit=unit)


def spec_of(path: str, kind: Kind, *, unit: str = "") -> Leaf:
    """A typed field of the spec, such as `transfer.backend`; with a unit a quantity or a duration, as a float."""
    return Leaf("spec", path, kind, unit=unit)


def model_of(name: str, kind: Kind) -> Leaf:
    """A fact of the checkpoint, such as `model_type`."""
    return Leaf("model", name, kind)


def named(name: str, body: Expr, *settles: Expr) -> Named:
    """A resolved value, with what a user changes to change it."""
    return Named(name, body, tuple(leaf for part in settles for leaf in leaves_of(part)))


def at(role: str, body: Expr) -> At:
    """The same expression for another role; guard it with `declared` where the role may be missing."""
    return At(role, body)


def declared(role: str) -> Declared:
    """Whether the spec has this role."""
    return Declared(role)


def when(condition: Expr, then: Expr | Scalar | None, other: Expr | Scalar | None) -> Expr:
    """`then` under the condition, else `other`."""
    return When(condition, lift(then), lift(other))


def every(*terms: Expr) -> Expr:
    """All of them."""
    return Logic("&&", terms) if terms else TRUE


def some(*terms: Expr) -> Expr:
    """At least one of them."""
    return Logic("||", terms) if terms else FALSE


def lower(subject: Expr) -> Expr:
    """The text in lower case."""
    return Text("lower", subject)


def starts(subject: Expr, prefix: str) -> Expr:
    """Whether the text starts so; absent text does not."""
    return Text("starts", subject, prefix)


def contains(subject: Expr, piece: str) -> Expr:
    """Whether a text or a list of texts contains this; an absent one does not."""
    return Text("contains", subject, piece)


def size(subject: Expr) -> Expr:
    """Length of a text or a list; 0 when absent."""
    return Text("size", subject)


def number(subject: Expr) -> Expr:
    """The whole number that a text spells, of at most 18 digits; absent when it spells none."""
    return Text("number", subject)


def walk(expression: Expr) -> list[Expr]:
    """The expression and everything below it, each object once, what is used before what uses it."""
    seen: dict[int, Expr] = {}

    def visit(node: Expr) -> None:
        if id(node) not in seen:
            for part in node.parts:
                visit(part)
            seen[id(node)] = node

    visit(expression)
    return list(seen.values())


def leaves_of(expression: Expr) -> list[Leaf]:
    """Everything that an expression reads, each leaf once."""
    return [node for node in walk(expression) if isinstance(node, Leaf)]
