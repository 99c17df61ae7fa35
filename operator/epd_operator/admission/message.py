"""What a finding says, in CEL: the text of `Finding`, put together by the API server.

The tricky idea: spelling out in every rule and role how a flag is shown would triple the policy. So a broken rule
yields nothing but its role and id; the text of a rule stands once, in a small notation, and one expression, `lines`,
fills them in. The notation: parts are separated by line breaks. A part that begins with `@` is a side: alternatives
separated by `|`, then `~` and the effective value, if any. A part that begins with `~` is a value. A side is a flag
`p.tp-size`, a variable `p$NAME`, or a field `p/nodes`; the letter is a role, `_` the role that broke the rule.
A part that begins with `&` is a quantity that no field sets by itself: what settles it as in a side, `~`, its value,
`~` and its name. A side is shown like that, too, where its first alternative is not written and another one is.
"""

from __future__ import annotations

import string
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from epd_operator.rules.cel import NULL, Program, quoted
from epd_operator.rules.expression import At, Circumstance, Declared, Expr, Leaf, Named
from epd_operator.rules.side import resolved_from, settling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from epd_operator.rules.fold import Folder
    from epd_operator.rules.rule import Rule

_FORMAT: Final = string.Formatter()
_GROUP: Final = 100
"""Rules whose texts are in one map: an expression has at most 100,000 characters."""
_SPEC: Final = "s"
"""Letter of what belongs to no role."""
_ALONE: Final = quoted("~")
"""Stands for the value of what is there without a value worth showing."""
_IS_SIDE: Final = "part.startsWith('@') || part.startsWith('&')"
_OUTSIDE: Final = "o"
"""Letter of what is not a field of the spec."""
_WIDTH: Final = 80
"""Characters of a value in a message, as in `finding.plain`."""
_ITEMS: Final = 16
"""Items of a list in a message: to spell long ones takes the API server seconds."""
_FIRST: Final = str(list(range(_ITEMS)))


def cut(text: str) -> str:
    """CEL of a text, cut to a readable length so that it leaves room for other findings."""
    return f"[{text}].map(t, size(t) <= {_WIDTH} ? t : t.substring(0, {_WIDTH - 3}) + '...')[0]"


def spelled(value: str) -> str:
    """CEL of the text of a value of any type that `is_plain`; `value` may be repeated."""
    items = f"{_FIRST}.filter(i, i < size({value})).map(i, {_text(f'{value}[i]')}).join(', ')"
    more = f"(size({value}) > {_ITEMS} ? ', ...' : '')"
    return f"(type({value}) == list ? '[' + {items} + {more} + ']' : {_text(value)})"


def is_plain(value: str) -> str:
    """CEL of whether a value is a scalar, or a list that begins with scalars."""
    items = f"{_FIRST}.all(i, i >= size({value}) || {is_scalar(f'{value}[i]')})"
    return f"(type({value}) == list ? {items} : {is_scalar(value)})"


def is_scalar(value: str) -> str:
    """CEL of whether a value is a truth value, a number or a text."""
    return f"({' || '.join(f'type({value}) == {kind}' for kind in ('bool', 'int', 'double', 'string'))})"


def _shown(value: str, absent: str) -> str:
    """CEL of the text of a value that may be null."""
    return f"[{value}].map(v, v == null ? {quoted(absent)} : {cut(spelled('v'))})[0]"


def _text(value: str) -> str:
    """CEL of the text of a scalar: six digits of a fraction are plenty."""
    bands = "".join(
        f"{value} < {10**digits}.0 ? double(int({value} * {10 ** (6 - digits)}.0 + 0.5)) / {10 ** (6 - digits)}.0 : "
        for digits in range(7)
    )
    return f"(type({value}) == double && {value} >= 0.1 ? string({bands}{value}) : string({value}))"


def lines(result: str, maps: Sequence[str], prefix: Mapping[str, str]) -> str:
    """CEL of the lines of findings.

    Args:
        result: CEL of the list of findings, each a letter, a dot and the id of a rule.
        maps: CEL of the maps that hold the texts, see `Wording.define`.
        prefix: How the variables of a role begin, one letter.
    """
    roles = {short: f"spec.roles.{role}." for role, short in prefix.items()}
    places = _map({**roles, _SPEC: "spec.", _OUTSIDE: ""}, quoted)
    flags, good, variables, values = (
        _map({short: f"variables.{short}{end}" for short in shorts}, str)
        for end, shorts in (("", roles), ("_good", roles), ("_env", roles), ("_shown", (*roles, _SPEC, _OUTSIDE)))
    )
    letter = "(it.charAt(0) == '_' ? f.charAt(0) : it.charAt(0))"
    key = "it.substring(2)"
    place = f"(it.charAt(1) == '.' ? 'args.' : it.charAt(1) == '$' ? 'env.' : '') + {key}"
    flag = f"({key} in {good}[{letter}] ? {flags}[{letter}][{key}] : {NULL})"
    variable = f"({key} in {variables}[{letter}] ? dyn({variables}[{letter}][{key}]) : {NULL})"
    value = f"it.charAt(1) == '.' ? {flag} : it.charAt(1) == '$' ? {variable} : {values}[{letter}][it.substring(1)]"
    alternatives = (
        f"part.split('~')[0].substring(1).split('|').map(it, [{places}[{letter}] + {place}, {_shown(value, '')}])"
    )
    effect = _shown(f"{values}[{letter}][it.substring(1)]", "")
    effective = f"(part.contains('~') ? [part.split('~')[1]].map(it, {effect})[0] : '')"
    derived = (
        "(w.exists(it, it[1] != '') ? w.filter(it, it[1] != '').map(it, it[0] + (it[1] == '~' ? '' : ' = ' + it[1]))"
        f".join(', ') : w[0][0] + ' not set') + [{effective}].map(it, it == '' || "
        "w.filter(it, it[1] != '').map(it, it[1]) == [it] ? '' : "
        "', so ' + part.split('~')[2] + ' = ' + it)[0]"
    )
    plain = (
        f"[[dyn({effective}), dyn(w[0])]].map(it, it[1][0] + (it[1][1] == '' ? "
        "' not set' + (it[0] == '' ? '' : ', so ' + it[0]) : it[1][1] == '~' ? '' : ' = ' + it[1][1] + "
        "(it[0] == '' || it[0] == it[1][1] ? '' : ', which becomes ' + it[0])))[0]"
    )
    elsewhere = "w[0][1] == '' && w.exists(it, it[1] != '')"
    shape = f"part.startsWith('&') || ({elsewhere}) ? {derived} : {plain}"
    sides = f"parts.filter(part, {_IS_SIDE}).map(part, [{alternatives}].map(w, {shape})[0]).join(', ')"
    filled = _shown(f"{values}[f.charAt(0)][it.substring(2)]", "None")
    text = f"[part].map(it, it.startsWith('~') ? {filled} : it)[0]"
    rest = f"parts.filter(part, !({_IS_SIDE})).map(part, {text}).join('')"
    keys = [(key, held) for key in ("f", "f.substring(2)") for held in maps]
    texts = "".join(f"{key} in {held} ? {held}[{key}] : " for key, held in keys)
    line = f"'[' + f.substring(2).split('#')[0] + '] ' + {sides} + {rest}"
    return f"{result}.map(f, [({texts}'').split('\\n')].map(parts, {line})[0])"


class Wording:
    """Texts of one version's findings.

    Args:
        program: Gets the variables that the texts need.
        folder: Folds the values that are shown.
        place: Where a user changes a leaf in a role.
    """

    def __init__(self, program: Program, folder: Folder, place: Callable[[str, Leaf], str]) -> None:
        self._program = program
        self._folder = folder
        self._place = place
        self._words: dict[str, dict[str, str]] = {}
        self._keys: dict[int, str] = {}
        self._nameless: dict[int, int] = {}
        self._shown: dict[str, dict[str, str]] = {letter: {} for letter in (*program.prefix.values(), _SPEC, _OUTSIDE)}

    def finding(self, rule: Rule, role: str) -> str:
        """CEL of what a rule broken by a role yields."""
        override = f"; or add {rule.id} to spec.engine.acknowledge" if rule.overridable else ""
        sides = [self._side(side, role, role) for side in rule.sides]
        filled = self._filled(f": {rule.says}: {rule.fix}{override}", rule, role)
        # Two rules of different versions may share an id.
        key = self._keys.setdefault(id(rule), "#".join([rule.id, *("again" for _ in range(self._count(rule)))]))
        self._words.setdefault(key, {})[role] = "\n".join([*sides, *filled])
        return quoted(f"{self._program.prefix[role]}.{key}")

    def _count(self, rule: Rule) -> int:
        return sum(key.split("#")[0] == rule.id for key in self._keys.values())

    def define(self) -> list[str]:
        """Add the variables that hold the text of every rule asked for so far, and return the names of their maps."""
        texts: dict[str, str] = {}
        for rule, by_role in self._words.items():
            if len(set(by_role.values())) == 1:
                texts[rule] = next(iter(by_role.values()))
            else:
                texts |= {f"{self._program.prefix[role]}.{rule}": text for role, text in by_role.items()}
        for letter, values in self._shown.items():
            self._program.define(f"{letter}_shown", _map(values, str) if values else f"{{'': {NULL}}}")
        keys = sorted(texts, key=lambda key: key.split(".")[-1])
        groups = [keys[start : start + _GROUP] for start in range(0, len(keys), _GROUP)]
        return [
            self._program.define(f"words{place}", _map({key: texts[key] for key in group}, quoted))
            for place, group in enumerate(groups)
        ]

    def _filled(self, template: str, rule: Rule, role: str) -> Iterator[str]:
        for text, name, _spec, _conversion in _FORMAT.parse(template):
            if text:
                yield text.replace("\n", " ")
            if name is not None:
                yield f"~{self._value(rule.shows[name], role, role, f'{rule.id} {name}')}"

    def _side(self, side: Expr, role: str, judged: str) -> str:
        while isinstance(side, At):
            role, side = side.role, side.body
        if isinstance(side, Circumstance):
            if side.name == "role":
                return f"@{self._whole(role)}"
            return f"@{self._field(_SPEC, 'engine.platform', 'variables.platform')}"
        if isinstance(side, Declared):
            return f"@{self._whole(side.role)}"
        leaves = settling(side)
        own = resolved_from(side)
        first = [] if own is None else [own]
        pieces = "|".join(dict.fromkeys(self._alternative(leaf, role, judged) for leaf in (*first, *leaves)))
        if not pieces:
            pieces = self._field(_SPEC, side.name.replace("_", "-") if isinstance(side, Named) else "value", "''")
        if isinstance(side, Leaf):
            return f"@{pieces}"
        # Numbered, not named by identity: the generated file must come out the same every time.
        name = (
            side.name
            if isinstance(side, Named)
            else f"value {self._nameless.setdefault(id(side), len(self._nameless))}"
        )
        value = self._value(side, role, judged, name)
        shown_as = name.replace("_", "-") if isinstance(side, Named) else "the value"
        return f"{'&' if own is None else '@'}{pieces}~{value}~{shown_as}"

    def _alternative(self, leaf: Leaf, role: str, judged: str) -> str:
        place = self._place(role, leaf)
        letter = "_" if role == judged else self._program.prefix[role]
        below = f"spec.roles.{role}."
        if place == f"{below}args.{leaf.name}":
            return f"{letter}.{leaf.name}"
        if leaf.source == "env":
            return f"{letter}${leaf.name}"
        if (whole := place.removeprefix("spec.roles.")) in self._program.prefix:
            return self._whole(whole)
        if leaf.source == "flag" and not place.startswith("spec."):
            return self._field(_OUTSIDE, place, _ALONE)
        raw = Leaf("spec", place.removeprefix("spec."), leaf.kind) if leaf.source == "flag" else leaf
        if raw.unit:
            raw = replace(raw, kind="str", unit="")
        text = self._held(self._folder.fold(raw, role).expr)
        if place.startswith(below):
            self._field(self._program.prefix[role], place.removeprefix(below), text)
            return f"{letter}/{place.removeprefix(below)}"
        letter = _SPEC if place.startswith("spec.") else _OUTSIDE
        return self._field(letter, place.removeprefix("spec."), text)

    def _whole(self, role: str) -> str:
        """A role itself, which has no value worth showing; another role's flag can follow from its being there."""
        present = self._program.text(self._folder.fold(Declared(role), role).expr)
        return self._field(_SPEC, f"roles.{role}", f"{present} ? {_ALONE} : ''")

    def _field(self, letter: str, path: str, text: str) -> str:
        self._shown[letter][f"/{path}"] = f"dyn({text})"
        return f"{letter}/{path}"

    def _value(self, value: Expr, role: str, judged: str, name: str) -> str:
        """Makes a value known under a name and says how the notation calls it."""
        letter = self._program.prefix[role]
        self._shown[letter][name] = self._held(self._folder.fold(value, role).expr)
        return f"{'_' if role == judged else letter}{name}"

    def _held(self, value: Expr) -> str:
        """A value as the maps hold it, null when absent."""
        if value.kind == "none":
            return NULL
        return self._program.atom(value) if value.nullable else f"dyn({self._program.atom(value)})"


def _map(items: Mapping[str, str], spell: Callable[[str], str]) -> str:
    return f"{{{', '.join(f'{quoted(key)}: {spell(text)}' for key, text in items.items())}}}"
