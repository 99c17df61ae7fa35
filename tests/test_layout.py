"""Who may import whom among product, tools and tests, that helpers exist once, and that fixtures have types."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PRODUCT = ("operator/", "workers/", "kernels/", "images/")
OTHERS = re.compile(r"import.*\b(tests|tools|e2e|bench)\b|\bfrom\s.*\b(tests|tools|e2e|bench)\b")
# What waits and what finds ports is written in these modules and nowhere else among the tests.
GENERAL = ("tests/support/polling.py", "tests/support/ports.py")
SYNONYMS = {"wait_for", "wait_until"}
"""What such helpers were called as well."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One imported module, type-only imports included."""

    file: str
    module: str

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def is_test(self) -> bool:
        """Whether it is a file that pytest collects: a library's own `test_utils` is none."""
        last = self.module.rpartition(".")[2]
        return self.top in {"tests", "e2e"} and (last == "conftest" or last.startswith("test_"))


@cache
def sources() -> dict[str, ast.Module]:
    """Every Python file of the repository that can break a rule, by its path."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    paths = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if path and (ROOT / path).exists()}
    assert len(texts) > 700, "git lists the repository"
    # Parsing is what takes time: product code that does not even mention the others cannot import them.
    return {
        path: ast.parse(text) for path, text in texts.items() if not path.startswith(PRODUCT) or OTHERS.search(text)
    }


def imports(*folders: str) -> Iterator[Import]:
    for file, tree in sources().items():
        if file.startswith(folders):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    yield from (Import(file, alias.name) for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    yield from _imported_from(file, node)


def _imported_from(file: str, node: ast.ImportFrom) -> Iterator[Import]:
    """The module, and what may be a module of it: `from tests.api import test_crd` names one, too."""
    above = Path(file).parts[: -node.level] if node.level else ()
    module = ".".join((*above, *([node.module] if node.module else ())))
    yield Import(file, module)
    yield from (Import(file, f"{module}.{alias.name}") for alias in node.names)


def functions(*folders: str) -> Iterator[tuple[str, Function]]:
    for file, tree in sources().items():
        if file.startswith(folders):
            yield from ((file, node) for node in ast.walk(tree) if isinstance(node, Function))


def of_tests() -> list[Import]:
    return [each for each in imports("tests/", "e2e/", "tools/", "bench/", *PRODUCT) if each.is_test]


def written_again() -> list[str]:
    """Definitions of what waits or finds ports outside of where it belongs."""
    names = {node.name for file, node in functions("tests/support/") if file in GENERAL}
    assert {"until", "eventually", "free_port", "free_ports"} <= names
    return [
        f"{file}: {node.name}"
        for file, tree in sources().items()
        if file.startswith(("tests/", "e2e/tests/")) and file not in GENERAL
        for node in tree.body
        if isinstance(node, Function) and node.name in names | SYNONYMS
    ]


def test_no_module_imports_a_test_or_a_conftest() -> None:
    assert of_tests() == []


def test_product_code_imports_neither_tests_nor_tools() -> None:
    assert [each for each in imports(*PRODUCT) if each.top in {"tests", "tools", "e2e", "bench"}] == []


def test_tools_and_benchmarks_import_no_tests() -> None:
    wrong = [each for each in imports("tools/", "bench/") if f"{each.module}.".startswith(("tests.", "e2e.tests."))]
    assert wrong == []


def test_the_cluster_s_tests_share_helpers_with_the_others_and_nothing_else() -> None:
    shared = [each for each in imports("e2e/") if each.top == "tests"]
    assert [each for each in shared if not f"{each.module}.".startswith("tests.support.")] == []
    assert {each.file for each in shared if not each.file.startswith("e2e/tests/")} == set(), "the demo needs no tests"
    assert [each for each in imports("tests/") if each.top == "e2e" and "tests" in each.module.split(".")] == []


def test_waiting_and_ports_are_written_once() -> None:
    assert written_again() == []


def test_fixtures_have_types() -> None:
    """`Any` there would take all that a test does with a fixture out of mypy's sight."""
    defined = {node.name for _, node in functions("tests/", "e2e/") if _is_fixture(node)}
    assert {"world", "epd", "virtual"} <= defined
    untyped = [
        f"{file}:{node.lineno}: {node.name}"
        for file, node in functions("tests/", "e2e/")
        if (_is_fixture(node) and _is_any(node.returns))
        or any(_is_any(each.annotation) and each.arg in defined - _cases(node) for each in _parameters(node))
    ]
    assert untyped == []


def _is_fixture(node: Function) -> bool:
    return any("fixture" in ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list)


def _is_any(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def _parameters(node: Function) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _cases(node: Function) -> set[str]:
    """What decorators give it: the columns of a table, or data that is drawn."""
    return {
        name
        for decorator in node.decorator_list
        for part in ast.walk(decorator)
        for name in (
            [part.arg]
            if isinstance(part, ast.keyword) and part.arg
            else part.value.replace(",", " ").split()
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
            else []
        )
    }
