"""Runs a callback right behind the import of a module: now if that has been, else when somebody imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    Callback = Callable[[ModuleType], None]


def after_import(name: str, callback: Callback) -> None:
    """Call back with the module once its code has run, before its importer sees it.

    Args:
        name: Dotted name of the module.
        callback: What it raises, the import raises.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    finder = next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(callback)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the path finder finds, with a loader that calls back."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callback]] = {}

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for callback in self.waiting.pop(fullname, ()):
                callback(module)

        # The loader stays the standard one: resources and tracebacks ask it for its class.
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
