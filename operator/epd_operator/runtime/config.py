"""The operator's settings, read from its environment: one place and one message for each."""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epd_operator import __version__
from epd_operator.api.names import OPERATOR_METRICS_PORT, OPERATOR_PROBES_PORT
from epd_operator.engines.advisories import AdvisoryError, load
from epd_operator.runtime.lease import Timing
from epd_operator.runtime.watch_scope import WatchScope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.advisory import Advisory

NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
RDMA_RESOURCE: Final = "rdma/ib"
"""Name on managed InfiniBand clusters; a device plugin that somebody configured may use another."""
RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?")
IMAGE_DEFAULTS: Final = {"EPD_ROUTER_IMAGE": "epd-router", "EPD_WORKER_IMAGE": "epd-worker"}


class ConfigError(ValueError):
    """The environment is wrong; the message lists every fault."""


@dataclass(frozen=True)
class Config:
    """Settings of one operator process.

    Attributes:
        scope: Namespaces to watch.
        namespace: Namespace of the Lease (the operator's own).
        identity: Lease identity, unique per process.
        lease: Name of the Lease.
        timing: Lease timing.
        router_image: Default router image.
        worker_image: Default image of the Reference engine.
        rdma_resource: Name under which the cluster's device plugin offers RDMA devices.
        advisories: Engine builds known to misbehave.
        workers: Reconciliations at once.
        metrics_port: Port of /metrics; 0 picks a free one.
        probes_port: Port of /healthz and /readyz; 0 picks a free one.
        registrar_port: Port on which router pods answer `GET /state`.
        resync_seconds: Seconds between two times at which everything is listed and reconciled again.
    """

    scope: WatchScope = field(default_factory=WatchScope)
    namespace: str = "epd-system"
    identity: str = ""
    lease: str = "epd-operator"
    timing: Timing = field(default_factory=Timing)
    router_image: str = ""
    worker_image: str = ""
    rdma_resource: str = RDMA_RESOURCE
    advisories: tuple[Advisory, ...] = ()
    workers: int = 32
    metrics_port: int = OPERATOR_METRICS_PORT
    probes_port: int = OPERATOR_PROBES_PORT
    registrar_port: int = 8081
    resync_seconds: float = 600.0

    @property
    def user_agent(self) -> str:
        """Names the version and the lease identity, so that the audit log shows who held the lease at each write."""
        return f"epd-operator/{__version__} ({self.identity})"


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the environment.

    Raises:
        ConfigError: Something is wrong; all faults in one message.
    """
    faults: list[str] = []
    raw = environ.get("EPD_WATCH_NAMESPACE", "")
    namespaces = tuple(sorted({part.strip() for part in raw.split(",") if part.strip()}))
    faults += [
        f"EPD_WATCH_NAMESPACE: {name!r} is not a namespace name: give names separated by commas, or nothing for all"
        for name in namespaces
        if not NAMESPACE.fullmatch(name)
    ]

    rdma_resource = environ.get("EPD_RDMA_RESOURCE") or RDMA_RESOURCE
    if not RESOURCE.fullmatch(rdma_resource):
        faults.append(
            f"EPD_RDMA_RESOURCE: {rdma_resource!r} is not an extended resource: give prefix/name, "
            f"such as {RDMA_RESOURCE}"
        )

    advisories: tuple[Advisory, ...] = ()
    if path := environ.get("EPD_ADVISORIES"):
        try:
            advisories = load(Path(path))
        except AdvisoryError as error:
            faults += [f"EPD_ADVISORIES: {line}" for line in str(error).splitlines()]

    def number(name: str, default: int, low: int, high: int) -> int:
        text = environ.get(name, "")
        value = int(text) if text.isdecimal() else default
        if text and not (text.isdecimal() and low <= value <= high):
            faults.append(f"{name}: {text!r} must be a whole number from {low} to {high}: correct or unset it")
        return value

    config = Config(
        scope=WatchScope(namespaces),
        namespace=environ.get("POD_NAMESPACE") or "epd-system",
        identity=f"{environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}",
        lease=environ.get("EPD_LEASE_NAME") or "epd-operator",
        router_image=environ.get("EPD_ROUTER_IMAGE") or f"{IMAGE_DEFAULTS['EPD_ROUTER_IMAGE']}:{__version__}",
        worker_image=environ.get("EPD_WORKER_IMAGE") or f"{IMAGE_DEFAULTS['EPD_WORKER_IMAGE']}:{__version__}",
        rdma_resource=rdma_resource,
        advisories=advisories,
        workers=number("EPD_WORKERS", 32, 1, 64),
        metrics_port=number("EPD_METRICS_PORT", OPERATOR_METRICS_PORT, 0, 65535),
        probes_port=number("EPD_PROBES_PORT", OPERATOR_PROBES_PORT, 0, 65535),
    )
    if faults:
        raise ConfigError("\n".join(faults))
    return config
