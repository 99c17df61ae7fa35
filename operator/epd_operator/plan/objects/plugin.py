"""The files of an engine's plugins that an image of their own holds: copied beside the engine before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names
from epd_operator.plan.objects import security

if TYPE_CHECKING:
    from epd_operator.plan.render_context import RenderContext

CONTAINER: Final = "plugin"
_VOLUME: Final = "epd-plugin"
_COPY: Final = "/plugin"
"""Where the copying container has the volume: at the engine's place its own files would be hidden by it."""
_RESOURCES: Final = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}


def init_containers(context: RenderContext) -> dict[str, Any]:
    """The part of a pod spec that copies the files; nothing where the engine's image holds them."""
    image = context.document.spec.engine.plugin_image
    if image is None:
        return {}
    container = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": context.effective.image_pull_policy,
        # Neither owner nor times are kept: only the owner of a folder may set them, and the volume's is another user.
        "command": ["cp", "-R", f"{names.PLUGIN_FOLDER}/.", f"{_COPY}/"],
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        "securityContext": security.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _VOLUME, "mountPath": _COPY}],
    }
    return {"initContainers": [container]}


def volumes(context: RenderContext) -> list[dict[str, Any]]:
    """The volume with the copy."""
    return [] if context.document.spec.engine.plugin_image is None else [{"name": _VOLUME, "emptyDir": {}}]


def mounts(context: RenderContext) -> list[dict[str, Any]]:
    """Mounts of `volumes` in the engine's container."""
    if context.document.spec.engine.plugin_image is None:
        return []
    return [{"name": _VOLUME, "mountPath": names.PLUGIN_FOLDER, "readOnly": True}]


def environment(context: RenderContext) -> list[dict[str, Any]]:
    """The variable that shows the engine the copy."""
    if context.document.spec.engine.plugin_image is None:
        return []
    return [{"name": context.profile.plugin_path, "value": names.PLUGIN_FOLDER}]
