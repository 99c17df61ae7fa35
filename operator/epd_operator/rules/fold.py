"""Partial evaluation: what is left of an expression once role, checkpoint and perhaps version are known.

The tricky idea: results are hash-consed, so two expressions that mean the same by construction become one object, and
a printer can name every shared part once. A folded expression has a small vocabulary: `At` stands only
right above a leaf or a resolved value, and there are no `Since`, `Opaque`, roles, or facts of the
checkpoint; where the version stays open, `RANK` stands for it.

An `Opaque` is replaced by what it gives when nothing is written, and by its `blind` value otherwise; which ones were
met is kept beside the result, so that nobody refuses a spec because of a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from epd_operator.rules.expression import (
    FALSE,
    NOTHING,
    TRUE,
    Arithmetic,
    At,
    Circumstance,
    Compare,
    Const,
    Declared,
    Expr,
    Leaf,
    Logic,
    Named,
    Not,
    OneOf,
    Opaque,
    Otherwise,
    Since,
    Text,
    When,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epd_operator.rules.expression import EvaluationScope, Kind, Value

REQUIRED: Final = frozenset({"prefill", "decode"})
"""Roles that every spec has."""
_KINDS: Final[Mapping[type, Kind]] = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list"}


@dataclass(frozen=True, eq=False)
class Rank(Expr):
    """Place of the judged version in the order of profiles."""

    kind: Kind = "int"
    nullable: bool = False

    @override
    def value(self, scope: EvaluationScope) -> Value:
        return scope.rank


RANK: Final = Rank()


@dataclass(frozen=True, eq=False)
class Blind:
    """A function that was replaced by a guess.

    Attributes:
        name: What the function finds out.
        when: Under which condition the guess may be wrong, folded.
    """

    name: str
    when: Expr


@dataclass(frozen=True)
class Folded:
    """A folded expression.

    Attributes:
        expr: The expression.
        blind: The guesses that it rests on.
    """

    expr: Expr
    blind: frozenset[Blind] = frozenset()


class Folder:
    """Folds expressions of one engine; the same expression gives the same object.

    Args:
        rank: Place of the version in the order of profiles; None keeps the question open, as `RANK`.
        checkpoint: Facts of the checkpoint.
        owned: Flags that the operator sets, as expressions over the spec.
        knows: Whether a role takes a flag from the user.
    """

    def __init__(
        self,
        rank: int | None,
        checkpoint: Mapping[str, Value],
        owned: Mapping[str, Expr],
        knows: Callable[[str, str], bool],
    ) -> None:
        self._rank = rank
        self._checkpoint = checkpoint
        self._owned = owned
        self._knows = knows
        self._folded: dict[tuple[int, str], Folded] = {}
        self._interned: dict[tuple[Any, ...], Expr] = {}
        self._blind: dict[tuple[int, str], Blind] = {}
        self._kept: list[Expr] = []
        self._by_type: Mapping[type[Expr], Callable[[Any, str], Folded]] = {
            Leaf: self._leaf,
            Since: self._since,
            Named: self._named,
            When: self._when,
            Otherwise: self._otherwise,
            Compare: self._compare,
            OneOf: self._one_of,
            Logic: self._logic,
            Not: self._not,
            Arithmetic: self._arithmetic,
            Text: self._text,
            Opaque: self._opaque,
        }

    def fold(self, expression: Expr, role: str) -> Folded:
        """What is left of an expression in a role."""
        key = (id(expression), role)
        if key not in self._folded:
            self._kept.append(expression)  # an id is only a name while its object lives
            self._folded[key] = self._fold(expression, role)
        return self._folded[key]

    def _fold(self, node: Expr, role: str) -> Folded:
        match node:
            case Const():
                return Folded(self.const(node.constant))
            case Circumstance():
                return Folded(self.const(role) if node.name == "role" else self._intern(node, node.name))
            case Declared():
                return Folded(self.const(True) if node.role in REQUIRED else self._intern(node, node.role))
            case At():
                return self.fold(node.body, node.role)
            case _:
                return self._by_type[type(node)](node, role)

    def _since(self, node: Since, role: str) -> Folded:
        if self._rank is None and node.rank > 0:
            reached = Folded(self.compare(">=", RANK, self.const(node.rank)))
        else:
            reached = Folded(self.const(self._rank is None or self._rank >= node.rank))
        return self._chosen(reached, node.newer, node.older, role)

    def _when(self, node: When, role: str) -> Folded:
        return self._chosen(self.fold(node.condition, role), node.then, node.other, role)

    def _chosen(self, condition: Folded, then: Expr, other: Expr, role: str) -> Folded:
        if isinstance(condition.expr, Const):
            chosen = self.fold(then if condition.expr.constant else other, role)
            return Folded(chosen.expr, condition.blind | chosen.blind)
        parts = self.fold(then, role), self.fold(other, role)
        return _resting(self.when(condition.expr, *(part.expr for part in parts)), (condition, *parts))

    def _otherwise(self, node: Otherwise, role: str) -> Folded:
        subject = self.fold(node.subject, role)
        if not subject.expr.nullable:
            return subject
        default = self.fold(node.default, role)
        return _resting(self.otherwise(subject.expr, default.expr), (subject, default))

    def _compare(self, node: Compare, role: str) -> Folded:
        left, right = self.fold(node.left, role), self.fold(node.right, role)
        return _resting(self.compare(node.symbol, left.expr, right.expr), (left, right))

    def _one_of(self, node: OneOf, role: str) -> Folded:
        subject = self.fold(node.subject, role)
        return _resting(self.one_of(subject.expr, node.choices), (subject,))

    def _not(self, node: Not, role: str) -> Folded:
        term = self.fold(node.term, role)
        return _resting(self.negate(term.expr), (term,))

    def _arithmetic(self, node: Arithmetic, role: str) -> Folded:
        left, right = self.fold(node.left, role), self.fold(node.right, role)
        return _resting(self._calculated(node, left.expr, right.expr), (left, right))

    def _text(self, node: Text, role: str) -> Folded:
        subject = self.fold(node.subject, role)
        return _resting(self._read(node, subject.expr), (subject,))

    def const(self, value: Value) -> Expr:
        """A constant."""
        if value is None:
            return self._intern(NOTHING, None)
        if isinstance(value, bool):
            return self._intern(TRUE if value else FALSE, value)
        return self._intern(Const(value, _KINDS[type(value)]), type(value), repr(value))

    def when(self, condition: Expr, then: Expr, other: Expr) -> Expr:
        """A folded choice between folded values; the condition is not a constant."""
        if then is other:
            return then
        if then.kind == "bool" and other.kind == "bool" and not then.nullable and not other.nullable:
            if isinstance(then, Const):
                return self.some((condition, other)) if then.constant else self.every((self.negate(condition), other))
            if isinstance(other, Const):
                return self.some((self.negate(condition), then)) if other.constant else self.every((condition, then))
        if isinstance(condition, Not):
            return self.when(condition.term, other, then)
        return self._intern(When(condition, then, other), id(condition), id(then), id(other))

    def otherwise(self, subject: Expr, default: Expr) -> Expr:
        """A folded value with a folded default."""
        if isinstance(subject, Const):
            return default if subject.constant is None else subject
        if not subject.nullable:
            return subject
        if isinstance(subject, When) and _branches(subject):
            return self.when(
                subject.condition, self.otherwise(subject.then, default), self.otherwise(subject.other, default)
            )
        if isinstance(default, Const) and default.kind == "bool":
            same = self.compare("==", subject, self.const(not default.constant))
            return self.negate(same) if default.constant else same
        return self._intern(Otherwise(subject, default), id(subject), id(default))

    def absent(self, subject: Expr) -> Expr:
        """Whether a folded value is missing."""
        return self.compare("==", subject, self.const(None))

    def compare(self, symbol: Any, left: Expr, right: Expr) -> Expr:
        """A folded comparison of folded values."""
        if isinstance(left, Const) and isinstance(right, Const):
            absent = symbol != "==" and None in (left.constant, right.constant)
            return self.const(False if absent else _evaluated(Compare(symbol, left, right)))
        if left is right and symbol == "==":
            return self.const(True)
        if isinstance(left, Const):
            return self._against(symbol, right, left, mirrored=True)
        if isinstance(right, Const):
            return self._against(symbol, left, right, mirrored=False)
        return self._intern(Compare(symbol, left, right), symbol, id(left), id(right))

    def _against(self, symbol: Any, subject: Expr, fixed: Const, *, mirrored: bool) -> Expr:
        if fixed.constant is None and (symbol != "==" or not subject.nullable):
            return self.const(False)
        if fixed.kind == "bool" and not subject.nullable:
            return subject if fixed.constant else self.negate(subject)
        if isinstance(subject, When) and _branches(subject):
            sides = [(fixed, branch) if mirrored else (branch, fixed) for branch in (subject.then, subject.other)]
            return self.when(subject.condition, *(self.compare(symbol, *side) for side in sides))
        if isinstance(subject, Otherwise) and isinstance(subject.default, Const):
            given = self._against(symbol, subject.subject, fixed, mirrored=mirrored)
            both = (fixed, subject.default) if mirrored else (subject.default, fixed)
            return self._unless_absent(subject, self.compare(symbol, *both), given)
        pair: tuple[Expr, Expr] = (fixed, subject) if mirrored and symbol != "==" else (subject, fixed)
        return self._intern(Compare(symbol, *pair), symbol, *map(id, pair))

    def _unless_absent(self, value: Otherwise, by_default: Expr, given: Expr) -> Expr:
        # What is absent fulfils nothing, so without the default's help there is nothing to ask.
        return given if by_default is self.const(False) else self.when(self.absent(value.subject), by_default, given)

    def one_of(self, subject: Expr, choices: tuple[Any, ...]) -> Expr:
        """Whether a folded value is one of some choices."""
        if isinstance(subject, Const) or not choices:
            return self.const(_constant(subject) in choices)
        if isinstance(subject, When) and _branches(subject):
            return self.when(subject.condition, self.one_of(subject.then, choices), self.one_of(subject.other, choices))
        if isinstance(subject, Otherwise) and isinstance(subject.default, Const):
            by_default = self.one_of(subject.default, choices)
            return self._unless_absent(subject, by_default, self.one_of(subject.subject, choices))
        if len(choices) == 1:
            return self.compare("==", subject, self.const(choices[0]))
        return self._intern(OneOf(subject, choices), id(subject), choices, *map(type, choices))

    def negate(self, term: Expr) -> Expr:
        """The folded opposite of a folded condition."""
        if isinstance(term, Const):
            return self.const(not term.constant)
        if isinstance(term, Not):
            return term.term
        return self._intern(Not(term), id(term))

    def every(self, terms: Iterable[Expr]) -> Expr:
        """All of some folded conditions."""
        return self._joined("&&", terms)

    def some(self, terms: Iterable[Expr]) -> Expr:
        """Any of some folded conditions."""
        return self._joined("||", terms)

    def _joined(self, symbol: Any, terms: Iterable[Expr]) -> Expr:
        decisive = symbol == "||"
        kept: dict[int, Expr] = {}
        for term in terms:
            for flat in term.terms if isinstance(term, Logic) and term.symbol == symbol else (term,):
                if isinstance(flat, Const):
                    if flat.constant is decisive:
                        return self.const(decisive)
                elif id(self.negate(flat)) in kept:
                    return self.const(decisive)
                else:
                    kept[id(flat)] = flat
        if len(kept) <= 1:
            return next(iter(kept.values()), self.const(not decisive))
        return self._intern(Logic(symbol, tuple(kept.values())), symbol, *kept)

    def _intern(self, node: Expr, *key: Any) -> Expr:
        return self._interned.setdefault((type(node), *key), node)

    def _leaf(self, leaf: Leaf, role: str) -> Folded:
        if leaf.source == "model":
            return Folded(self.const(self._checkpoint.get(leaf.name)))
        if leaf.source == "flag":
            if leaf.name in self._owned:
                return self.fold(self._owned[leaf.name], role)
            if not self._knows(role, leaf.name):
                return Folded(self.const(None))
        one = self._intern(leaf, leaf.source, leaf.name, leaf.kind, leaf.unit)
        return Folded(one if leaf.source == "spec" else self._intern(At(role, one), role, id(one)))

    def _named(self, node: Named, role: str) -> Folded:
        body = self.fold(node.body, role)
        if not body.expr.parts or isinstance(body.expr, At):
            return body
        inner = self._intern(replace(node, body=body.expr), role, node.name)
        return Folded(self._intern(At(role, inner), role, id(inner)), body.blind)

    def _logic(self, node: Logic, role: str) -> Folded:
        terms = [self.fold(term, role) for term in node.terms]
        for term in terms:
            decisive = isinstance(term.expr, Const) and term.expr.constant is (node.symbol == "||")
            if decisive and not term.blind:
                return term  # the others' guesses do not matter
        return _resting(self._joined(node.symbol, (term.expr for term in terms)), terms)

    def _calculated(self, node: Arithmetic, left: Expr, right: Expr) -> Expr:
        if any(isinstance(side, Const) and side.constant is None for side in (left, right)):
            return self.const(None)
        if isinstance(left, Const) and isinstance(right, Const):
            return self.const(_evaluated(Arithmetic(node.symbol, left, right)))
        if isinstance(right, Const) and left.kind == node.kind and (node.symbol, right.constant) in _NEUTRAL:
            return left
        return self._intern(Arithmetic(node.symbol, left, right), node.symbol, id(left), id(right))

    def _read(self, node: Text, subject: Expr) -> Expr:
        if isinstance(subject, Const):
            return self.const(_evaluated(replace(node, subject=Const(subject.constant, node.subject.kind))))
        return self._intern(Text(node.symbol, subject, node.argument), node.symbol, id(subject), node.argument)

    def _opaque(self, node: Opaque, role: str) -> Folded:
        arguments = [self.fold(argument, role) for argument in node.arguments]
        if all(isinstance(argument.expr, Const) for argument in arguments):
            constant = self.const(node.function(*(_constant(argument.expr) for argument in arguments)))
            return _resting(constant, arguments)
        written = self.some(self.negate(self.absent(argument.expr)) for argument in arguments)
        blind = self._blind.setdefault((id(node), role), Blind(node.name, written))
        guess = self.const(node.blind)
        if not isinstance(written, Const):
            guess = self.when(written, guess, self.const(node.function(*(None for _ in arguments))))
        below = _resting(guess, arguments)
        return Folded(guess, below.blind | {blind})


def _resting(expr: Expr, parts: Iterable[Folded]) -> Folded:
    return Folded(expr, frozenset[Blind]().union(*(part.blind for part in parts)))


def _constant(node: Expr) -> Any:
    return node.constant if isinstance(node, Const) else None


def _branches(node: When) -> bool:
    return isinstance(node.then, Const) or isinstance(node.other, Const)


def _evaluated(node: Expr) -> Value:
    return node.value(None)  # type: ignore[arg-type] # only constants are below, so no scope is ever asked


_NEUTRAL: Final = {("+", 0), ("-", 0), ("*", 1), ("//", 1)}
