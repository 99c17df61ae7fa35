"""Whether the commands that pages name exist: targets of make, commands and flags of `epd`, modules, chart values."""

from __future__ import annotations

import re
import shlex
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator.cli.main import parser
from tools import program
from tools.docs import console
from tools.docs.page import ROOT, Page

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SOURCES: Final = ("", "operator", "workers", "kernels")
"""Folders in which modules are found."""
OTHERS: Final = frozenset({"sglang.launch_server", "http.server", "venv", "pip"})
"""Modules that pages name and that are not ours."""
_MAKE: Final = re.compile(r"(?:^|[\s`&;])make ([a-z][a-z-]*)")
_MODULE: Final = re.compile(r"python3? -m ([\w.]+)((?: +(?!\|)\S+)*)")
_SET: Final = re.compile(r"--set ([\w.]+)=")
_TARGET: Final = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
_PYTEST: Final = re.compile(r"pytest ((?:(?![-|&;])\S+ ?)+)")
_WORKERS: Final = re.compile(r"\b(epd-(?:reference|registrar|swapool))(?: ([a-z]+)\b)?((?: +(?!\|)\S+)*)")
_FLAG: Final = re.compile(r"--[a-z][a-z-]*[a-z]")


def texts(page: Page) -> Iterator[tuple[int, str]]:
    """Line and text of every command that the page names: in backticks, and in blocks of commands."""
    yield from page.codes
    for step in console.steps(page):
        yield step.line, step.bare


def faults(page: Page, root: Path = ROOT) -> Iterator[str]:
    """A line for each command of the page that does not exist."""
    for line, text in texts(page):
        for check in (_make, _modules, _ours, _workers, _values, _tests):
            yield from (f"{page.path}:{line}: {fault}" for fault in check(text, root))


def _make(text: str, root: Path) -> Iterator[str]:
    for target in _MAKE.findall(text):
        if target not in targets(root):
            yield f"make has no target {target}"


def _modules(text: str, root: Path) -> Iterator[str]:
    for module, arguments in _MODULE.findall(text):
        if module in OTHERS:
            continue
        source = _source(module, root)
        if not source:
            yield f"there is no program {module}"
        for flag in _FLAG.findall(arguments) if source else ():
            if f'"{flag}"' not in source:
                yield f"{module} has no flag {flag}"


def _values(text: str, root: Path) -> Iterator[str]:
    for path in _SET.findall(text) if text.startswith("helm ") else ():
        if path not in chart_values(root):
            yield f"the chart has no value {path}"


def _tests(text: str, root: Path) -> Iterator[str]:
    for paths in _PYTEST.findall(text):
        for path in paths.split():
            if not (root / path).exists():
                yield f"there is no {path} to test"


def _workers(text: str, _root: Path) -> Iterator[str]:
    """Commands and flags of the workers' programs that these themselves do not know."""
    for name, command, arguments in _WORKERS.findall(text):
        if not command and not arguments:
            continue
        words = [name, command] if command else [name]
        known = usage(*words)
        if known is None:
            yield f"{name} has no command {command}"
        for flag in _FLAG.findall(arguments) if known else ():
            if not re.search(rf"{flag}(?![\w-])", known or ""):
                yield f"{' '.join(words)} has no flag {flag}"


@cache
def usage(name: str, *words: str) -> str | None:
    """What a program of this repository says about its command line; None where it does not know the command."""
    done = program.run([Path(sysconfig.get_path("scripts"), name), *words, "--help"])
    return None if done.returncode else done.stdout


def _ours(text: str, _root: Path) -> Iterator[str]:
    """Commands and flags of `epd` that its own parser does not know."""
    for part in re.split(r"\||&&|;", text):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            continue  # a part of a sentence with an apostrophe
        if words[:1] != ["epd"] or len(words) < 2:
            continue
        options = commands().get(words[1])
        if options is None:
            yield f"epd has no command {words[1]}"
            continue
        given = words[2 : words.index("--")] if "--" in words else words[2:]
        for word in given:
            flag = word.split("=")[0]
            if flag.startswith("-") and flag != "-" and flag not in options:
                yield f"epd {words[1]} has no flag {flag}"


@cache
def commands() -> dict[str, frozenset[str]]:
    """The flags of each command of `epd`, asked of its parser."""
    chosen = next(action for action in _actions(parser()) if action.dest == "command").choices
    assert isinstance(chosen, dict)
    return {
        name: frozenset(flag for action in _actions(one) for flag in action.option_strings)
        for name, one in chosen.items()
    }


def _actions(grammar: argparse.ArgumentParser) -> list[argparse.Action]:
    return grammar._actions  # noqa: SLF001 - argparse has no other way to list them


@cache
def chart_values(root: Path) -> frozenset[str]:
    """The dotted name of every value of the chart, groups of values included."""

    def names(values: dict[str, Any], lead: str) -> Iterator[str]:
        for name, value in values.items():
            yield f"{lead}{name}"
            if isinstance(value, dict):
                yield from names(value, f"{lead}{name}.")

    text = (root / "charts/epd-operator/values.yaml").read_text(encoding="utf-8")
    return frozenset(names(yaml.safe_load(text), ""))


@cache
def targets(root: Path) -> frozenset[str]:
    """The targets of the Makefile."""
    return frozenset(_TARGET.findall((root / "Makefile").read_text(encoding="utf-8")))


@cache
def _source(module: str, root: Path) -> str:
    """The text of a program and of what stands beside it; empty when there is none."""
    for folder in SOURCES:
        place = root / folder / module.replace(".", "/")
        if (place / "__main__.py").is_file():
            return "".join(path.read_text(encoding="utf-8") for path in sorted(place.glob("*.py")))
        if place.with_suffix(".py").is_file():
            return place.with_suffix(".py").read_text(encoding="utf-8")
    return ""
