"""The Reference engine: a CPU server with a toy DeepSeek-V4.1, for demos, tests and as an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.api.fault import Fault
from epd_operator.api.names import BOOTSTRAP_PORT, ENCODER_PORT, HTTP_PORT, RoleName
from epd_operator.engines.profile import ArgSpec, Context, DefaultResources, Images, Port, Probe, Profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.api.deployment import Spec

PROGRAM: Final = "epd-reference"

PRE_STOP_SECONDS: Final = 7
_EXIT_SECONDS: Final = 3
"""From the end of draining to the end of the process."""

_SHARED: Final[Mapping[str, ArgSpec]] = {
    "max-running-requests": ArgSpec("int", "requests computed at once", default=16, minimum=1),
    "max-queued-requests": ArgSpec("int", "requests that may wait; more are answered 503", default=64, minimum=1),
    "seed": ArgSpec("int", "seed of the weights", identity=True, default=0, minimum=0),
    "image-timeout": ArgSpec("float", "seconds to fetch one image", minimum=0.01),
    "max-image-bytes": ArgSpec("int", "largest image file", minimum=1),
    "max-images": ArgSpec("int", "most images in one request", minimum=1),
}
_SERVING: Final[Mapping[str, ArgSpec]] = {
    **_SHARED,
    "context-length": ArgSpec("int", "most tokens of prompt plus answer", default=8192, minimum=16, maximum=2**20),
    "page-size": ArgSpec("int", "tokens in a key/value page", identity=True, default=64, minimum=1, maximum=4096),
    "chunked-prefill-size": ArgSpec("int", "prompt tokens computed in one step", default=512, minimum=1),
    "max-total-tokens": ArgSpec("int", "tokens that all pages hold together", default=65536, minimum=1),
    "handshake-timeout": ArgSpec("float", "seconds to wait for the other half of a request", minimum=0.01),
    "silence-timeout": ArgSpec("float", "seconds of silence before a peer counts as lost", minimum=0.01),
}
_PREFILL: Final[Mapping[str, ArgSpec]] = {
    **_SERVING,
    "encode-timeout": ArgSpec("float", "seconds for one try at one encode server", minimum=0.01),
    "encoder-probe-interval": ArgSpec("float", "seconds between health probes of encode servers", minimum=0.01),
}
_OWNED: Final[Mapping[str, ArgSpec]] = {
    "role": ArgSpec("str", "which role the process plays", owned_by="the place under spec.roles sets it"),
    "host": ArgSpec("str", "address to listen on", owned_by="engine pods always listen on their own address"),
    "port": ArgSpec("int", "port to listen on", owned_by=f"it is always {HTTP_PORT}"),
    "served-model-name": ArgSpec("str", "name that clients send", owned_by="spec.model.servedName sets it"),
    "model-path": ArgSpec("str", "directory of the checkpoint", owned_by="spec.model.path sets it"),
    "bootstrap-port": ArgSpec("int", "port of the bootstrap server", owned_by="spec.transfer.bootstrapPort sets it"),
    "encoder-bootstrap-port": ArgSpec("int", "port of encoder registration", owned_by=f"it is always {ENCODER_PORT}"),
    "advertise-host": ArgSpec("str", "address that peers dial", owned_by="it is always the pod's address"),
    "layout-key": ArgSpec("str", "what peers must share", owned_by="it is the compatibility key of the set"),
    "drain-timeout": ArgSpec(
        "float",
        "seconds that requests may go on after SIGTERM",
        owned_by="pod.terminationGracePeriodSeconds of the role sets it",
    ),
}
# Prefill and decode read the same prompt: one that takes images and one that refuses them must never be paired.
_VISION: Final[Mapping[str, ArgSpec]] = {
    "vision": ArgSpec(
        "str",
        "where images are encoded",
        identity=True,
        owned_by="the presence of spec.roles.encode sets it",
        default="remote",
    )
}


def _derive(role: RoleName, spec: Spec, grace_seconds: int) -> dict[str, Any]:
    drain = {"drain-timeout": max(1, grace_seconds - PRE_STOP_SECONDS - _EXIT_SECONDS)}
    if role == "encode":
        return drain
    return {**drain, "vision": "off" if spec.roles.encode is None else "remote"}


def _argv(role: RoleName, context: Context) -> list[str]:
    flags: dict[str, Any] = {
        "role": role,
        "host": "0.0.0.0",
        "port": HTTP_PORT,
        "advertise-host": "$(POD_IP)",
        "served-model-name": context.served_name,
        "bootstrap-port": context.bootstrap_port,
        "encoder-bootstrap-port": ENCODER_PORT,
        **({"model-path": context.model_path} if context.model_path else {}),
        "layout-key": context.layout_key,
        **{name: context.args[name] for name in sorted(context.args)},
    }
    return [PROGRAM, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def _image(settings: Images) -> str:
    return settings.worker_image


def _ports(role: RoleName, bootstrap_port: int) -> tuple[Port, ...]:
    http = Port("http", HTTP_PORT)
    if role != "prefill":
        return (http,)
    return (http, Port("bootstrap", bootstrap_port), Port("encoders", ENCODER_PORT))


def _probes(_role: RoleName, startup_minutes: int) -> dict[str, Probe]:
    period = 2
    return {
        "startupProbe": Probe("/health", "http", period, 5, max(1, startup_minutes * 60 // period)),
        "readinessProbe": Probe("/ready", "http", period, 5, 3),
        # A long step holds the only core: liveness must outlast it, or a busy pod is killed.
        "livenessProbe": Probe("/health", "http", 30, 25, 3),
    }


def _refuse(spec: Spec) -> Sequence[Fault]:
    faults = []
    path = spec.model.path
    if path is not None and not path.startswith("/"):
        faults.append(
            Fault(
                "spec.model.path",
                path,
                "the Reference engine loads a directory, not a hub id: give an absolute path, or leave it out "
                "to serve the checkpoint in the image",
            )
        )
    for name, role in spec.roles.declared().items():
        total, page = role.args.get("max-total-tokens"), role.args.get("page-size", 64)
        if isinstance(total, int) and isinstance(page, int) and total < page:
            place = f"spec.roles.{name}.args.max-total-tokens"
            faults.append(Fault(place, total, f"must hold at least one page of {page}: raise it or lower page-size"))
    taken = {HTTP_PORT: "engine HTTP", ENCODER_PORT: "encoder registration"}
    port = spec.transfer.bootstrap_port
    if port in taken:
        message = f"is the port of {taken[port]}: use another, such as {BOOTSTRAP_PORT}"
        faults.append(Fault("spec.transfer.bootstrapPort", port, message))
    return faults


REFERENCE: Final = Profile(
    engine_type="Reference",
    version="0.1",
    roles=("encode", "prefill", "decode"),
    capabilities=frozenset({"vision-encode"}),
    default_platform="cpu",
    transfers=("tcp",),
    catalogue={
        "encode": {**_SHARED, **_OWNED},
        "prefill": {**_PREFILL, **_OWNED, **_VISION},
        "decode": {**_SERVING, **_OWNED, **_VISION},
    },
    # Small requests: a node of two cores must hold a whole deployment, and a second set during a rollout.
    resources={
        "encode": DefaultResources(cpu="100m", memory="1Gi"),
        "prefill": DefaultResources(cpu="150m", memory="1Gi"),
        "decode": DefaultResources(cpu="150m", memory="1Gi"),
    },
    default_startup_minutes=2,
    default_grace_seconds=60,
    pre_stop_seconds=PRE_STOP_SECONDS,
    argv=_argv,
    image=_image,
    role_ports=_ports,
    role_probes=_probes,
    derive=_derive,
    environment=({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},),
    refuse=_refuse,
)
