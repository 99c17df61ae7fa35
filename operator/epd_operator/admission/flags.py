"""The flag catalogue in CEL: which flags exist, which values they take, and what a value means to the rules.

Three things are left to the controller: what is inside a string that holds JSON or a LoRA path, the nearest known flag
to a misspelt one, and whole numbers spelled in a way that only Python reads (`"1_000"`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.cel import LARGEST, NULL, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.engines.flag import Catalogue, FlagSpec

RULES: Final = ("flag-unknown", "flag-of-another-version", "flag-owned", "flag-value")
"""Ids of what is found here; `judgement` has the same."""

_CODES: Final[Mapping[str, str]] = {"bool": "b", "int": "i", "human-int": "h", "float": "f", "log-level": "l"}
_STRING: Final = "s"
_LEVELS: Final = ("CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARN", "WARNING")
_WORDS: Final[Mapping[str, str]] = {
    "b": "true or false",
    "i": "a whole number",
    "h": 'a whole number or a string such as "1k"',
    "f": "a number",
    "l": "a log level",
    _STRING: "a string",
}
_WHOLE: Final = "^-?[0-9]{1,18}$"
_HUMAN: Final = r"^(-?[0-9]+|[0-9]+(\.[0-9]+)?[kMGT]|[0-9]+[KMGT]i)$"
_PLAIN: Final = "^[!-*,-\\^`-~]*$"
"""Printable ASCII without space, plus and underscore, which Python reads in a number."""


def catalogue_variables(catalogue: Catalogue) -> dict[str, str]:
    """The catalogue as maps: `known` from flag to code, choices and bounds, `owned` and `removed` to what to say."""
    users = [spec for spec in catalogue.flags.values() if spec.owner is None]
    words = [spec for spec in users if spec.choices is not None and not _numeric(spec)]
    numbers = [spec for spec in users if spec.choices is not None and _numeric(spec)]
    return {
        "known": _map((spec.name, literal(_code(spec))) for spec in users),
        "words": _map((spec.name, literal(spec.choices)) for spec in words),
        "numbers": _map((spec.name, literal(spec.choices)) for spec in numbers),
        "least": _map((spec.name, literal(float(spec.minimum))) for spec in users if spec.minimum is not None),
        "most": _map((spec.name, literal(float(spec.maximum))) for spec in users if spec.maximum is not None),
        "owned": _map((s.name, quoted(s.owner)) for s in catalogue.flags.values() if s.owner is not None),
        "removed": _map((old, quoted(advice)) for old, advice in catalogue.removed.items()),
    }


def bad_values(args: str, name: str) -> str:
    """CEL of the user's flags whose value is of the wrong type, out of bounds or not among the choices.

    Args:
        args: CEL of the map of flags.
        name: how the catalogue's variables begin.
    """
    known, value = f"variables.{name}_known", f"{args}[flag]"
    code = f"{known}[flag]"
    listed = f"type({value}) == list"
    number = "(type(item) == int || type(item) == double)"
    tests = {
        "b": "type(item) == bool",
        "i": "type(item) == int",
        "f": number,
        "h": f"(type(item) == int || (type(item) == string && (item.matches({quoted(_HUMAN)}) || "
        f"!item.matches({quoted(_PLAIN)}))))",
        "l": f"(type(item) == string && item.upperAscii() in {literal(_LEVELS)})",
    }
    typed = "".join(f"{code}.startsWith('{letter}') ? {test} : " for letter, test in tests.items())
    text = f"(type(item) == string && item != '--' && !({listed} && item.startsWith('-')))"
    within = [
        f"(!(flag in variables.{name}_words) || item in variables.{name}_words[flag])",
        f"(!(flag in variables.{name}_numbers) || item in variables.{name}_numbers[flag])",
        f"(!(flag in variables.{name}_least) || !{number} || double(item) >= variables.{name}_least[flag])",
        f"(!(flag in variables.{name}_most) || !{number} || double(item) <= variables.{name}_most[flag])",
    ]
    several = f"{code}.endsWith('*') || ({code}.endsWith('+') && size({value}) > 0)"
    items = f"({listed} ? {value} : [{value}])"
    return (
        f"{args}.filter(flag, flag in {known} && !("
        f"(!({listed}) || {several}) && {items}.all(item, ({typed}{text}) && {' && '.join(within)})))"
    )


def value_of(spec: FlagSpec, args: str, good: str) -> str:
    """CEL of what a rule sees of a flag: null when it is not given or has no value of its type.

    Args:
        spec: the flag.
        args: CEL of the map of flags.
        good: CEL of the list of flags with a value of their type.
    """
    key = quoted(spec.name)
    return f"{key} in {good} ? {_normal(spec, f'{args}[{key}]')} : {NULL}"


def findings(role: str, args: str, bad: str, name: str) -> str:
    """CEL of the list of what is wrong with the flags of a role.

    Args:
        role: the role.
        args: CEL of the map of flags.
        bad: CEL of the list of flags with a wrong value.
        name: how the catalogue's variables begin.
    """
    known, owned, removed = (f"variables.{name}_{part}" for part in ("known", "owned", "removed"))
    place = f"spec.roles.{role}.args."
    value = f"{args}[flag]"
    scalar = " || ".join(f"type({value}) == {kind}" for kind in ("bool", "int", "double", "string"))
    what = f"{quoted(place)} + flag + ({scalar} ? ' = ' + string({value}) : '')"
    foreign = f"{args}.filter(flag, !(flag in {known}) && !(flag in {owned})"
    unknown = f"{foreign} && !(flag in {removed})).map(flag, '[flag-unknown] ' + {what} + "
    unknown += "': is no flag of ' + variables.version + ': correct its spelling or remove it')"
    renamed = f"{foreign} && flag in {removed}).map(flag, '[flag-of-another-version] ' + {what} + "
    renamed += f"': is no flag of ' + variables.version + ', but of another version: ' + {removed}[flag])"
    taken = f"{args}.filter(flag, flag in {owned}).map(flag, '[flag-owned] ' + {what} + "
    taken += f"': belongs to the operator: remove it; ' + {owned}[flag].replace('<role>', '{role}'))"
    wrong = f"{bad}.map(flag, '[flag-value] ' + {what} + ': must be ' + {_must(name)} + ': correct the value')"
    return f"(variables.strict ? {unknown} + {renamed} : []) + {taken} + {wrong}"


def _must(name: str) -> str:
    """CEL of what the value of a flag must be."""
    known, words, numbers = (f"variables.{name}_{part}" for part in ("known", "words", "numbers"))
    types = "".join(f"{known}[flag].startsWith('{code}') ? {quoted(text)} : " for code, text in _WORDS.items())
    bounds = " + ".join(
        f"(flag in variables.{name}_{end} ? ', at {end} ' + string(variables.{name}_{end}[flag]) : '')"
        for end in ("least", "most")
    )
    return (
        f"(flag in {words} ? 'one of ' + {words}[flag].join(', ') : flag in {numbers} ? 'one of ' + "
        f"{numbers}[flag].map(item, string(item)).join(', ') : ({types}'another value')) + {bounds}"
    )


def _code(spec: FlagSpec) -> str:
    return _CODES.get(spec.type, _STRING) + (spec.nargs if spec.nargs in {"*", "+"} else "")


def _numeric(spec: FlagSpec) -> bool:
    return spec.type in {"int", "human-int", "float"}


def _normal(spec: FlagSpec, value: str) -> str:
    if spec.nargs in {"*", "+"}:
        return f"dyn(type({value}) == list ? {value} : [{value}])"
    match spec.type:
        case "human-int":
            amount = f"quantity({value}).asApproximateFloat()"
            spelled = f"{value}.matches({quoted(_WHOLE)}) ? dyn(int({value}))"
            measured = f"isQuantity({value}) ? dyn({amount} > {LARGEST}.0 ? {LARGEST} : int({amount})) : {NULL}"
            return f"(type({value}) == int ? dyn({value}) : {spelled} : {measured})"
        case "float":
            return f"dyn(double({value}))"
        case "nullable-str":
            return f"({value} in ['', 'None'] ? {NULL} : dyn({value}))"
        case _:
            return f"dyn({value})"


def _map(items: Iterable[tuple[str, str]]) -> str:
    listed: Sequence[str] = [f"{quoted(name)}: {text}" for name, text in items]
    return f"{{{', '.join(listed)}}}"
