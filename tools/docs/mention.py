"""Whether what pages put in backticks exists: files, folders, modules, and words that must occur in the code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from typing import TYPE_CHECKING, Final

from tools.docs.page import ROOT, Page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE_FOLDERS: Final = (
    "bench", "charts", "docs/examples", "e2e", "images", "kernels", "manifests", "operator", "requirements", "tests",
    "tools", "workers",
)  # fmt: skip
_SUFFIXES: Final = frozenset({
    ".py", ".yaml", ".yml", ".json", ".jsonl", ".toml", ".sh", ".lua", ".tpl", ".txt", ".in", ".mod", ".Containerfile",
})  # fmt: skip
_FILE: Final = re.compile(r"^(?:\.?[\w*-]+/)*[\w*.-]+\.(?:py|md|yaml|toml|sh|lua|svg|json|jsonl|Containerfile)$")
_FOLDER: Final = re.compile(r"^(?:[\w*.-]+/)+[\w*.-]*$")
_MODULE: Final = re.compile(r"^epd_\w+(?:\.\w+)+$")
_WORD: Final = re.compile(r"[A-Za-z_][\w-]{3,}")
_PLACEHOLDER: Final = re.compile(r"<|NNNN|VERSION")
_SKIPPED: Final = frozenset({"build", "dist", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class Elsewhere:
    """What pages name and this repository does not have, each with a reason beside it in the test.

    Attributes:
        files: Files and folders.
        words: Words of other programs.
    """

    files: frozenset[str]
    words: frozenset[str]


def files(page: Page, elsewhere: Elsewhere, root: Path = ROOT) -> Iterator[str]:
    """A line for each file, folder or module in backticks that does not exist.

    A path may start at the repository's root, at the page's folder, or at any folder, as long as one file fits.
    """
    for line, text in page.codes:
        if text in elsewhere.files or _PLACEHOLDER.search(text):
            continue
        if _MODULE.match(text):
            if not _module(text, root):
                yield f"{page.path}:{line}: there is no module {text}"
        elif (_FILE.match(text) or (_FOLDER.match(text) and _begins_here(text, root))) and not _known(text, page, root):
            yield f"{page.path}:{line}: {text} does not exist"


def words(page: Page, elsewhere: Elsewhere, root: Path = ROOT) -> Iterator[str]:
    """A line for each word in backticks that stands nowhere in the repository's code: renamed, or made up."""
    known = vocabulary(root) | elsewhere.words
    for line, text in page.codes:
        for word in () if _PLACEHOLDER.search(text) else _WORD.findall(text):
            # Prometheus' client adds the ending of a counter by itself.
            if not {word, word.strip("-_"), word.removesuffix("_total")} & known:
                yield f"{page.path}:{line}: {word!r} (in {text!r}) stands nowhere in the code"


def _begins_here(text: str, root: Path) -> bool:
    return (root / text.split("/", 1)[0]).is_dir()


def _known(text: str, page: Page, root: Path) -> bool:
    wanted = text.rstrip("/")
    places = (root / wanted, root / page.folder / wanted)
    if "*" not in wanted and any(place.exists() for place in places):
        return True
    if "*" not in wanted:
        return f"\n{wanted}\n" in _lines(root) or f"/{wanted}\n" in _lines(root)
    return any(fnmatch(path, wanted) or fnmatch(path, f"*/{wanted}") for path in listing(root))


def _module(text: str, root: Path) -> bool:
    parts = text.split(".")
    for end in range(len(parts), 0, -1):
        tail = "/".join(parts[:end])
        result = [path for path in listing(root) if path.endswith((f"/{tail}.py", f"/{tail}/__init__.py"))]
        if result:
            source = (root / result[0]).read_text(encoding="utf-8")
            return all(re.search(rf"\b{name}\b", source) for name in parts[end:])
    return False


@cache
def listing(root: Path) -> tuple[str, ...]:
    """Every file and folder of the repository's own, by path."""
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in _SKIPPED]
    kept = [path for path in folders if not path.name.startswith(".") or path.name in {".ci", ".github"}]
    inside = (path for folder in kept for path in (folder, *folder.rglob("*")))
    result = [path for path in (*root.iterdir(), *inside) if "__pycache__" not in path.parts]
    return tuple(sorted({path.relative_to(root).as_posix() for path in result}))


@cache
def _lines(root: Path) -> str:
    return "\n" + "\n".join(listing(root)) + "\n"


@cache
def vocabulary(root: Path) -> frozenset[str]:
    """Every word of the repository's code and manifests; of words with dashes the parts as well."""
    result = {part for path in listing(root) for part in _WORD.findall(path)}
    here = [root / name for name in ("pyproject.toml", "Makefile", "conftest.py", "mkdocs.yml")]
    inside = (path for folder in SOURCE_FOLDERS for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES)
    for path in (*here, *inside):
        if path.is_file() and "tests/docs" not in path.as_posix() and "__pycache__" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="replace")
            result.update(_WORD.findall(text))
            result.update(re.findall(r"[A-Za-z_]\w{3,}", text))
    return frozenset(result)
