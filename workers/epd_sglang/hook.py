"""A hook: one change to one name of the engine, and what that change leans on.

The engine has a registry of hooks of its own. It imports every target when plugins are loaded, which costs seconds in
each process, so ours wait until the engine imports a target by itself (`late`).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True)
class Target:
    """A name in a module of the engine.

    Attributes:
        module: Dotted, from `sglang` on.
        path: The name in it: a function, a class, or an attribute of a class as ``Class.attribute``.
    """

    module: str
    path: str

    @override
    def __str__(self) -> str:
        return f"{self.module}:{self.path}"

    @property
    def file(self) -> str:
        """The file of the module, as the engine's wheel names it below its package."""
        return "/".join(self.module.split(".")[1:]) + ".py"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    def owner(self, module: ModuleType) -> Any:
        """What holds the name: the module, or a class in it."""
        owner: Any = module
        for part in self.path.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner


class Hook(ABC):
    """One change to one name of the engine.

    Attributes:
        target: The name.
        signature: Parameters of the stock function as its source writes them, without annotations and defaults; none
            for a name that is no function, or that the stock class only inherits.
        reason: Why the stock one does not do, in a sentence.
        adds: Whether the stock class only inherits the name.
        source: The line of the engine that the hook leans on, ``srt/file.py:123``, and any other files whose behaviour
            it takes for granted.
    """

    target: ClassVar[Target]
    signature: ClassVar[tuple[str, ...] | None] = None
    reason: ClassVar[str]
    source: ClassVar[tuple[str, ...]]
    adds: ClassVar[bool] = False

    @property
    def files(self) -> frozenset[str]:
        """Files of the engine that must be the known ones, byte for byte."""
        return frozenset({self.target.file, *(line.partition(":")[0] for line in self.source)})

    @abstractmethod
    def replacement(self, module: ModuleType, stock: Any) -> Any:
        """What takes the stock one's place.

        Args:
            module: The engine's module, just imported.
            stock: What the name means without us.
        """

    def apply(self, module: ModuleType) -> None:
        """Rebind the name, also where other modules of the engine have taken it with ``from ... import``."""
        owner, name = self.target.owner(module), self.target.name
        stock = getattr(owner, name)
        new = self.replacement(module, stock)
        setattr(owner, name, new)
        if owner is module:
            _rebind(name, stock, new)


def _rebind(name: str, stock: object, new: object) -> None:
    """Follow copies of a module's name. A copy under another name is not found; a hook that has one must name it."""
    for path, module in list(sys.modules.items()):
        if path.startswith("sglang.") and getattr(module, "__dict__", {}).get(name) is stock:
            setattr(module, name, new)
