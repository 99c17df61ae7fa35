"""The flag catalogue in CEL: which flags exist, which values they take, and what a value means to the rules.

Three things are left to the controller: what is inside a string that holds JSON or a LoRA path, the nearest known flag
to a misspelt one, and whole numbers spelled in a way that only Python reads (`"1_000"`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.admission.message import cut, is_plain, is_scalar, spelled
from epd_operator.engines.validation import STRUCTURE
from epd_operator.rules.cel import NULL, literal, quoted
from epd_operator.rules.limit import MOST_CHARACTERS, MOST_ITEMS, NUMERAL
from epd_operator.rules.owner import instead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.rules.flag import Catalogue, FlagSpec

RULES: Final = ("flag-unknown", "flag-of-another-version", "flag-owned", "flag-value")
"""Ids of what is found here; `judgement` has the same."""

_CODES: Final[Mapping[str, str]] = {"bool": "b", "int": "i", "human-int": "h", "float": "f", "log-level": "l"}
_STRING: Final = "s"
_LEVELS: Final = ("CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARN", "WARNING")
_EXPECTED: Final[Mapping[str, str]] = {
    "b": "true or false",
    "i": "a whole number",
    "h": 'a whole number or a string such as "1k"',
    "f": "a number",
    "l": "a log level",
    _STRING: "a string",
}
_WHOLE: Final = "^-?[0-9]+$"
_SIGNIFICANT: Final = "[1-9][0-9]*$"
_HUMAN: Final = r"^(-?[0-9]+|[0-9]+(\.[0-9]+)?[kMGT]|[0-9]+[KMGT]i)$"
_LARGEST: Final = quoted(str(2**63 - 1))
_SMALLEST: Final = quoted(str(2**63))
_PLAIN: Final = "^[!-*,-\\^`-~]*$"
"""Printable ASCII without space, plus and underscore, which Python reads in a number."""


def catalogue_variables(catalogue: Catalogue) -> dict[str, str]:
    """The catalogue as maps: `known` from flag to code, choices and bounds, `owned` and `removed` to what to say."""
    users = [spec for spec in catalogue.flags.values() if spec.owner is None]
    strings = [spec for spec in users if spec.choices is not None and not _numeric(spec)]
    numbers = [spec for spec in users if spec.choices is not None and _numeric(spec)]
    owners = [(spec.name, spec.owner) for spec in catalogue.flags.values()]
    return {
        "known": _map((spec.name, literal(_code(spec))) for spec in users),
        "words": _map((spec.name, literal(spec.choices)) for spec in strings),
        "numbers": _map((spec.name, literal(spec.choices)) for spec in numbers),
        "least": _map((spec.name, literal(float(spec.minimum))) for spec in users if spec.minimum is not None),
        "most": _map((spec.name, literal(float(spec.maximum))) for spec in users if spec.maximum is not None),
        "owned": _map((name, quoted(instead(owner, "<role>"))) for name, owner in owners if owner is not None),
        "removed": _map((old, quoted(advice)) for old, advice in catalogue.removed.items()),
    }


def bad_values(args: str, name: str) -> str:
    """CEL of the user's flags whose value is of the wrong type, out of bounds or not among the choices.

    Args:
        args: CEL of the map of flags.
        name: How the catalogue's variables begin.
    """
    known, value = f"variables.{name}_known", f"{args}[flag]"
    code = f"{known}[flag]"
    listed = f"type({value}) == list"
    number = "(type(item) == int || type(item) == double)"
    long = f"type(item) == string && size(item) <= {MOST_CHARACTERS}"
    tests = {
        "b": "type(item) == bool",
        "i": "type(item) == int",
        "f": number,
        "h": f"type(item) == int || ({long} && ({_fits('item')} || !item.matches({quoted(_PLAIN)})))",
        "l": f"{long} && item.upperAscii() in {literal(_LEVELS)}",
    }
    items = f"({listed} ? {value} : [{value}])"
    # What does not depend on the item is asked once: a list may be long.
    typed = "".join(f"{code}.startsWith('{letter}') ? {items}.all(item, {test}) : " for letter, test in tests.items())
    typed += f"{items}.all(item, {long} && item != '--') && "
    typed += f"(!({listed}) || {value}.all(item, !item.startsWith('-')))"
    strings, numbers, least, most = (f"variables.{name}_{part}" for part in ("words", "numbers", "least", "most"))
    within = [
        f"(!(flag in {strings}) || {items}.all(item, item in {strings}[flag]))",
        f"(!(flag in {numbers}) || {items}.all(item, item in {numbers}[flag]))",
        f"(!(flag in {least}) || {items}.all(item, !{number} || double(item) >= {least}[flag]))",
        f"(!(flag in {most}) || {items}.all(item, !{number} || double(item) <= {most}[flag]))",
    ]
    several = f"{code}.endsWith('*') || ({code}.endsWith('+') && size({value}) > 0)"
    shape = f"!({listed}) || (({several}) && size({value}) <= {MOST_ITEMS})"
    return f"{args}.filter(flag, flag in {known} && !(({shape}) && ({typed}) && {' && '.join(within)}))"


def value_of(spec: FlagSpec, args: str, good: str) -> str:
    """CEL of what a rule sees of a flag: null when it is not given or has no value of its type.

    Args:
        spec: The flag.
        args: CEL of the map of flags.
        good: CEL of the list of flags with a value of their type.
    """
    key = quoted(spec.name)
    return f"{key} in {good} ? {_normal(spec, f'{args}[{key}]')} : {NULL}"


def findings(role: str, args: str, bad: str, name: str) -> str:
    """CEL of the list of what is wrong with the flags of a role.

    Args:
        role: The role.
        args: CEL of the map of flags.
        bad: CEL of the list of flags with a wrong value.
        name: How the catalogue's variables begin.
    """
    known, owned, removed = (f"variables.{name}_{part}" for part in ("known", "owned", "removed"))
    place = f"spec.roles.{role}.args."
    value = f"{args}[flag]"
    what = f"{quoted(place)} + {cut('flag')} + {_given(value)}"
    foreign = f"{args}.filter(flag, !(flag in {known}) && !(flag in {owned})"
    unknown = f"{foreign} && !(flag in {removed})).map(flag, '[flag-unknown] ' + {what} + "
    unknown += "': unknown flag in ' + variables.version + ': correct its spelling or remove it')"
    renamed = f"{foreign} && flag in {removed}).map(flag, '[flag-of-another-version] ' + {what} + "
    renamed += f"': unknown in ' + variables.version + ', a flag of another version: ' + {removed}[flag])"
    taken = f"{args}.filter(flag, flag in {owned}).map(flag, '[flag-owned] ' + {what} + "
    taken += f"': belongs to the operator: remove it; ' + {owned}[flag].replace('<role>', '{role}'))"
    wrong = f"{bad}.map(flag, '[flag-value] ' + {what} + ': must ' + {_must(name, value)} + ': correct the value')"
    # Under `Strict` an unknown flag is refused as such, and a known one has a type of its own.
    several = f"size({value}) <= {MOST_ITEMS} && {value}.exists(item, !{is_scalar('item')})"
    odd = f"{foreign} && (type({value}) == list ? {several} : !{is_scalar(value)})).map(flag, '[{STRUCTURE}] ' + {what}"
    odd += " + ': must be a string, a number, true, false, or a list of these: write an object as a string of JSON')"
    return f"(variables.strict ? {unknown} + {renamed} : {odd}) + {taken} + {wrong}"


def _given(value: str) -> str:
    """CEL of what is written, to follow the name of a flag."""
    return f"({is_plain(value)} ? ' = ' + {cut(spelled(value))} : '')"


def _must(name: str, value: str) -> str:
    """CEL of what the value of a flag must, a verb first."""
    known, strings, numbers = (f"variables.{name}_{part}" for part in ("known", "words", "numbers"))
    types = "".join(f"{known}[flag].startsWith('{code}') ? {quoted(text)} : " for code, text in _EXPECTED.items())
    bounds = " + ".join(
        f"(flag in variables.{name}_{end} ? ', at {end} ' + string(variables.{name}_{end}[flag]) : '')"
        for end in ("least", "most")
    )
    what = (
        f"(flag in {strings} ? 'one of ' + {strings}[flag].join(', ') : flag in {numbers} ? 'one of ' + "
        f"{numbers}[flag].map(item, string(item)).join(', ') : ({types}'another value')) + {bounds}"
    )
    return (
        f"(type({value}) == list && size({value}) > {MOST_ITEMS} ? 'hold at most {MOST_ITEMS} values' : "
        f"type({value}) == string && size({value}) > {MOST_CHARACTERS} ? 'have at most {MOST_CHARACTERS} characters' : "
        f"'be ' + {what})"
    )


def _fits(text: str) -> str:
    """CEL of whether a text spells a whole number of 64 bits, perhaps with a suffix.

    A quantity beyond 64 bits counts as the largest one, so digits are compared as text.
    """
    digits = f"{text}.find({quoted(_SIGNIFICANT)})"
    most = f"({text}.startsWith('-') ? {_SMALLEST} : {_LARGEST})"
    return (
        f"size({text}) <= {NUMERAL} && {text}.matches({quoted(_HUMAN)}) && ({text}.matches({quoted(_WHOLE)}) ? "
        f"size({digits}) < 19 || (size({digits}) == 19 && {digits} <= {most}) : "
        f"quantity({text}).asApproximateFloat() < {float(2**63)!r})"
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
            amount = f"quantity({value})"
            whole = f"{value}.matches({quoted(_WHOLE)}) ? int({value})"
            # Half a thousand is whole, a half is not: the fraction is cut off.
            measured = f"{amount}.isInteger() ? {amount}.asInteger() : int({amount}.asApproximateFloat())"
            return f"(type({value}) == int ? dyn({value}) : {_fits(value)} ? dyn({whole} : {measured}) : {NULL})"
        case "float":
            return f"dyn(double({value}))"
        case "nullable-str":
            return f"({value} in ['', 'None'] ? {NULL} : dyn({value}))"
        case _:
            return f"dyn({value})"


def _map(items: Iterable[tuple[str, str]]) -> str:
    listed: Sequence[str] = [f"{quoted(name)}: {text}" for name, text in items]
    return f"{{{', '.join(listed)}}}"
