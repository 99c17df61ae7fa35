"""Rendered pod templates, kept in ControllerRevisions, so that an operator upgrade restarts no pod.

The API server makes `data` of a ControllerRevision immutable. Whoever deletes one on purpose asks for its pods to be
rendered, and rolled, by the running release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.plan.observation import labels, name_of, of_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.observation import Object
    from epd_operator.plan.scope import Scope

KIND = ("apps/v1", "ControllerRevision")


def stored_template(children: Sequence[Object], name: str) -> dict[str, Any] | None:
    """The pod template that a ControllerRevision of this name keeps; None when there is none."""
    for child in of_kind(children, KIND[1]):
        if name_of(child) == name:
            return _template(child)
    return None


def stored_image(children: Sequence[Object], compat_key: str) -> str | None:
    """The engine image of the set with this compatibility key, as its first stored template has it.

    A role that gets a new revision inside a set must run the image of the set: the registrars never pair two images
    under one key.
    """
    for child in of_kind(children, KIND[1]):
        if labels(child).get(names.LABEL_COMPAT_KEY) == compat_key:
            template = _template(child) or {}
            for container in template.get("spec", {}).get("containers", ()):
                return str(container["image"])
    return None


def controller_revision(scope: Scope, part: str, name: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """The object that keeps a pod template; `revision` is required by the API and means nothing here."""
    return scope.revised(KIND, name, part, data={"spec": {"template": dict(template)}}, revision=1)


def _template(child: Object) -> dict[str, Any] | None:
    match child.get("data"):
        case {"spec": {"template": dict(template)}}:
            return template
        case _:
            return None
