"""Whether Kubernetes itself knows every field of an object, without a cluster: by its published schemas."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import kubernetes_validate
from kubernetes_validate import utils

if TYPE_CHECKING:
    from collections.abc import Mapping

MINORS = ("1.36.0", "1.37.0")
"""The releases that the objects are for."""
OLDEST = MINORS[0]
# The library reads megabytes of definitions for each object; they are the same every time.
_contents = cache(utils.schema_contents)


def require_known(obj: Mapping[str, Any], minor: str) -> None:
    """Refuse an object with a field that a release does not know, or with a value of another type.

    Raises:
        kubernetes_validate.ValidationError: With the path and the rule.
    """
    with mock.patch.object(utils, "schema_contents", _contents):
        kubernetes_validate.validate(dict(obj), minor, strict=True)
