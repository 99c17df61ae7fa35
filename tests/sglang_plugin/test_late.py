from __future__ import annotations

import importlib
import inspect
import sys
from typing import TYPE_CHECKING

import pytest

from epd_sglang.late import after_import

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from; they and the finder are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("late_"):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


def test_a_module_that_is_there_is_given_at_once(modules: Path) -> None:
    write(modules, "late_there", "x = 1")
    module = importlib.import_module("late_there")
    seen: list[ModuleType] = []
    after_import("late_there", seen.append)
    assert seen == [module]


def test_a_later_import_calls_back_before_its_importer_sees_it(modules: Path) -> None:
    write(modules, "late_target", "x = 1")
    write(modules, "late_user", "from late_target import x")

    def double(module: ModuleType) -> None:
        module.__dict__["x"] *= 2

    after_import("late_target", double)
    after_import("late_target", double)
    assert importlib.import_module("late_user").x == 4, "both, in order, and before `from ... import`"
    assert inspect.getsource(importlib.import_module("late_target")).strip() == "x = 1", (
        "its loader is the standard one"
    )


def test_a_module_of_a_package_is_found_by_its_parent(modules: Path) -> None:
    (modules / "late_package").mkdir()
    write(modules / "late_package", "__init__", "")
    write(modules / "late_package", "inner", "x = 1")
    seen: list[str] = []
    after_import("late_package.inner", lambda module: seen.append(module.__name__))
    assert not seen
    importlib.import_module("late_package.inner")
    assert seen == ["late_package.inner"]


def test_what_a_callback_raises_ends_the_import(modules: Path) -> None:
    write(modules, "late_broken", "x = 1")

    def refuse(_: ModuleType) -> None:
        raise RuntimeError("unfit")

    after_import("late_broken", refuse)
    with pytest.raises(RuntimeError, match="unfit"):
        importlib.import_module("late_broken")
    assert "late_broken" not in sys.modules


def test_a_module_that_does_not_exist_stays_missing() -> None:
    after_import("late_absent", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("late_absent")
