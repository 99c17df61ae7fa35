"""The kubelet expands `$(NAME)` in a container's arguments and variables; what a user wrote must arrive as it is.

Only `$$` is special besides, and means one dollar sign, so doubling every dollar sign says the same text literally.
Source: Kubernetes, `kubectl explain pod.spec.containers.args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def literal(value: Any) -> Any:
    """A value in which no text is expanded; texts inside maps and lists as well."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: literal(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [literal(inner) for inner in value]
    return value
