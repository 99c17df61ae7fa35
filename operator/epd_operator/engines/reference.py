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

_SERVING: Final[Mapping[str, ArgSpec]] = {
    "context-length": ArgSpec("int", "longest prompt plus answer, in tokens", default=8192, minimum=128),
    "page-size": ArgSpec("int", "tokens in a key/value page", identity=True, default=64, minimum=1),
    "chunked-prefill-size": ArgSpec("int", "prompt tokens computed in one step", default=512, minimum=1),
    "max-total-tokens": ArgSpec("int", "tokens that all key/value pages hold together", default=65536, minimum=128),
}
_SHARED: Final[Mapping[str, ArgSpec]] = {
    "max-running-requests": ArgSpec("int", "requests computed at once", default=16, minimum=1),
    "max-queued-requests": ArgSpec("int", "requests that may wait; more are answered 503", default=64, minimum=0),
    "seed": ArgSpec("int", "seed of the weights when model.path is absent", identity=True, default=0, minimum=0),
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
}


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
        "prefill": {**_SERVING, **_SHARED, **_OWNED},
        "decode": {**_SERVING, **_SHARED, **_OWNED},
    },
    resources={
        "encode": DefaultResources(cpu="250m", memory="1Gi"),
        "prefill": DefaultResources(cpu="500m", memory="1Gi"),
        "decode": DefaultResources(cpu="500m", memory="1Gi"),
    },
    default_startup_minutes=2,
    default_grace_seconds=60,
    pre_stop_seconds=7,
    argv=_argv,
    image=_image,
    role_ports=_ports,
    role_probes=_probes,
    environment=({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},),
    refuse=_refuse,
)
