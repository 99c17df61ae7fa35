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
    from epd_operator.plan.render_context import RenderContext

KIND = ("apps/v1", "ControllerRevision")


def stored_templates(children: Sequence[Object], name: str, fields: Sequence[str]) -> dict[str, Any] | None:
    """The pod templates that a ControllerRevision of this name keeps; None when it does not keep all of them.

    Args:
        children: Live children of the resource.
        name: Name of the ControllerRevision.
        fields: `template`, and `workerTemplate` where pods form groups.
    """
    for child in of_kind(children, KIND[1]):
        if name_of(child) == name:
            templates = _templates(child)
            return templates if all(isinstance(templates.get(field), dict) for field in fields) else None
    return None


def stored_image(children: Sequence[Object], compat_key: str) -> str | None:
    """The engine image of the set with this compatibility key, as its first stored template has it.

    A role that gets a new revision inside a set must run the image of the set: the registrars never pair two images
    under one key.
    """
    for child in of_kind(children, KIND[1]):
        if labels(child).get(names.LABEL_COMPAT_KEY) == compat_key:
            template = _templates(child).get("template")
            containers = template.get("spec", {}).get("containers", ()) if isinstance(template, dict) else ()
            for container in containers:
                return str(container["image"])
    return None


def controller_revision(context: RenderContext, part: str, name: str, templates: Mapping[str, Any]) -> dict[str, Any]:
    """The object that keeps pod templates; `revision` is required by the API and means nothing here."""
    return context.revised(KIND, name, part, data={"spec": dict(templates)}, revision=1)


def _templates(child: Object) -> dict[str, Any]:
    match child.get("data"):
        case {"spec": dict(spec)}:
            return spec
        case _:
            return {}
