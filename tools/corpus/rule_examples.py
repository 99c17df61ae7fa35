"""Reads the examples of rules that no engine decides: what one role needs of another, and of the pods it gets."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLACES: Final = {
    "P": "roles.prefill.args",
    "D": "roles.decode.args",
    "PE": "roles.prefill.env",
    "DE": "roles.decode.env",
    "PR": "roles.prefill",
    "DR": "roles.decode",
    "encode": "roles.encode",
}
_PLATFORM: Final = "cuda-sm90"
_VERSION: Final = "0.5.23"
_JUDGED: Final = (_PLATFORM, _VERSION)


@dataclass(frozen=True)
class RuleExample:
    """One spec or command line, and whether a rule speaks of it.

    Attributes:
        rule: Its id.
        speaks: Whether it must be among the findings.
        name: What a report calls the example.
        document: The spec; None for a command line.
        changes: What the spec changes of the base.
        argv: The command line.
        env: Its variables.
        platform: What the command line runs on.
        version: Engine version that judges the command line.
        plugins: What the engine of the command line loads.
    """

    rule: str
    speaks: bool
    name: str
    document: dict[str, Any] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    platform: str = _PLATFORM
    version: str = _VERSION
    plugins: tuple[str, ...] = ()


@cache
def rule_examples() -> tuple[RuleExample, ...]:
    """Every example of `rule_examples.yaml`, in its order."""
    corpus = _corpus()
    return (*_specs(corpus["specs"]), *_lines(corpus["lines"]))


@cache
def _corpus() -> dict[str, Any]:
    corpus: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)
    return corpus


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with some changes.

    Args:
        changes: Value by path, in the notation of `rule_examples.yaml`.
    """
    document: dict[str, Any] = copy.deepcopy(_corpus()["base"])
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        _set(document["spec"], f"{_PLACES.get(head, head)}.{rest}", value)
    return document


def _specs(rules: Mapping[str, Any]) -> Iterator[RuleExample]:
    for rule, speaks, name, changes in _entries(rules):
        yield RuleExample(rule, speaks, name, changed(changes), changes)


def _lines(rules: Mapping[str, Any]) -> Iterator[RuleExample]:
    for rule, speaks, name, line in _entries(rules):
        where, _, flags = line.rpartition("] ")
        given: list[str] = where.lstrip("[").split()
        platform, version, *plugins = (*given, *_JUDGED[len(given) :])
        parts = flags.split()
        first = next((at for at, argument in enumerate(parts) if argument.startswith("-")), len(parts))
        env = dict(argument.split("=", 1) for argument in parts[:first])
        argv = ("--tp-size", "4", *parts[first:])
        yield RuleExample(rule, speaks, name, None, {}, argv, env, platform, version, tuple(plugins))


def _entries(rules: Mapping[str, Any]) -> Iterator[tuple[str, bool, str, Any]]:
    for rule, examples in rules.items():
        for kind in ("speaks", "quiet"):
            for at, example in enumerate(examples[kind], 1):
                yield rule, kind == "speaks", f"{rule} {kind} {at}", example


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parts, last = path.split(".")
    for part in parts:
        document = document.setdefault(part, {})
    if value is None:
        document.pop(last, None)
    else:
        document[last] = copy.deepcopy(value)  # or a later change would reach into the corpus
