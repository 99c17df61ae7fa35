"""What the registrar needs to know of one engine pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLE_LABEL = "serving.epd.dev/role"
KEY_LABEL = "serving.epd.dev/compat-key"
REVISION_LABEL = "serving.epd.dev/revision"
BOOTSTRAP_PORT_NAME = "bootstrap"
ROLES = ("encode", "prefill", "decode")


@dataclass(frozen=True)
class Pod:
    """One engine pod as the API server shows it.

    Attributes:
        name: metadata.name.
        uid: metadata.uid; distinguishes two pods that had the same address.
        ip: status.podIP, empty before the pod has one and after an eviction.
        role: One of ROLES.
        key: The compatibility key; pods of different keys must never serve one request together.
        revision: The role's revision.
        image: Digest of the engine container's image (``sha256:...``), empty before it runs.
        ready: The Ready condition, readiness gates included.
        deleting: A deletion is under way, or the pod has ended.
        created: metadata.creationTimestamp, RFC 3339 in UTC, so it sorts as text.
        bootstrap_port: Its container port named `bootstrap`, where a decode asks a prefill for its pages; it is each
            pod's own, because two sets may differ in it. None leaves the choice to the engines.
    """

    name: str
    uid: str
    ip: str
    role: str
    key: str
    revision: str
    image: str
    ready: bool
    deleting: bool
    created: str
    bootstrap_port: int | None

    def url(self, port: int) -> str:
        """Address of the engine's HTTP server."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{port}"


class PodSource(Protocol):
    """Where the pods come from."""

    @property
    def pods(self) -> list[Pod] | None:
        """The pods as last seen, None before anything was seen."""


def pod_of(obj: Mapping[str, Any], engine_port: int) -> Pod | None:
    """Read a pod object.

    Args:
        obj: A core/v1 Pod as JSON.
        engine_port: Distinguishes the engine container from helpers beside it.

    Returns:
        The pod, or None when its labels do not make it an engine of a known role.
    """
    meta = obj["metadata"]
    labels = meta.get("labels") or {}
    status = obj.get("status") or {}
    if labels.get(ROLE_LABEL) not in ROLES:
        return None
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        ip=status.get("podIP") or "",
        role=labels[ROLE_LABEL],
        key=labels.get(KEY_LABEL, ""),
        revision=labels.get(REVISION_LABEL, ""),
        image=_image(obj, engine_port),
        ready=conditions.get("Ready") == "True",
        deleting="deletionTimestamp" in meta or status.get("phase") in {"Failed", "Succeeded"},
        created=meta.get("creationTimestamp") or "",
        bootstrap_port=_port(obj, BOOTSTRAP_PORT_NAME),
    )


def _port(obj: Mapping[str, Any], name: str) -> int | None:
    """The container port of that name."""
    containers = (obj.get("spec") or {}).get("containers") or ()
    ports = (port for container in containers for port in container.get("ports") or ())
    return next((port["containerPort"] for port in ports if port.get("name") == name), None)


def _image(obj: Mapping[str, Any], engine_port: int) -> str:
    """The digest that the engine container runs; runtimes write ``repository@sha256:...`` or the digest alone."""
    containers = (obj.get("spec") or {}).get("containers") or [{}]
    engine = next(
        (c for c in containers if any(p.get("containerPort") == engine_port for p in c.get("ports") or ())),
        containers[0],
    )
    statuses = (obj.get("status") or {}).get("containerStatuses") or ()
    image = next((s.get("imageID") or "" for s in statuses if s.get("name") == engine.get("name")), "")
    return image.rpartition("@")[2].removeprefix("docker://")
