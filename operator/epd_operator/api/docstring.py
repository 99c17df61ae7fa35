"""The text under each field of a model, which `kubectl explain` shows.

Pydantic can collect it by itself, but then reads the source of every model at every start, and only the generator of
the CRD wants it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def docstrings(model: type) -> dict[str, str]:
    """The docstring of each field of a class and of its bases, by field name."""
    result: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("epd_operator."):
            result.update(_of_class(base))
    return result


def _of_class(base: type) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            yield field.target.id, inspect.cleandoc(text.value.value)
