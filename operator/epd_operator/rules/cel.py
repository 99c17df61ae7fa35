"""Folded expressions as CEL, the language of admission policies.

The tricky idea: in CEL an absent value is `null`, and what may be null has the type `dyn`, so that the type checker
lets it be compared. Everything that CEL would answer with an error is avoided: order and arithmetic ask for null first,
a division asks for zero, and what might leave 64 bits is computed with smaller operands.
What is needed more than once becomes a variable of the policy, which the API server evaluates when it is first asked
for, and once.

The meaning is that of `Expr.value`, but for two things nobody writes: arithmetic takes whole numbers beyond 2**31 for
2**31 where the result might not fit, and `lower` knows ASCII only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from epd_operator.rules.expression import (
    NUMBER,
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
    Otherwise,
    Text,
    When,
)
from epd_operator.rules.fold import Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epd_operator.rules.expression import Kind

LARGEST: Final = 2**31
"""Where a result might leave 64 bits, operands count as at most this, and at least its opposite."""

NULL: Final = "dyn(null)"
_TERNARY, _OR, _AND, _RELATION, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)
_LETTERS: Final = {"flag": "f", "env": "v", "field": "o"}
_NAME, _OVERHEAD = 14, 48
"""Characters of a reference to a variable, and of its definition in a policy beyond its expression."""


def literal(value: Any) -> str:
    """A constant as CEL spells it; items of a list all have one type."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def quoted(text: str) -> str:
    """A string literal."""
    escaped = (
        text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    return f"'{escaped}'"


def identifier(*parts: str) -> str:
    """Parts joined to a name that CEL takes."""
    return re.sub(r"\W", "_", "_".join(part for part in parts if part), flags=re.ASCII)


@dataclass(eq=False)
class Program:
    """Variables of a policy, and expressions over them; `platform` and `rank` are the caller's to define.

    Attributes:
        leaf: CEL of a leaf in a role, of type dyn and null when absent.
        prefix: How the variables of a role begin.
        variables: CEL by name, what is used before what uses it.
    """

    leaf: Callable[[str, Leaf], str]
    prefix: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _uses: dict[int, int] = field(default_factory=dict)
    _bounds: dict[int, int] = field(default_factory=dict)
    _cuts: dict[int, str] = field(default_factory=dict)
    _kept: list[Expr] = field(default_factory=list)

    def expect(self, expression: Expr) -> None:
        """Announce an expression that will be printed: only what was announced is seen to be shared."""
        self._kept.append(expression)
        self._uses[id(expression)] = self._uses.get(id(expression), 0) + 1
        if self._uses[id(expression)] == 1:
            for part in expression.parts:
                self.expect(part)

    def text(self, node: Expr, level: int = _TERNARY) -> str:
        """An expression, in parentheses where a context of this level needs them."""
        text, own = self._named(node) or self._shared(node)
        return f"({text})" if own < level else text

    def atom(self, node: Expr) -> str:
        """An expression as something short that may be repeated: a constant or a variable."""
        if isinstance(node, Const):
            return self.text(node, _UNARY)
        return (self._named(node) or (self._define(node, self._printed(node)[0]), _ATOM))[0]

    def define(self, name: str, text: str) -> str:
        """Add a variable and say how it is called in an expression.

        Raises:
            ValueError: The name is taken by another text.
        """
        if self.variables.setdefault(name, text) != text:
            raise ValueError(f"two variables of a policy are called {name}")
        return f"variables.{name}"

    def _named(self, node: Expr) -> tuple[str, int] | None:
        if id(node) in self._names:
            return self._names[id(node)], _ATOM
        match node:
            case Circumstance() | Rank():
                return f"variables.{'rank' if isinstance(node, Rank) else 'platform'}", _ATOM
            case At(role=role, body=Leaf() as leaf):
                name = identifier(self.prefix[role] + _LETTERS[leaf.source], leaf.name, leaf.unit)
                return self._define(node, self.leaf(role, leaf), name), _ATOM
            case At(role=role, body=Named() as value):
                text = self.text(value.body)
                return self._define(node, text, identifier(self.prefix[role], value.name)), _ATOM
            case Leaf():
                return self._define(node, self.leaf("", node), identifier("spec", node.name, node.unit)), _ATOM
            case _:
                return None

    def _shared(self, node: Expr) -> tuple[str, int]:
        text, own = self._printed(node)
        uses = self._uses.get(id(node), 0)
        if (uses - 1) * len(text) > uses * _NAME + _OVERHEAD:
            return self._define(node, text), _ATOM
        return text, own

    def _define(self, node: Expr, text: str, name: str = "") -> str:
        self._kept.append(node)
        self._names[id(node)] = self.define(name or f"x{len(self.variables)}", text)
        return self._names[id(node)]

    def _printed(self, node: Expr) -> tuple[str, int]:
        match node:
            case Const():
                negative = isinstance(node.constant, int | float) and node.constant < 0
                return literal(node.constant), _UNARY if negative else _ATOM
            case Declared():
                return f"has(object.spec.roles.{node.role})", _ATOM
            case When() | Otherwise():
                return self._choice(node), _TERNARY
            case Arithmetic():
                return self._arithmetic(node)
            case Text():
                return self._string(node)
            case _:
                return self._condition(node)

    def _condition(self, node: Expr) -> tuple[str, int]:
        match node:
            case Compare():
                return (self._equal(node, "=="), _RELATION) if node.symbol == "==" else self._order(node)
            case OneOf():
                return self._member(node), _RELATION
            case Logic():
                level = _OR if node.symbol == "||" else _AND
                return f" {node.symbol} ".join(self.text(term, level + 1) for term in node.terms), level
            case Not(term=Compare(symbol="==") as equality) if id(equality) not in self._names:
                return self._equal(equality, "!="), _RELATION
            case Not():
                return f"!{self.text(node.term, _ATOM)}", _UNARY
            case _:
                raise TypeError(f"not folded: {node!r}")

    def _choice(self, node: When | Otherwise) -> str:
        if isinstance(node, Otherwise):
            given = self._branch(node.subject, node, _OR)
            return f"{self.atom(node.subject)} != null ? {given} : {self._branch(node.default, node)}"
        # The other branch may be a choice, too: CEL reads a chain of these without parentheses.
        then, other = self._branch(node.then, node, _OR), self._branch(node.other, node)
        return f"{self.text(node.condition, _OR)} ? {then} : {other}"

    def _branch(self, branch: Expr, whole: Expr, level: int = _TERNARY) -> str:
        if whole.kind == "float" and branch.kind == "int":
            if branch.nullable:
                atom = self.atom(branch)
                return f"({atom} == null ? {NULL} : dyn(double({atom})))"
            return f"dyn(double({self.text(branch)}))"
        if whole.nullable and not branch.nullable:
            return f"dyn({self.text(branch)})"
        return self.text(branch, level)

    def _equal(self, node: Compare, symbol: str) -> str:
        left, right = node.left, node.right
        if right.kind == "none":
            return f"{self.text(left, _SUM)} {symbol} null"
        if left.kind == "none":
            return f"{self.text(right, _SUM)} {symbol} null"
        if left.kind != right.kind:
            return f"dyn({self.text(left)}) {symbol} dyn({self.text(right)})"
        return f"{self.text(left, _SUM)} {symbol} {self.text(right, _SUM)}"

    def _order(self, node: Compare) -> tuple[str, int]:
        texts = []
        guards = []
        for side in (node.left, node.right):
            text = self.atom(side) if side.nullable else self.text(side, _SUM)
            if side.nullable:
                guards.append(f"{text} != null && ")
            texts.append(f"double({text})" if side.kind == "int" and node.left.kind != node.right.kind else text)
        return f"{''.join(guards)}{texts[0]} {node.symbol} {texts[1]}", _AND if guards else _RELATION

    def _member(self, node: OneOf) -> str:
        kind = node.subject.kind
        choices = [choice for choice in node.choices if _comparable(choice, kind)]
        if kind in {"int", "float"}:
            choices = sorted(float(choice) if kind == "float" else int(choice) for choice in choices)
        if not choices:
            return "false"
        return f"{self.text(node.subject, _SUM)} in {literal(choices)}"

    def _arithmetic(self, node: Arithmetic) -> tuple[str, int]:
        guards = [f"{self.atom(side)} == null" for side in (node.left, node.right) if side.nullable]
        if guards:
            return f"{' || '.join(guards)} ? {NULL} : dyn({self._plain(node)[0]})", _TERNARY
        return self._plain(node)

    def _plain(self, node: Arithmetic) -> tuple[str, int]:
        if node.symbol in {"//", "%"}:
            return self._division(node)
        level = _PRODUCT if node.symbol in {"*", "/"} else _SUM
        left, right = self._operand(node, node.left, level), self._operand(node, node.right, level + 1)
        text = f"{left} {node.symbol} {right}"
        if node.symbol != "/":
            return text, level
        if isinstance(node.right, Const):
            return (text, level) if node.right.constant else ("0.0", _ATOM)
        return f"{self.atom(node.right)} == 0 ? 0.0 : {text}", _TERNARY

    def _operand(self, node: Arithmetic, side: Expr, level: int) -> str:
        if node.kind != side.kind:
            return f"double({self.atom(side) if side.nullable else self.text(side)})"
        if node.kind == "int" and _leaves_64_bits(node, self._bounds) and bound(side, self._bounds) > LARGEST:
            return self._cut(side)
        return self.atom(side) if side.nullable or level == _ATOM else self.text(side, level)

    def _cut(self, side: Expr) -> str:
        if id(side) not in self._cuts:
            atom = self.atom(side)
            text = f"{atom} > {LARGEST} ? {LARGEST} : {atom} < -{LARGEST} ? -{LARGEST} : {atom}"
            self._cuts[id(side)] = self.define(f"x{len(self.variables)}", text)
        return self._cuts[id(side)]

    def _division(self, node: Arithmetic) -> tuple[str, int]:
        """CEL rounds towards zero; Python rounds down, and its remainder has the sign of the divisor."""
        left, right = (self._operand(node, side, _ATOM) for side in (node.left, node.right))
        guard = "" if isinstance(node.right, Const) and node.right.constant else f"{right} == 0 ? 0 : "
        if isinstance(node.right, Const) and not node.right.constant:
            return "0", _ATOM
        if node.symbol == "%":
            text, level = f"({left} % {right} + {right}) % {right}", _PRODUCT
        else:
            text, level = f"({left} - ({left} % {right} + {right}) % {right}) / {right}", _PRODUCT
        return guard + text, _TERNARY if guard else level

    def _string(self, node: Text) -> tuple[str, int]:
        nullable = node.subject.nullable
        subject = self.atom(node.subject) if nullable else self.text(node.subject, _ATOM)
        match node.symbol:
            case "size":
                return (f"{subject} == null ? 0 : size({subject})", _TERNARY) if nullable else (f"size({subject})", 7)
            case "contains" | "starts":
                method = "contains" if node.symbol == "contains" else "startsWith"
                text, level = f"{subject}.{method}({quoted(node.argument)})", _ATOM
                if node.subject.kind == "list":
                    text, level = f"{quoted(node.argument)} in {subject}", _RELATION
                return (f"{subject} != null && {text}", _AND) if nullable else (text, level)
            case "lower":
                text = f"{subject}.lowerAscii()"
                return (f"{subject} == null ? {NULL} : dyn({text})", _TERNARY) if nullable else (text, _ATOM)
            case "number":
                atom = self.atom(node.subject)
                given = f"{atom} != null && " if nullable else ""
                return f"{given}{atom}.matches('^{NUMBER}$') ? dyn(int({atom})) : {NULL}", _TERNARY


def bound(node: Expr, known: dict[int, int]) -> int:
    """A number that the absolute value of a whole-number expression never exceeds.

    Args:
        node: The expression.
        known: The bounds found so far, by id; the expressions must outlive it.
    """
    if id(node) not in known:
        known[id(node)] = _bound(node, known)
    return known[id(node)]


def _bound(node: Expr, known: dict[int, int]) -> int:
    if isinstance(node, Const):
        return abs(node.constant) if isinstance(node.constant, int) else 0
    if isinstance(node, Arithmetic):
        result = _result(node, known)
        return result if result < 2**63 else _result(node, known, LARGEST)
    if isinstance(node, At | Named | When | Otherwise):
        return max(bound(part, known) for part in node.parts if part.kind in {"int", "none"})
    if isinstance(node, Text) and node.symbol == "number":
        return 10**18
    return 2**63 if node.kind == "int" else 0


def _result(node: Arithmetic, known: dict[int, int], most: int = 2**64) -> int:
    """The bound of a result whose operands are cut to `most`, and of what CEL computes on the way to it."""
    left, right = (min(bound(side, known), most) for side in (node.left, node.right))
    return {"*": left * right, "//": left + 2 * right, "%": 2 * right}.get(node.symbol, left + right)


def _leaves_64_bits(node: Arithmetic, known: dict[int, int]) -> bool:
    return _result(node, known) >= 2**63


def _comparable(choice: Any, kind: Kind) -> bool:
    if kind in {"int", "float"}:
        whole = isinstance(choice, int) and not isinstance(choice, bool)
        return whole or (isinstance(choice, float) and (kind == "float" or choice.is_integer()))
    return isinstance(choice, bool if kind == "bool" else str)
