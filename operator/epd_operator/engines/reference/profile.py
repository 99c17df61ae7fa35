"""The Reference engine: a CPU server with a toy DeepSeek-V4.1, for demos, tests and as an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.api.names import ENCODER_PORT, HTTP_PORT, SWA_POOL_FILE, SWA_POOL_FOLDER, RoleName
from epd_operator.engines.profile import (
    REPLAY_REPORT,
    CommandInputs,
    DefaultResources,
    Facts,
    Hardware,
    Images,
    Port,
    Probe,
    Profile,
)
from epd_operator.engines.shared import DEFAULT_MEMORY
from epd_operator.rules.flag import Catalogue, FlagSpec
from epd_operator.rules.owner import Declaration, Fact, Field, Fixed, Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.deployment import Spec
    from epd_operator.api.role import PrefillRole

_VERSION: Final = "0.1"

PRE_STOP_SECONDS: Final = 7
_EXIT_SECONDS: Final = 3
"""From the end of draining to the end of the process."""

_SWITCH: Final = ("on", "off")

_SHARED: Final = (
    FlagSpec("max-running-requests", type="int", default=16, minimum=1, help="requests computed at once"),
    FlagSpec(
        "max-queued-requests", type="int", default=64, minimum=1, help="requests that may wait; more are answered 503"
    ),
    FlagSpec("image-timeout", type="float", minimum=0.01, help="seconds to fetch one image"),
    FlagSpec("max-image-bytes", type="int", minimum=1, help="largest image file"),
    FlagSpec("max-images", type="int", minimum=1, help="most images in one request"),
)
_SERVING: Final = (
    *_SHARED,
    FlagSpec(
        "context-length",
        type="int",
        default=8192,
        minimum=16,
        maximum=2**20,
        help="most tokens of prompt plus answer",
    ),
    FlagSpec(
        "page-size",
        type="int",
        default=64,
        minimum=1,
        maximum=4096,
        identity=True,
        help="tokens in a key/value page, an even number",
    ),
    FlagSpec(
        "kv-cache-dtype",
        choices=("fp4", "bf16"),
        default="fp4",
        identity=True,
        help="how the keys and values of all tokens are stored",
    ),
    FlagSpec("prefix-cache", choices=_SWITCH, default="on", help="whether prompts that begin alike share pages"),
    FlagSpec(
        "window-cache-tokens",
        type="int",
        default=32768,
        minimum=0,
        help="tokens whose window keys and values are kept for finished prompts",
    ),
    FlagSpec(
        "kernels",
        choices=("auto", "torch", "triton"),
        default="auto",
        help="what computes over the key/value pages; triton only with TRITON_INTERPRET=1 (slow, for tests)",
    ),
    FlagSpec("chunked-prefill-size", type="int", default=512, minimum=1, help="prompt tokens computed in one step"),
    FlagSpec("max-total-tokens", type="int", default=65536, minimum=1, help="tokens that all pages hold together"),
    FlagSpec(
        "swa-pool-publish",
        choices=("exact", "all"),
        default="exact",
        help="whose windows are handed to the pool; all: also those of conversations that replayed",
    ),
    FlagSpec("kv-disk-path", help="directory for the key/value pages of finished prompts; none are kept without it"),
    FlagSpec("kv-disk-bytes", type="int", default=2**30, minimum=1, help="most bytes of pages in that directory"),
    FlagSpec("kv-disk-hours", type="float", default=72.0, minimum=0.01, help="hours that a page is kept there"),
    FlagSpec("handshake-timeout", type="float", minimum=0.01, help="seconds to wait for the other half of a request"),
    FlagSpec("silence-timeout", type="float", minimum=0.01, help="seconds of silence before a peer counts as lost"),
)
_PREFILL: Final = (
    *_SERVING,
    FlagSpec("encode-timeout", type="float", minimum=0.01, help="seconds for one try at one encode server"),
    FlagSpec("encoder-probe-interval", type="float", minimum=0.01, help="seconds between probes of encode servers"),
    FlagSpec(
        "decoder-replay-preset",
        choices=("0.5.23", "dsv41-37ae292e"),
        default="0.5.23",
        identity=True,
        help="the SGLang version whose split and window floor decoder replay follows",
    ),
    FlagSpec(
        "decoder-replay",
        choices=_SWITCH,
        default="on",
        identity=True,
        owner=Field("spec.roles.prefill.decoderReplay"),
        help="run the decoder half on the last 128 rows of each chunk only",
    ),
    FlagSpec(
        "encoder-replay",
        choices=_SWITCH,
        default="off",
        identity=True,
        owner=Field("spec.roles.prefill.encoderReplay"),
        help="rebuild the encoder half's windows of a prefix hit from its last 128 rows",
    ),
)
_OWNED: Final = (
    FlagSpec("role", owner=Place(), help="which role the process plays"),
    FlagSpec("host", owner=Fact("engine pods always listen on their own address"), help="address to listen on"),
    FlagSpec("port", type="int", owner=Fixed(f"always {HTTP_PORT}"), help="port to listen on"),
    FlagSpec("served-model-name", owner=Field("spec.model.servedName"), help="name that clients send"),
    FlagSpec("model-path", owner=Field("spec.model.path"), help="directory of the checkpoint"),
    FlagSpec(
        "bootstrap-port", type="int", owner=Field("spec.transfer.bootstrapPort"), help="port of the bootstrap server"
    ),
    FlagSpec(
        "encoder-bootstrap-port",
        type="int",
        owner=Fixed(f"always {ENCODER_PORT}"),
        help="port of encoder registration",
    ),
    FlagSpec("advertise-host", owner=Fixed("always the pod's address"), help="address that peers dial"),
    FlagSpec("layout-key", owner=Fixed("the compatibility key of the set"), help="what peers must share"),
    FlagSpec(
        "drain-timeout",
        type="float",
        owner=Field("spec.roles.<role>.pod.terminationGracePeriodSeconds"),
        help="seconds that requests may go on after SIGTERM",
    ),
)
_KEEPING: Final = (
    FlagSpec("swa-pool-config", owner=Field("spec.swaPool"), help="file that says where the pool of windows is"),
    FlagSpec(
        "tenant",
        owner=Fixed("the namespace and the name of the deployment"),
        help="whose windows and stored pages are used; others' are not found",
    ),
)
# Decode stores windows of the layers that prefill keeps, or prefill would not find them.
_FOLLOWING: Final = (
    FlagSpec(
        "decoder-replay-preset",
        owner=Field("spec.roles.prefill.args.decoder-replay-preset"),
        help="the preset of its prefill pods, which says which layers a window has",
    ),
    FlagSpec(
        "decoder-replay",
        owner=Field("spec.roles.prefill.decoderReplay"),
        help="what its prefill pods do, which says which layers a window has",
    ),
)
# Prefill and decode read the same prompt: one that takes images and one that refuses them must never be paired.
_VISION: Final = FlagSpec(
    "vision", default="remote", identity=True, owner=Declaration("encode"), help="where images are encoded"
)


def _catalogue(*flags: FlagSpec) -> Catalogue:
    return Catalogue(_VERSION, {flag.name: flag for flag in flags}, {})


def _derive(role: RoleName, spec: Spec, grace_seconds: int) -> dict[str, Any]:
    drain = {"drain-timeout": max(1, grace_seconds - PRE_STOP_SECONDS - _EXIT_SECONDS)}
    if role == "encode":
        return drain
    prefill = spec.roles.prefill
    replay = _replay(prefill) if role == "prefill" else _followed(prefill)
    return {**drain, **replay, "vision": "off" if spec.roles.encode is None else "remote"}


def _replay(prefill: PrefillRole) -> dict[str, str]:
    """Only what the user decides: a default that is not passed may change with the engine."""
    decoder = {} if prefill.decoder_replay == "Auto" else {"decoder-replay": prefill.decoder_replay.lower()}
    return {**decoder, "encoder-replay": "on"} if prefill.encoder_replay else decoder


def _followed(prefill: PrefillRole) -> dict[str, Any]:
    """What decode repeats of prefill's replay."""
    given = {**prefill.args, **_replay(prefill)}
    return {flag.name: given[flag.name] for flag in _FOLLOWING if flag.name in given}


def _options(role: RoleName, inputs: CommandInputs) -> dict[str, Any]:
    return {
        **inputs.args,
        "role": role,
        "host": "0.0.0.0",
        "port": HTTP_PORT,
        "advertise-host": "$(POD_IP)",
        "served-model-name": inputs.served_name,
        "bootstrap-port": inputs.bootstrap_port,
        "encoder-bootstrap-port": ENCODER_PORT,
        "model-path": inputs.model_path,
        "layout-key": inputs.layout_key,
        "tenant": None if role == "encode" else inputs.tenant or None,
        "swa-pool-config": f"{SWA_POOL_FOLDER}/{SWA_POOL_FILE}" if inputs.pool else None,
    }


def _agree(_spec: Spec, role: RoleName, args: Mapping[str, Any]) -> dict[str, Any]:
    known = _CATALOGUE[role]
    return {
        name: args[name] for name in known if known[name].identity and args.get(name) not in {None, known[name].default}
    }


def _look(_spec: Spec, args: Mapping[RoleName, Mapping[str, Any]]) -> Facts:
    known = _CATALOGUE["prefill"]

    def value(role: RoleName, name: str) -> Any:
        return args[role].get(name, known[name].default)

    return Facts(
        page_size=int(value("prefill", "page-size")),
        context_length=min(int(value(role, "context-length")) for role in ("prefill", "decode")),
        replay="On" if value("prefill", "decoder-replay") == "on" else "Off",
        kv_layout=str(value("prefill", "kv-cache-dtype")),
    )


def _fetches(spec: Spec) -> bool:
    # The router hands the address of a picture to prefill and decode alike, and prefill hands it to encode.
    return spec.roles.encode is not None


def _image(settings: Images) -> str:
    return settings.worker_image


def _ports(role: RoleName, bootstrap_port: int) -> tuple[Port, ...]:
    http = Port("http", HTTP_PORT)
    if role != "prefill":
        return (http,)
    return (http, Port("bootstrap", bootstrap_port), Port("encoders", ENCODER_PORT))


def _probes(_role: RoleName, startup_minutes: int, _leads: bool) -> dict[str, Probe]:
    period = 2
    return {
        "startupProbe": Probe("/health", "http", period, 5, max(1, startup_minutes * 60 // period)),
        "readinessProbe": Probe("/ready", "http", period, 5, 3),
        # A long step holds the only core: liveness must outlast it, or a busy pod is killed.
        "livenessProbe": Probe("/health", "http", 30, 25, 3),
    }


_CATALOGUE: Final[Mapping[RoleName, Catalogue]] = {
    "encode": _catalogue(*_SHARED, *_OWNED),
    "prefill": _catalogue(*_PREFILL, *_OWNED, *_KEEPING, _VISION),
    "decode": _catalogue(*_SERVING, *_OWNED, *_KEEPING, *_FOLLOWING, _VISION),
}

REFERENCE: Final = Profile(
    engine_type="Reference",
    version=_VERSION,
    roles=("encode", "prefill", "decode"),
    capabilities=frozenset({"vision-encode", REPLAY_REPORT}),
    platforms={"cpu": Hardware()},
    transfers=("tcp",),
    catalogue=_CATALOGUE,
    # Small requests: a node of two cores must hold a whole deployment, and a second set during a rollout.
    resources={
        "encode": DefaultResources(cpu="100m", memory=DEFAULT_MEMORY["Reference"]),
        "prefill": DefaultResources(cpu="150m", memory=DEFAULT_MEMORY["Reference"]),
        "decode": DefaultResources(cpu="150m", memory=DEFAULT_MEMORY["Reference"]),
    },
    default_startup_minutes=2,
    default_grace_seconds=60,
    pre_stop_seconds=PRE_STOP_SECONDS,
    program=("epd-reference",),
    options=_options,
    image=_image,
    role_ports=_ports,
    role_probes=_probes,
    derive=_derive,
    agree=_agree,
    look=_look,
    fetches=_fetches,
    environment=({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},),
    # A decode pod reads it whether or not there is a pool: what it answers is lost when it restarts.
    pool={"prefill": "with", "decode": "always"},
)
