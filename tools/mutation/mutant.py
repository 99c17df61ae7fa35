"""Small mistakes that a person could make in a rule, as rules and resolved values beside the right ones.

A mutant has one mistake. It may sit anywhere in the condition of a rule or in the body of a resolved value, down to the
next resolved value, which has mutants of its own; or in the roles and versions that a rule is for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from epd_operator.rules.expression import (
    FALSE,
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
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from epd_operator.rules.ruleset import Ruleset

    Change = tuple[str, Expr]

_RELAXED: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_TURNED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXCHANGED: Final = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "//"}
_OTHER_ROLE: Final = {"prefill": "decode", "decode": "prefill", "encode": "prefill"}
_SHOWN: Final = 60


@dataclass(frozen=True, eq=False)
class RuleMutant:
    """A rule with one mistake.

    Attributes:
        change: What the mistake is.
        original: The right rule, as it stands in the table.
        rule: The wrong one.
    """

    change: str
    original: Rule
    rule: Rule

    @property
    def subject(self) -> str:
        """Whose mutant it is."""
        return self.original.id


@dataclass(frozen=True, eq=False)
class ValueMutant:
    """A resolved value with one mistake.

    Attributes:
        change: What the mistake is.
        original: The right value.
        body: What the wrong one is made by.
    """

    change: str
    original: Named
    body: Expr

    @property
    def subject(self) -> str:
        """Whose mutant it is."""
        return self.original.name


Mutant = RuleMutant | ValueMutant


def mutants(ruleset: Ruleset) -> list[Mutant]:
    """Every mutant of every rule and of every resolved value, in a fixed order."""
    return [
        *(mutant for rule in ruleset.rules for mutant in rule_mutants(rule, ruleset.versions)),
        *(
            ValueMutant(change, value, body)
            for _, value in sorted(ruleset.named().items())
            for change, body in changes(value.body)
        ),
    ]


def rule_mutants(rule: Rule, versions: tuple[str, ...]) -> Iterator[RuleMutant]:
    """The mutants of a rule: of its condition, of its roles and of its versions.

    Args:
        rule: The right rule.
        versions: Every version, in order.
    """
    for change, when in changes(rule.when):
        if when.kind == "bool" and not when.nullable:
            yield RuleMutant(change, rule, replace(rule, when=when))
    if rule.roles:
        for role in ROLES:
            without = tuple(name for name in rule.roles if name != role)
            if role not in rule.roles:
                yield RuleMutant(f"also for {role}", rule, replace(rule, roles=(*rule.roles, role)))
            elif without:  # No role at all would make it a rule about the spec as a whole.
                yield RuleMutant(f"not for {role}", rule, replace(rule, roles=without))
    yield from _version_mutants(rule, versions)


def _version_mutants(rule: Rule, versions: tuple[str, ...]) -> Iterator[RuleMutant]:
    """Where a rule begins and ends, as far as somebody stated it: an inferred rule has no recorded expectation."""
    first = versions.index(rule.since) if rule.since else 0
    last = versions.index(rule.until) if rule.until else len(versions)
    if first and versions[first] in rule.stated:
        yield RuleMutant("since one version earlier", rule, replace(rule, since=versions[first - 1]))
    if last < len(versions) and versions[last - 1] in rule.stated:
        later = versions[last + 1] if last + 1 < len(versions) else ""
        yield RuleMutant("until one version later", rule, replace(rule, until=later))
    if last - first > 1:
        if versions[first] in rule.stated:
            yield RuleMutant("since one version later", rule, replace(rule, since=versions[first + 1]))
        if versions[last - 1] in rule.stated:
            yield RuleMutant("until one version earlier", rule, replace(rule, until=versions[last - 1]))


def through(mutant: ValueMutant, rule: Rule) -> RuleMutant:
    """A rule as it would be with a wrong resolved value; every value on the way gets another name, and so its memo."""
    done: dict[int, Expr] = {id(mutant.original): Named(f"{mutant.original.name}'", mutant.body)}

    def with_wrong(node: Expr) -> Expr:
        if id(node) not in done:
            new = node
            for at, part in enumerate(node.parts):
                wrong = with_wrong(part)
                if wrong is not part:
                    new = Named(f"{node.name}'", wrong) if isinstance(node, Named) else _with_part(new, at, wrong)
            done[id(node)] = new
        return done[id(node)]

    return RuleMutant(mutant.change, rule, replace(rule, when=with_wrong(rule.when)))


def changes(expression: Expr) -> Iterator[Change]:
    """Every way to get an expression wrong in one place, with what was done there."""
    yield from _here(expression)
    for at, part in enumerate(() if isinstance(expression, Named) else expression.parts):
        for change, wrong in changes(part):
            try:
                yield change, _with_part(expression, at, wrong)
            except TypeError:
                continue  # The algebra itself refuses it, as it would the mistake.


def _here(node: Expr) -> Iterator[Change]:
    """The ways to get this one node wrong."""
    make = _MISTAKES.get(type(node))
    if make is not None:
        yield from make(node)


def _logic(node: Logic) -> Iterator[Change]:
    swapped = "||" if node.symbol == "&&" else "&&"
    yield f"{node.symbol} becomes {swapped}: {show(node)}", Logic(swapped, node.terms)  # type: ignore[arg-type] # of two
    for at, term in enumerate(node.terms):
        rest = (*node.terms[:at], *node.terms[at + 1 :])
        yield f"without {show(term)}", Logic(node.symbol, rest)
        if not isinstance(term, Not):
            yield f"not {show(term)}", Logic(node.symbol, (*node.terms[:at], Not(term), *node.terms[at + 1 :]))


def _not(node: Not) -> Iterator[Change]:
    yield f"no longer negated: {show(node.term)}", node.term


def _compare(node: Compare) -> Iterator[Change]:
    if node.symbol == "==":
        yield f"never: {show(node)}", FALSE
        yield f"always: {show(node)}", TRUE
    else:
        relaxed, turned = _RELAXED[node.symbol], _TURNED[node.symbol]
        yield f"{node.symbol} becomes {relaxed}: {show(node)}", Compare(relaxed, node.left, node.right)  # type: ignore[arg-type] # of four
        yield f"{node.symbol} becomes {turned}: {show(node)}", Compare(turned, node.left, node.right)  # type: ignore[arg-type] # of four


def _const(node: Const) -> Iterator[Change]:
    value = node.constant
    if isinstance(value, bool):
        yield f"{value} becomes {not value}", Const(not value, "bool")
    elif isinstance(value, int | float):
        for wrong in dict.fromkeys((value + 1, value - 1, value * 2)):
            if wrong != value:
                yield f"{value} becomes {wrong}", Const(wrong, node.kind)


def _one_of(node: OneOf) -> Iterator[Change]:
    for choice in node.choices:
        rest = tuple(other for other in node.choices if other != choice)
        yield f"{choice!r} is not a choice of {show(node.subject)}", OneOf(node.subject, rest)


def _when(node: When) -> Iterator[Change]:
    yield f"branches swapped: {show(node)}", When(node.condition, node.other, node.then)
    yield f"always the first: {show(node)}", _typed(node, node.then)
    yield f"always the second: {show(node)}", _typed(node, node.other)


def _since(node: Since) -> Iterator[Change]:
    yield f"as newer versions: {show(node)}", _typed(node, node.newer)
    yield f"as older versions: {show(node)}", _typed(node, node.older)


def _typed(node: When | Since, branch: Expr) -> Expr:
    """A branch alone, as kind and absence of the whole were: what stands around was built for these."""
    first = node.then if isinstance(node, When) else node.newer
    return branch if branch.kind == node.kind else When(TRUE, branch, first)


def _otherwise(node: Otherwise) -> Iterator[Change]:
    if not (isinstance(node.default, Const) and isinstance(node.default.constant, bool | int | float)):
        absent: Expr = Const(None, node.default.kind, nullable=True)
        yield f"no default: {show(node)}", Otherwise(node.subject, absent)


def _arithmetic(node: Arithmetic) -> Iterator[Change]:
    wrong = _EXCHANGED[node.symbol]
    yield f"{node.symbol} becomes {wrong}: {show(node)}", Arithmetic(wrong, node.left, node.right)  # type: ignore[arg-type] # of six


def _leaf(node: Leaf) -> Iterator[Change]:
    yield f"never given: {show(node)}", Const(None, node.kind, nullable=True)


def _text(node: Text) -> Iterator[Change]:
    if node.symbol == "lower":
        yield f"case counts: {show(node.subject)}", node.subject
    elif node.kind == "bool":
        yield f"never: {show(node)}", FALSE
        yield f"always: {show(node)}", TRUE


def _opaque(node: Opaque) -> Iterator[Change]:
    if node.kind == "bool" and not node.nullable:
        yield f"never: {node.name}", FALSE
        yield f"always: {node.name}", TRUE
    elif node.nullable:
        yield f"never found: {node.name}", Const(None, node.kind, nullable=True)


def _at(node: At) -> Iterator[Change]:
    yield f"at {_OTHER_ROLE[node.role]}: {show(node)}", At(_OTHER_ROLE[node.role], node.body)


def _declared(node: Declared) -> Iterator[Change]:
    yield f"always: {show(node)}", TRUE
    yield f"never: {show(node)}", FALSE


_MISTAKES: Final[dict[type[Expr], Callable[..., Iterator[Change]]]] = {
    Logic: _logic,
    Not: _not,
    Compare: _compare,
    Const: _const,
    OneOf: _one_of,
    When: _when,
    Since: _since,
    Otherwise: _otherwise,
    Arithmetic: _arithmetic,
    Leaf: _leaf,
    Text: _text,
    Opaque: _opaque,
    At: _at,
    Declared: _declared,
}


def _with_part(node: Expr, at: int, wrong: Expr) -> Expr:
    """The same expression with another part at a place of `parts`."""
    parts = [wrong if place == at else part for place, part in enumerate(node.parts)]
    return _REBUILT[type(node)](node, parts)


_REBUILT: Final[dict[type[Expr], Callable[[Any, list[Expr]], Expr]]] = {
    Logic: lambda node, parts: Logic(node.symbol, tuple(parts)),
    Not: lambda _, parts: Not(parts[0]),
    Compare: lambda node, parts: Compare(node.symbol, parts[0], parts[1]),
    OneOf: lambda node, parts: OneOf(parts[0], node.choices),
    When: lambda _, parts: When(*parts),
    Since: lambda node, parts: Since(node.rank, *parts),
    Otherwise: lambda _, parts: Otherwise(*parts),
    Arithmetic: lambda node, parts: Arithmetic(node.symbol, *parts),
    Text: lambda node, parts: Text(node.symbol, parts[0], node.argument),
    Opaque: lambda node, parts: replace(node, arguments=tuple(parts)),
    At: lambda node, parts: At(node.role, parts[0]),
}


def show(expression: Expr) -> str:
    """An expression in the notation of the rules, cut to a readable length."""
    text = _words(expression)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _words(node: Expr) -> str:
    describe = _DESCRIPTIONS.get(type(node))
    return type(node).__name__ if describe is None else describe(node)


_DESCRIPTIONS: Final[dict[type[Expr], Callable[[Any], str]]] = {
    Const: lambda node: repr(node.constant),
    Leaf: lambda node: node.name,
    Named: lambda node: node.name,
    Circumstance: lambda node: node.name,
    Declared: lambda node: f"has {node.role}",
    Logic: lambda node: f"({(' & ' if node.symbol == '&&' else ' | ').join(map(_words, node.terms))})",
    Not: lambda node: f"~{_words(node.term)}",
    Compare: lambda node: f"({_words(node.left)} {node.symbol} {_words(node.right)})",
    Arithmetic: lambda node: f"({_words(node.left)} {node.symbol} {_words(node.right)})",
    OneOf: lambda node: f"{_words(node.subject)} in {list(node.choices)}",
    When: lambda node: f"when({_words(node.condition)}, {_words(node.then)}, {_words(node.other)})",
    Since: lambda node: f"since({_words(node.newer)}, {_words(node.older)})",
    Otherwise: lambda node: f"{_words(node.subject)} or {_words(node.default)}",
    Text: lambda node: f"{node.symbol}({_words(node.subject)}{node.argument and ', ' + repr(node.argument)})",
    Opaque: lambda node: f"{node.name}({', '.join(map(_words, node.arguments))})",
    At: lambda node: f"{node.role}.{_words(node.body)}",
}
