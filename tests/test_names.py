"""Names that were given up for better ones do not come back."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = ("bench", "docs", "e2e", "images", "kernels", "operator", "tests", "tools", "workers")

CONTROL: Final = (
    "docs",
    "operator",
    *(f"tests/{part}" for part in ("admission", "api", "chart", "cli", "engines", "kube", "plan", "rules", "runtime")),
    *(f"tools/{part}" for part in ("corpus", "differential", "mutation")),
)

# Name without leading underscores -> what it is called now, and the folders that have given it up.
RETIRED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "Bench": ("JudgementContext", CONTROL),
    "Edge": ("KopfWatches", CONTROL),
    "HOLES": ("OPERATOR_ONLY", CODE),
    "Harvest": ("CollectedLines", CODE),
    "Laboratory": ("Experiment", CODE),
    "Exchange": ("Publisher", CODE),
    "Lane": ("EngineConnection, WorkerThreads", CODE),
    "Notebook": ("AnswerCache", CODE),
    "Outlook": ("PoolReadiness", CODE),
    "Pulse": ("Liveness", CODE),
    "Speaks": ("ExpectedRule", CODE),
    "Stand": ("RecordedCase", CODE),
    "Stumbles": ("HandlerFailures", CODE),
    "Told": ("what it holds: PoolSettings, ExpectedFindings", CODE),
    "Tie": ("ActivePool", CODE),
    "bench": ("context", CONTROL),
    "found": ("the thing that was found: result, findings, ...", CODE),
    "harvest": ("collected", CODE),
    "hole": ("operator_only", CODE),
    "laboratory": ("experiment", CODE),
    "neighbourhood": ("search_space", CODE),
    "outlook": ("readiness", CODE),
    "pulse": ("liveness", CODE),
    "recall": ("prefetch", ("workers/epd_workers/reference/engine", "tests/reference/returning")),
    "said": ("the thing that was said: message, answer, ...", CODE),
    "stand": ("case", CODE),
    "tie": ("active_pool", ("workers/epd_workers/swapool", "tests/swapool")),
    "told": ("the thing that was told: reported, report, ...", CODE),
    "warmth": ("swa_pool_ready", CODE),
}


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every identifier of a module with its line, those inside f-strings and imports as well."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.alias():
                yield from ((part, node.lineno) for part in (*node.name.split("."), node.asname or ""))
            case ast.ImportFrom(module=str(name)):
                yield from ((part, node.lineno) for part in name.split("."))
            case ast.keyword(arg=str(name)):
                yield name, node.value.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno
            case ast.Global(names=several) | ast.Nonlocal(names=several):
                yield from ((name, node.lineno) for name in several)
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case _:
                pass


@cache
def used() -> Mapping[str, tuple[str, ...]]:
    """Each retired name with the places that have it, as `path:line`."""
    places: dict[str, list[str]] = {name: [] for name in RETIRED}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            names = [(path.stem, 1), *names_in(ast.parse(path.read_text(encoding="utf-8")))]
            for name, line in names:
                if (bare := name.lstrip("_")) in places:
                    places[bare].append(f"{place}:{line}")
    return {name: tuple(found_at) for name, found_at in places.items()}


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_name_does_not_come_back(name: str) -> None:
    instead, folders = RETIRED[name]
    left = [place for place in used()[name] if place.startswith(tuple(f"{folder}/" for folder in folders))]
    assert left == [], f"now called {instead}"


def test_every_form_of_an_identifier_is_seen() -> None:
    source = """
import a.b as c
from d import e
class F:
    g: int
def h(i, *, j):
    k = l(m=1).n
    return f"{o}"
try:
    pass
except Exception as p:
    pass
match 1:
    case q:
        pass
match {}:
    case {**r}:
        pass
def F() -> None:
    global s
"""
    assert set("abcdeFghijklmnopqrs") <= {name for name, _ in names_in(ast.parse(source))}
