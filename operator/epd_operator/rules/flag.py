"""What an engine's flags are: names, types, choices, owners.

The tricky idea: a value has two spellings, the YAML value under `spec.roles.X.args` and the argument on a command line,
and both are judged by one table, `_KINDS`. So a value that `FlagSpec.fault` accepts renders to an argument that the
engine's parser accepts, and the same flag given either way means the same value to every rule (`FlagSpec.normal`).
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from epd_operator.rules.limit import LONG, MOST_CHARACTERS, MOST_ITEMS, NUMERAL, is_long

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_operator.rules.owner import Owner

FlagType: TypeAlias = Literal[
    "bool",
    "int",
    "human-int",
    "float",
    "str",
    "nullable-str",
    "json",
    "strict-json",
    "graph-backend",
    "graph-config",
    "lora",
    "log-level",
]
Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | Sequence[Scalar] | None
FlagRole: TypeAlias = Literal["encode", "prefill", "decode", "aggregated"]

_SI: Final[dict[str, int]] = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC: Final[dict[str, int]] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_LEVELS: Final[frozenset[str]] = frozenset({"CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARN", "WARNING"})
_GRAPH_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "decode": ("backend", "max_bs", "bs"),
    "prefill": (
        "backend",
        "max_bs",
        "bs",
        "max_context_size",
        "full_prefill_max_req",
        "full_prefill_prefix_chunk_tokens",
        "max_seq_len",
    ),
}
"""Settings of --cuda-graph-config, per phase. Source: SGLang 0.5.23, model_executor/cuda_graph_config.py."""
REMOVED_BACKEND: Final = "tc_piecewise"


class Unreadable(ValueError):
    """An argument that a flag cannot take; the text says what it must be."""


@dataclass(frozen=True)
class _Kind:
    """One type of flag.

    Attributes:
        expected: What a value must be, to follow "must be".
        accepts: Whether a YAML value has the right type, before its content is read.
        read: The value of an argument on a command line; it raises `Unreadable` when the argument is not such a value.
    """

    expected: str
    accepts: Callable[[Any], bool]
    read: Callable[[str], Scalar | None]


def _no_value(_text: str) -> Scalar:
    raise Unreadable("given without a value")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Unreadable("a whole number") from None


def _human(text: str) -> int:
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise Unreadable('a whole number or a form such as "1k", "1.5M" or "4Ki"') from None
    number, suffix = match.groups()
    if suffix in _SI:
        return int(Decimal(number) * _SI[suffix])
    if "." in number:
        raise Unreadable(f"whole before {suffix}")
    return _whole(number) * _IEC[suffix]


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Unreadable("a number") from None


def _nullable(text: str) -> str | None:
    return None if text in {"", "None"} else text


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _load(text: str, *, strict: bool) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant) if strict else json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable("a string that holds JSON") from None


def _json(text: str) -> str:
    _load(text, strict=False)
    return text


def _strict_json(text: str) -> str:
    _load(text, strict=True)
    return text


def _graph_backend(text: str) -> str:
    if text == REMOVED_BACKEND:
        raise Unreadable(f"breakable, full or disabled: {REMOVED_BACKEND} was removed")
    return text


def _graph_config(text: str) -> str:
    phases = _load(text, strict=False)
    if not isinstance(phases, dict):
        raise Unreadable("a JSON object with prefill or decode")
    for phase, settings in phases.items():
        if phase not in _GRAPH_KEYS:
            raise Unreadable(f'a JSON object with prefill or decode, not "{phase}"')
        if not isinstance(settings, dict):
            raise Unreadable(f"a JSON object whose {phase} is an object")
        if settings.get("backend") == REMOVED_BACKEND:
            raise Unreadable(f"JSON with a {phase} backend breakable, full or disabled: {REMOVED_BACKEND} was removed")
        unknown = [key for key in settings if key not in _GRAPH_KEYS[phase]]
        if unknown:
            raise Unreadable(f'JSON whose {phase} has only {", ".join(_GRAPH_KEYS[phase])}, not "{unknown[0]}"')
    return text


def _lora(text: str) -> str:
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        adapter = _load(bare, strict=False)
        if not {"lora_name", "lora_path"} <= set(adapter):
            raise Unreadable("a path, name=path, or JSON with lora_name and lora_path")
    return text


def _level(text: str) -> str:
    if text.upper() not in _LEVELS:
        raise Unreadable(f"one of {', '.join(sorted(level.lower() for level in _LEVELS))}")
    return text


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    try:
        return (_is_int(value) or isinstance(value, float)) and math.isfinite(value)
    except OverflowError:
        return False


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


_KINDS: Final[Mapping[FlagType, _Kind]] = {
    "bool": _Kind("true or false", lambda value: isinstance(value, bool), _no_value),
    "int": _Kind("a whole number", _is_int, _whole),
    "human-int": _Kind('a whole number or a string such as "1k"', lambda v: _is_int(v) or _is_str(v), _human),
    "float": _Kind("a number", _is_real, _real),
    "str": _Kind("a string", _is_str, str),
    "nullable-str": _Kind("a string", _is_str, _nullable),
    "json": _Kind("a string that holds JSON", _is_str, _json),
    "strict-json": _Kind("a string that holds JSON", _is_str, _strict_json),
    "graph-backend": _Kind("a string", _is_str, _graph_backend),
    "graph-config": _Kind("a string that holds JSON", _is_str, _graph_config),
    "lora": _Kind("a string", _is_str, _lora),
    "log-level": _Kind("a string", _is_str, _level),
}


@dataclass(frozen=True)
class FlagSpec:
    """One flag of the engine.

    Attributes:
        name: The first long option, without dashes.
        aliases: Its other spellings, without dashes; the `no-` form is not one.
        type: What a value is.
        choices: The only values allowed; None when any of the type is.
        default: Value when the flag is not given; None when the engine decides.
        nargs: "+" one value or more, "*" any number, "?" at most one, None exactly one (none for a bool).
        negatable: There is a `no-` form that sets false.
        switch: The flag takes no value: giving it means true.
        roles: Where the flag does something, as far as that was looked into; no rule follows from it.
        owner: What sets the flag instead of the user, for a flag that `args` must not hold; None for the others.
        minimum: Smallest number allowed.
        maximum: Largest number allowed.
        identity: Prefill, decode and encode pods must agree on it, whatever else is set.
        help: What the flag does, one line; empty where the engine's own documentation says it.
    """

    name: str
    aliases: tuple[str, ...] = ()
    type: FlagType = "str"
    choices: tuple[Scalar, ...] | None = None
    default: Any = None
    nargs: Literal["*", "+", "?"] | None = None
    negatable: bool = False
    switch: bool = False
    roles: frozenset[FlagRole] = frozenset()
    owner: Owner | None = None
    minimum: float | None = None
    maximum: float | None = None
    identity: bool = False
    help: str = ""

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value under `spec.roles.X.args`, as "must ..."; None when nothing is."""
        if not isinstance(value, list):
            return self._scalar_fault(value)
        if self.nargs not in {"*", "+"}:
            return f"must be {self._expected()}, not a list"
        if len(value) > MOST_ITEMS:
            return f"must hold at most {MOST_ITEMS} values"
        if self.nargs == "+" and not value:
            return "must hold at least one value"
        return next((f"item {at}: {text}" for at, item in enumerate(value) if (text := self._item_fault(item))), None)

    def read(self, text: str) -> Scalar | None:
        """The value of one argument of a command line.

        Raises:
            Unreadable: The engine's parser would refuse the argument; the text follows "must be".
        """
        value = _KINDS[self.type].read(text)
        if self.choices is not None and value not in self.choices:
            raise Unreadable(self._expected())
        return value

    def normal(self, value: Value) -> Value:
        """The one spelling of a value without fault that rules compare: "1k" is 1000, a lone item is a list."""
        items = [value] if value is None or isinstance(value, bool | int | float | str) else value
        read = [self._normal_item(item) for item in items]
        if self.nargs in {"*", "+"}:
            return [item for item in read if item is not None]
        return read[0]

    def _normal_item(self, value: Scalar | None) -> Scalar | None:
        if isinstance(value, str):
            return self.read(value)
        return float(value) if self.type == "float" and value is not None else value

    def _expected(self) -> str:
        if self.choices is None:
            return _KINDS[self.type].expected
        return f"one of {', '.join(map(str, self.choices))}"

    def _item_fault(self, value: Any) -> str | None:
        # One of several arguments that starts with a dash would be read as the next flag.
        if isinstance(value, str) and value.startswith("-"):
            return "must not start with a dash"
        return self._scalar_fault(value)

    def _scalar_fault(self, value: Any) -> str | None:
        fault = self._type_fault(value)
        if fault is not None:
            return fault
        if isinstance(value, str):
            if value == "--":
                return "must not be two dashes"
            try:
                self.read(value)
            except Unreadable as unreadable:
                return f"must be {unreadable}"
        return self._bound_fault(value)

    def _type_fault(self, value: Any) -> str | None:
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            return f"must have at most {MOST_CHARACTERS} characters"
        if not _KINDS[self.type].accepts(value) or (self.choices is not None and value not in self.choices):
            return f"must be {self._expected()}"
        numeral = isinstance(value, str) and self.type == "human-int" and len(value) > NUMERAL
        return LONG if numeral or (self.type != "float" and is_long(value)) else None

    def _bound_fault(self, value: Scalar) -> str | None:
        number = self._normal_item(value)
        if not isinstance(number, int | float):
            return None
        if is_long(number):
            return LONG
        if self.minimum is not None and number < self.minimum:
            return f"must be at least {self.minimum:g}"
        if self.maximum is not None and number > self.maximum:
            return f"must be at most {self.maximum:g}"
        return None


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Every flag of one engine version, by canonical name; compares and hashes by identity, as there is one a version.

    Attributes:
        version: The engine version.
        flags: Canonical name to flag, in the engine's order.
        removed: Spelling of another version to what to write instead.
        elsewhere: Names of flags that servers of other roles read, and those of this role do not.
    """

    version: str
    flags: Mapping[str, FlagSpec]
    removed: Mapping[str, str]
    elsewhere: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> FlagSpec:
        return self.flags[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.flags)

    def __len__(self) -> int:
        return len(self.flags)

    def __contains__(self, name: object) -> bool:
        return name in self.flags

    def find(self, name: str) -> FlagSpec | None:
        """The flag of a canonical name, without dashes."""
        return self.flags.get(name)

    def owner(self, name: str) -> Owner | None:
        """What sets the flag of a canonical name; None where a user does, and where there is no such flag."""
        spec = self.find(name)
        return None if spec is None else spec.owner

    def canonical(self, alias: str) -> str | None:
        """Canonical name of any full spelling without dashes; None when there is no such flag."""
        return self._spellings.get(alias)

    def nearest(self, name: str) -> str | None:
        """Canonical name of the flag spelled most like `name`; None when nothing is close."""
        name = name.lstrip("-").replace("_", "-")
        exact = self.canonical(name)
        if exact is not None:
            return exact
        longer = [spelling for spelling in self._spellings if name and spelling.startswith(name)]
        if longer:
            return self._spellings[min(longer, key=len)]
        near = difflib.get_close_matches(name, self._spellings, n=1, cutoff=0.75)
        return self._spellings[near[0]] if near else None

    def advise(self, name: str) -> tuple[str, str]:
        """What is wrong with a flag that this version does not have, and the way out."""
        if name in self.removed:
            return f"unknown in {self.version}, a flag of another version", self.removed[name]
        if name in self.elsewhere:
            return "does nothing in a server of this role", "remove it, or set it on the role that you mean"
        near = self.nearest(name)
        if near is None:
            return f"unknown flag in {self.version}", "remove it"
        if near == self.canonical(name.lstrip("-")):
            return "is not the full name of the flag", f"write {near}"
        return f"unknown flag in {self.version}", f"did you mean {near}?"

    @cached_property
    def _spellings(self) -> Mapping[str, str]:
        return {spelling: flag.name for flag in self.flags.values() for spelling in (flag.name, *flag.aliases)}

    @cached_property
    def options(self) -> Mapping[str, tuple[FlagSpec | None, bool]]:
        """Every option that the parser knows, with its flag and whether it sets false; help options have no flag."""
        options: dict[str, tuple[FlagSpec | None, bool]] = {"-h": (None, False), "--help": (None, False)}
        for flag in self.flags.values():
            for spelling in (flag.name, *flag.aliases):
                options[f"--{spelling}"] = (flag, False)
                if flag.negatable:
                    options[f"--no-{spelling}"] = (flag, True)
        return options
