from __future__ import annotations

import ast
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.images.recipe import NAMES, ImageError, Options, containerfile, copied, recipe, stages

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {
    "operator": "operator/epd_operator/api",
    "router": "workers/epd_workers/registrar",
    "worker": "workers/epd_workers/reference",
}
INPUTS = ("images", "requirements", "tools/images", "operator", "workers", "kernels")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name in INPUTS:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def keys(root: Path, options: Options | None = None) -> dict[str, tuple[str, str]]:
    recipes = [recipe(root, name, options or Options()) for name in NAMES]
    return {image.name: (image.dependencies, image.tag) for image in recipes}


def changed(root: Path, path: str, text: str = "\n# changed\n") -> dict[str, tuple[bool, bool]]:
    """Per image, whether its dependencies' key and its tag move when `text` is appended to a file."""
    before, file = keys(root), root / path
    content = file.read_bytes() if file.exists() else None
    file.parent.mkdir(exist_ok=True)
    file.write_bytes((content or b"") + text.encode())
    try:
        after = keys(root)
    finally:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
    assert keys(root) == before
    return {name: (before[name][0] != after[name][0], before[name][1] != after[name][1]) for name in NAMES}


NONE, CODE, ALL = (False, False), (False, True), (True, True)


@pytest.mark.parametrize("name", NAMES)
def test_code_moves_the_tag_of_its_own_image_only(project: Path, name: str) -> None:
    moved = changed(project, f"{SOURCES[name]}/extra.py")
    assert moved == {other: CODE if other == name else NONE for other in NAMES}


@pytest.mark.parametrize("folder", ["kernels/epd_kernels", "workers/epd_workers/swapool"])
def test_kernels_and_window_pool_are_in_the_worker_alone(project: Path, folder: str) -> None:
    moved = changed(project, f"{folder}/extra.py")
    assert moved == {name: CODE if name == "worker" else NONE for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_containerfile_moves_its_own_image_only(project: Path, name: str) -> None:
    moved = changed(project, f"images/{name}.Containerfile")
    assert moved == {other: CODE if other == name else NONE for other in NAMES}


@pytest.mark.parametrize(("file", "name"), [("operator", "operator"), ("router", "router"), ("workers", "worker")])
def test_locked_requirements_move_dependencies(project: Path, file: str, name: str) -> None:
    moved = changed(project, f"requirements/{file}.txt")
    assert moved == {other: ALL if other == name else NONE for other in NAMES}


@pytest.mark.parametrize("path", ["images/base.Containerfile", "images/dependencies.sh", "tools/images/base.py"])
def test_what_lies_below_moves_everything(project: Path, path: str) -> None:
    assert changed(project, path) == dict.fromkeys(NAMES, ALL)


@pytest.mark.parametrize("path", ["images/stub.py", "images/smoke.py"])
def test_the_lightening_of_torch_concerns_the_worker_only(project: Path, path: str) -> None:
    assert changed(project, path) == {"operator": NONE, "router": NONE, "worker": ALL}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("operator/epd_operator/api/__pycache__/deployment.cpython-311.pyc", "x"),
        ("pyproject.toml", "\n[tool.extra]\nx = 1\n"),
        ("requirements/dev.txt", "x"),
        ("README.md", "x"),
    ],
)
def test_what_no_image_holds_moves_nothing(project: Path, path: str, text: str) -> None:
    assert changed(project, path, text) == dict.fromkeys(NAMES, NONE)


def test_version_and_commands_are_in_every_image(project: Path) -> None:
    file = project / "pyproject.toml"
    text, before = file.read_text(), keys(project)
    file.write_text(text.replace('\nversion = "', '\nversion = "9.'))
    after = keys(project)
    file.write_text(text)
    assert {name: (before[name][0] == after[name][0], before[name][1] == after[name][1]) for name in NAMES} == (
        dict.fromkeys(NAMES, (True, False))
    )


def test_a_renamed_file_moves_the_tag(project: Path) -> None:
    folder = project / SOURCES["router"]
    (folder / "one.py").write_text("x = 1\n")
    first = keys(project)["router"]
    (folder / "one.py").rename(folder / "two.py")
    second = keys(project)["router"]
    (folder / "two.py").unlink()
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_options_move_what_they_change(project: Path) -> None:
    plain, based = keys(project), keys(project, Options(base="python:3.12-slim"))
    assert all(plain[name][0] != based[name][0] for name in NAMES)
    indexed = keys(project, Options(torch_index="https://example.org/cpu"))
    assert {name: plain[name] == indexed[name] for name in NAMES} == {"operator": True, "router": True, "worker": False}


def test_names(project: Path) -> None:
    image = recipe(project, "worker", Options())
    assert image.reference("ghcr.io/me") == f"ghcr.io/me/epd-worker:{image.tag}"
    assert len(image.tag) == 12
    assert set(image.tag) <= set("0123456789abcdef")
    assert image.tag != image.dependencies


def test_unknown_image(project: Path) -> None:
    with pytest.raises(ImageError, match="image 'engine': must be one of operator, router, worker"):
        recipe(project, "engine", Options())


def test_missing_source(tmp_path: Path, project: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(project, root)
    shutil.rmtree(root / "workers/epd_workers/registrar")
    with pytest.raises(ImageError, match="workers/epd_workers/registrar: a Containerfile copies it"):
        recipe(root, "router", Options())


def test_copied_reads_continued_lines_and_ignores_the_target() -> None:
    assert copied("FROM x\nCOPY a b/ \\\n  c /target/\nRUN true\nCOPY d /e\n") == ("a", "b/", "c", "d")


@pytest.mark.parametrize("text", ["FROM scratch\n", "FROM a\nFROM b\n", "FROM a\nFROM dependencies\nFROM c\n"])
def test_stages_refuses_other_shapes(text: str) -> None:
    with pytest.raises(ImageError, match="has two stages, the second 'FROM dependencies'"):
        stages(text)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_runs_as_a_stranger_without_a_shell(name: str) -> None:
    _, above = stages((ROOT / "images" / f"{name}.Containerfile").read_text())
    assert "USER 65532:65532" in above
    assert 'ENTRYPOINT ["' in above


@pytest.mark.parametrize("name", NAMES)
def test_an_image_holds_every_module_of_ours_that_its_code_imports(name: str) -> None:
    """The last stage copies packages one by one: a module beside them is forgotten easily."""
    above = stages(containerfile(ROOT, name).read_text(encoding="utf-8"))[1]
    held = {file for path in copied(above) for file in _modules(ROOT / path)}
    wanted = {module for file in held for module in _imported(file)}
    assert held
    assert sorted(str(path.relative_to(ROOT)) for path in wanted - held) == []


def _modules(path: Path) -> set[Path]:
    return set(path.rglob("*.py")) if path.is_dir() else {path} if path.suffix == ".py" else set()


def _imported(file: Path) -> Iterator[Path]:
    """The files of our packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Import():
                names = [alias.name for alias in node.names]
            case _:
                continue
        for name, source in itertools.product(names, ("operator", "workers", "kernels")):
            place = ROOT / source / name.replace(".", "/")
            yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())
