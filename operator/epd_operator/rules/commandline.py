"""A command line as the engine's parser reads it, and the arguments for a set of flags.

The tricky idea: SGLang parses with Python's argparse, so what an argument is depends on all flags there are: a unique
prefix is a flag, "-1" is a value, and a flag takes the arguments after it by its number of values. `parse` follows that
algorithm (Python 3.11, `argparse.ArgumentParser._parse_known_args`), but goes on after a fault, so that all are found
at once. `render` writes arguments that mean the same under it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from epd_operator.rules.flag import (
    REMOVED_BACKEND,
    Catalogue,
    FlagRole,
    FlagSpec,
    FlagType,
    Scalar,
    Unreadable,
    Value,
)
from epd_operator.rules.remedy import remedy_of_argument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NEGATIVE: Final = re.compile(r"-\d+|-\d*\.\d+")
_HELP: Final = ("-h", "--help")
_PARSER: Final = "argparse"
_PREPARE: Final = "server_args.prepare_server_args"
_DECIDED_BY: Final[Mapping[FlagType, str]] = {
    "graph-backend": "cuda_graph_config.parse_cuda_graph_backend_arg",
    "graph-config": "cuda_graph_config.parse_cuda_graph_config_arg",
    "human-int": "common.human_readable_int",
    "log-level": _PREPARE,
    "lora": "argparse_actions.LoRAPathAction",
    "strict-json": "common.json_list_type",
}
_CONFIG_FLAG: Final = "--config"
_SHOWN: Final = 5
"""Meanings of an ambiguous prefix that a message lists."""


@dataclass(frozen=True)
class ParseFault:
    """One thing that the engine's parser would refuse.

    Attributes:
        rule: `flag-unknown`, `flag-of-another-version`, `flag-ambiguous`, `flag-value` or `flag-unjudged`.
        flag: Canonical name without dashes, or what was written where no flag is meant; empty for a stray argument.
        value: The arguments at fault; None when there are none.
        message: What is wrong.
        fix: The way out.
        decided_by: Module and function of the engine that refuses; `argparse` for the library itself.
    """

    rule: str
    flag: str
    value: str | None
    message: str
    fix: str
    decided_by: str = _PARSER


@dataclass(frozen=True)
class Parsed:
    """What a command line says.

    Attributes:
        args: Canonical name to value in its normal spelling, for flags that were given without fault.
        faults: Everything the parser would refuse. A missing --model-path is not a fault: a command line may be judged
            without naming the weights.
        role: What the process would be.
    """

    args: Mapping[str, Value]
    faults: tuple[ParseFault, ...]
    role: FlagRole


@dataclass(frozen=True)
class _Option:
    """An argument that starts a flag; `spec` is None where a fault was found already."""

    written: str
    spec: FlagSpec | None
    negated: bool = False
    explicit: str | None = None


def parse(argv: Sequence[str], catalogue: Catalogue) -> Parsed:
    """Read a command line; never raises.

    Args:
        argv: The arguments after the program.
        catalogue: Flags of the engine version.
    """
    reader = _Reader(argv, catalogue)
    reader.run()
    return Parsed(reader.args, tuple(reader.faults), _role(reader.args))


def render(args: Mapping[str, Value], catalogue: Catalogue) -> list[str]:
    """The arguments for a set of flags, sorted by name; `parse` gives the same set back.

    Args:
        args: Canonical name to a value without fault, under `FlagSpec.fault`.
        catalogue: Flags of the engine version. A name that it lacks, which only `versionPolicy: Nearest` lets through,
            is written as its value suggests: a newer engine may know it.
    """
    flags = {name: catalogue.find(name) or FlagSpec(name, switch=isinstance(args[name], bool)) for name in args}
    return [argument for name in sorted(args) for argument in _arguments(flags[name], args[name])]


def _arguments(spec: FlagSpec, value: Value) -> list[str]:
    option = f"--{spec.name}"
    if value is None:
        return []
    if spec.switch:
        return [option] if value else [f"--no-{spec.name}"] if spec.negatable else []
    items = [value] if isinstance(value, bool | int | float | str) else value
    arguments = [_spelled(item) for item in items]
    # argparse takes "-x" for a flag unless an equals sign ties it to the one before.
    if len(arguments) == 1 and arguments[0].startswith("-"):
        return [f"{option}={arguments[0]}"]
    return [option, *arguments]


def _spelled(value: Scalar) -> str:
    if isinstance(value, float):
        plain = format(Decimal(repr(value)), "f")
        return plain.removesuffix(".0")
    return str(value)


def _role(args: Mapping[str, Value]) -> FlagRole:
    if args.get("encoder-only"):
        return "encode"
    match args.get("disaggregation-mode"):
        case "prefill":
            return "prefill"
        case "decode":
            return "decode"
        case _:
            return "aggregated"


class _Reader:
    """State of one reading: what was found so far."""

    def __init__(self, argv: Sequence[str], catalogue: Catalogue) -> None:
        self.args: dict[str, Value] = {}
        self.faults: list[ParseFault] = []
        self._argv = argv
        self._catalogue = catalogue
        self._options = catalogue.options

    def run(self) -> None:
        """Read every argument."""
        options = [*self._classified()]
        at = 0
        while at < len(options):
            option = options[at]
            if option is None:
                self._fault("flag-unknown", "", self._argv[at], "does not belong to a flag", "remove it")
                at += 1
                continue
            end = at + 1
            while end < len(options) and options[end] is None and self._argv[end] != "--":
                end += 1
            at += 1 + self._take(option, self._argv[at + 1 : end])

    def _classified(self) -> Iterator[_Option | None]:
        """An option, or None for a value, per argument; after "--" all arguments are values."""
        only_values = False
        for argument in self._argv:
            only_values = only_values or argument == "--"
            yield None if only_values else self._option(argument)

    def _option(self, argument: str) -> _Option | None:
        if not argument.startswith("-") or argument == "-":
            return None
        head, equals, tail = argument.partition("=")
        if argument in self._options:
            return self._known(argument, argument, None)
        if equals and head in self._options:
            return self._known(head, head, tail)
        return self._by_prefix(argument, head, tail if equals else None)

    def _by_prefix(self, argument: str, head: str, explicit: str | None) -> _Option | None:
        near = [name for name in self._options if name.startswith(head)] if argument.startswith("--") else []
        if argument.startswith(_HELP[0]):
            near = [_HELP[0]]
        if len(near) == 1:
            return self._known(near[0], head, explicit)
        if not near and (_NEGATIVE.fullmatch(argument) or " " in argument):
            return None
        name = head.lstrip("-")
        if near:
            more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
            says = f"could be {', '.join(near[:_SHOWN])}{more}"
            self._fault("flag-ambiguous", name, explicit, says, "write the full name of the flag")
        else:
            rule = "flag-of-another-version" if name in self._catalogue.removed else "flag-unknown"
            self._fault(rule, name, explicit, *self._catalogue.advise(name))
        return _Option(head, None)

    def _known(self, name: str, written: str, explicit: str | None) -> _Option:
        if name in _HELP:
            self._fault("flag-unjudged", name.lstrip("-"), explicit, "prints the help and ends", "remove it")
            return _Option(written, None)
        return _Option(written, *self._options[name], explicit)

    def _take(self, option: _Option, behind: Sequence[str]) -> int:
        """Read a flag; how many of the values behind it belong to it."""
        spec = option.spec
        if spec is None:
            return len(behind)  # One fault for a flag that does not exist is enough.
        if spec.switch:
            return self._switch(spec, option, behind)
        if option.explicit is not None:
            values: Sequence[str] = [option.explicit]
            taken = 0
        else:
            values = behind[:1] if spec.nargs in {None, "?"} else behind
            taken = len(values)
        if not values and spec.nargs in {None, "+"}:
            few = "at least one value" if spec.nargs == "+" else "one value"
            self._fault("flag-value", spec.name, None, f"needs {few}", "add it")
        else:
            self._read(spec, values)
        if option.written == _CONFIG_FLAG and option.explicit is None:
            says = "names a file whose flags are not judged here"
            self._fault(
                "flag-unjudged",
                spec.name,
                " ".join(values),
                says,
                "write its flags on the command line",
                decided_by=_PREPARE,
            )
        return taken

    def _switch(self, spec: FlagSpec, option: _Option, behind: Sequence[str]) -> int:
        extra = [option.explicit] if option.explicit is not None else behind
        if extra:
            self._fault("flag-value", spec.name, " ".join(extra), "takes no value", "leave the value out")
        else:
            self.args[spec.name] = not option.negated
        return len(behind) if option.explicit is None else 0

    def _read(self, spec: FlagSpec, values: Sequence[str]) -> None:
        if "--" in values:  # Only an equals sign can bring it here, and argparse then loses it.
            self._fault("flag-value", spec.name, "--", "must not be two dashes", "write another value")
            return
        read: list[Scalar | None] = []
        try:
            read.extend(spec.read(value) for value in values)
        except Unreadable as unreadable:
            # The engine's own type looks for a retired back end only; other unknown ones fail the choices.
            own = spec.type != "graph-backend" or REMOVED_BACKEND in values
            decided_by = _DECIDED_BY.get(spec.type, _PARSER) if own else _PARSER
            self._fault(
                "flag-value",
                spec.name,
                " ".join(values),
                f"must be {unreadable}",
                remedy_of_argument(spec, values[len(read)]),
                decided_by=decided_by,
            )
            return
        given = [value for value in read if value is not None]
        if spec.nargs in {"*", "+"}:
            self.args[spec.name] = given
        elif read and not given:
            self.args.pop(spec.name, None)  # "None" takes an earlier value back.
        else:
            self.args[spec.name] = given[0] if given else ""

    def _fault(
        self, rule: str, flag: str, value: str | None, message: str, fix: str, *, decided_by: str = _PARSER
    ) -> None:
        self.faults.append(ParseFault(rule, flag, value, message, fix, decided_by))
