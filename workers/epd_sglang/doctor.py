"""Which hooks would apply to the installed engine, and why not the others, read from the engine's sources."""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from epd_sglang import digests, engine
from epd_sglang.hook import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from epd_sglang.hook import Hook

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Finding:
    """One hook against the installed engine.

    Attributes:
        hook: Its class.
        target: What it changes.
        reason: Why.
        source: Lines of the engine that it leans on.
        faults: Why it cannot be applied; empty if it can.
    """

    hook: str
    target: str
    reason: str
    source: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def applies(self) -> bool:
        """Whether it would be put in place."""
        return not self.faults

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "applies": self.applies}


def examine(hooks: Iterable[Hook]) -> list[Finding]:
    """Hold hooks against the installed engine.

    Raises:
        ModuleNotFoundError: There is none.
    """
    root, version, known = engine.root(), engine.version(), digests.known()
    return [
        Finding(
            type(hook).__name__, str(hook.target), hook.reason, hook.source, tuple(_faults(hook, root, version, known))
        )
        for hook in hooks
    ]


def _faults(hook: Hook, root: Path, version: str, known: dict[str, str]) -> Iterator[str]:
    if version != engine.VERSION:
        yield f"the engine is {version}, not {engine.VERSION}"
    for name in sorted(hook.files):
        result = engine.digest(root / name)
        if result is None:
            yield f"{name} is missing"
        elif result != known[name]:
            yield f"{name} is not the file of SGLang {engine.VERSION}"
    path = root / hook.target.file
    if path.is_file():
        target = Target(hook.target.module, hook.target.path.rpartition(".")[0]) if hook.adds else hook.target
        yield from name_faults(target, hook.signature, path.read_text(encoding="utf-8"))


def name_faults(target: Target, signature: Sequence[str] | None, source: str) -> Iterator[str]:
    """What is wrong with a target's name in the source of its module.

    Args:
        target: The name.
        signature: Its parameters; none leaves them open.
        source: Of the module.
    """
    *classes, name = target.path.split(".")
    body: Sequence[ast.stmt] = ast.parse(source).body
    for outer in classes:
        inner = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == outer), None)
        if inner is None:
            yield f"{target.file} has no class {outer}"
            return
        body = inner.body
    named = [node for bound, node in _bound(body) if bound == name]
    if not named:
        yield f"{target.file} has no {target.path}"
        return
    seen = [each for each in map(_parameters, named) if each is not None]
    if signature is not None and tuple(signature) not in seen:
        yield f"{target.path} has other parameters: {', '.join(seen[0]) if seen else 'none'}"


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that statements of a module or a class bind, conditional ones included, each with its statement."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Assign():
                yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name, node) for alias in node.names)
            case ast.If() | ast.Try():
                yield from _bound([*node.body, *node.orelse])
            case _:
                pass


def _parameters(node: ast.stmt) -> tuple[str, ...] | None:
    if not isinstance(node, _Function):
        return None
    arguments = node.args
    return tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
