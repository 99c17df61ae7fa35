"""What a plan needs to know of each SGLang version that serves DeepSeek-V4.1.

How its pods get on under the restricted pod security profile (a user without a name, a read-only image): everything
that it writes goes below HOME, which is the pod's scratch volume: kernels that Triton, FlashInfer and DeepGEMM compile
at the start, and weights when they come from a hub. torch asks for the user's name, and finds none in the image.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api.names import ENCODER_PORT, HTTP_PORT
from epd_operator.engines.profile import REPLAY_REPORT, DefaultResources, Facts, Images, Port, Probe, Profile
from epd_operator.engines.sglang import plugin
from epd_operator.engines.sglang.attention import DSV4_ATTN_BACKEND, KV_CACHE_DTYPE, PAGE_SIZE
from epd_operator.engines.sglang.base import CHECKPOINT, REHEARSAL
from epd_operator.engines.sglang.catalogue import catalogue, encoder_catalogue
from epd_operator.engines.sglang.command import PROGRAM, options
from epd_operator.engines.sglang.identity import identity, process
from epd_operator.engines.sglang.ownership import DEFAULT_TRANSFER
from epd_operator.engines.sglang.platform import PLATFORMS, PLUGGED_PLATFORMS
from epd_operator.engines.sglang.replay import DECODER_REPLAY
from epd_operator.engines.shared import DEFAULT_MEMORY
from epd_operator.rules.version import KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.deployment import Spec
    from epd_operator.api.names import RoleName

PRE_STOP_SECONDS: Final = 10
"""The router drops a worker within seconds of its deletion; SGLang takes new requests for as long as they come."""

_SERVING: Final[tuple[RoleName, ...]] = ("prefill", "decode")

_TRANSFERS: Final = (DEFAULT_TRANSFER, "mooncake_tcp", "nixl", "mori", "ascend")

_COMPLETE_TABLE: Final = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
"""Answered 200 once every rank has registered. Source: SGLang 0.5.23, disaggregation/common/conn.py."""

_ENVIRONMENT: Final = (
    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    # What peers dial: among several interfaces SGLang would guess.
    {"name": "SGLANG_HOST_IP", "value": "$(POD_IP)"},
    # /health without a token generated for it: the router asks every two seconds, and a step of a long prompt outlasts
    # its patience. The livenessProbe asks for one.
    {"name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "value": "false"},
)
_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({"USER": "engine"})

_SLEEP: Final = "sleep-on-idle"
HEALTH_SECONDS: Final = 20
"""How long /health_generate waits for its token. Source: SGLang 0.5.23, entrypoints/http_server.py."""

METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "running_requests": "sglang:num_running_reqs",
        "queued_requests": "sglang:num_queue_reqs",
        "queue_seconds": "sglang:queue_time_seconds",
        "prefill_bootstrap_requests": "sglang:num_prefill_bootstrap_queue_reqs",
        "prefill_inflight_requests": "sglang:num_prefill_inflight_queue_reqs",
        "prefill_tokens": "sglang:prefill_effective_tokens_total",
        "prompt_tokens": "sglang:prompt_tokens_total",
        "decode_prealloc_requests": "sglang:num_decode_prealloc_queue_reqs",
        "decode_transfer_requests": "sglang:num_decode_transfer_queue_reqs",
        "token_usage": "sglang:token_usage",
        "swa_token_usage": "sglang:swa_token_usage",
        "retracted_requests": "sglang:num_retracted_requests_total",
        "time_to_first_token_seconds": "sglang:time_to_first_token_seconds",
        "inter_token_latency_seconds": "sglang:inter_token_latency_seconds",
    }
)
"""Source: SGLang 0.5.23, srt/observability; on the engine's HTTP port, with --enable-metrics."""


def _image(_settings: Images) -> None:
    return None


def _ports(role: RoleName, bootstrap_port: int) -> tuple[Port, ...]:
    http = Port("http", HTTP_PORT)
    return (http, Port("bootstrap", bootstrap_port)) if role == "prefill" else (http,)


def _plugged_ports(role: RoleName, bootstrap_port: int) -> tuple[Port, ...]:
    ports = _ports(role, bootstrap_port)
    return (*ports, Port("encoders", ENCODER_PORT)) if role == "prefill" else ports


def _probes(role: RoleName, startup_minutes: int, leads: bool) -> dict[str, Probe]:
    period = 10
    tries = max(1, startup_minutes * 60 // period)
    if role == "encode":
        # Its /health encodes a tiny picture where nothing else is encoded, and takes up to 30 s to give up.
        return {
            "startupProbe": Probe("/health", "http", period, 35, tries),
            "readinessProbe": Probe("/health", "http", 10, 35, 3),
            "livenessProbe": Probe("/health", "http", 30, 35, 4),
        }
    ready = ("/ready", "http") if leads else ("/health", "http")  # a follower serves its health and nothing else
    if role == "prefill" and leads:
        # A prefill whose table has gaps fails every request that meets one; its /ready does not look.
        ready = (_COMPLETE_TABLE, "bootstrap")
    return {
        # Answers 503 until the server has warmed up. Where a user lets it generate, an answer takes up to 20 s.
        "startupProbe": Probe("/health", "http", period, HEALTH_SECONDS + 5, tries),
        # /ready says no from the moment that a question of the livenessProbe stays without an answer.
        "readinessProbe": Probe(*ready, 5, 5, 3),
        # The HTTP server answers /health whether or not a scheduler lives behind it: this waits for a token, or for
        # anything else that the scheduler hands out meanwhile. A server that is busy or compiles a kernel is not dead:
        # two minutes without an answer are.
        "livenessProbe": Probe("/health_generate" if leads else "/health", "http", 30, HEALTH_SECONDS + 5, 4),
    }


def _derive(role: RoleName, spec: Spec, _grace_seconds: int) -> dict[str, Any]:
    if spec.engine.platform != REHEARSAL or role == "encode" or _SLEEP in spec.roles.declared()[role].args:
        return {}
    # A scheduler polls for requests, and would take half a core of those that the pods of a rehearsal share.
    return {_SLEEP: True}


def _gpus(args: Mapping[str, Any], nodes: int) -> int:
    """GPUs of one pod: every rank has one, and replicas that share no attention have ranks of their own."""
    replicas = 1 if args.get("enable-dp-attention") else _whole(args, "dp-size")
    return -(-_whole(args, "tp-size") * _whole(args, "pp-size") * replicas // nodes)


def _whole(args: Mapping[str, Any], name: str) -> int:
    value = args.get(name, 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def _fetches(spec: Spec) -> bool:
    path = spec.model.path or "/"
    sees = any(role.args.get("language-model-only") is not True for role in spec.roles.declared().values())
    return sees or not path.startswith("/")


def _look(version: str, spec: Spec, args: Mapping[RoleName, Mapping[str, Any]]) -> Facts:
    prefill, decode = (process(version, spec, role, args[role]) for role in _SERVING)
    lengths = [one.flag("context-length") or CHECKPOINT["context_length"] for one in (prefill, decode)]
    return Facts(
        page_size=int(str(PAGE_SIZE.value(prefill))),
        context_length=min(int(str(length)) for length in lengths),
        replay="On" if DECODER_REPLAY.value(prefill) else "Off",
        kv_layout=f"{KV_CACHE_DTYPE.value(prefill)} {DSV4_ATTN_BACKEND.value(prefill)}",
    )


def profile(version: str) -> Profile:
    """The profile of a known version.

    Raises:
        ValueError: No such version.
    """
    flags = catalogue(version)
    return Profile(
        engine_type="SGLang",
        version=version,
        # By itself none of these versions splits the vision tower of V4.1 off: prefill and decode keep it.
        roles=("prefill", "decode"),
        capabilities=frozenset(),
        platforms=PLATFORMS,
        transfers=_TRANSFERS,
        catalogue={"encode": encoder_catalogue(version), "prefill": flags, "decode": flags},
        resources=dict.fromkeys(("prefill", "decode"), DefaultResources(cpu="8", memory=DEFAULT_MEMORY["SGLang"])),
        default_startup_minutes=90,
        default_grace_seconds=900,
        pre_stop_seconds=PRE_STOP_SECONDS,
        program=PROGRAM,
        options=options(version),
        image=_image,
        role_ports=_ports,
        role_probes=_probes,
        derive=_derive,
        agree=partial(identity, version),
        look=partial(_look, version),
        fetches=_fetches,
        gpus=_gpus,
        environment=_ENVIRONMENT,
        defaults=_DEFAULTS,
        metrics=METRICS,
    )


def _plugged(bare: Profile) -> Profile:
    """The same version with the plugin epd, which adds what it lacks."""
    return replace(
        bare,
        plugins=frozenset({plugin.NAME}),
        plugin_path=plugin.SEARCH_PATH,
        roles=("encode", *bare.roles),
        capabilities=frozenset({"vision-encode", REPLAY_REPORT}),
        platforms=PLUGGED_PLATFORMS,
        resources={**bare.resources, "encode": DefaultResources(cpu="8", memory=DEFAULT_MEMORY["SGLang"])},
        role_ports=_plugged_ports,
        # Windows are adopted where prefill would replay; decode refuses to replay.
        pool={"prefill": "with"},
        pool_variable=plugin.POOL_FILE,
    )


SGLANG: Final = tuple(profile(version) for version in KNOWN)
"""Every version by itself, oldest first."""
PLUGGED: Final = _plugged(profile(plugin.RELEASE))
"""The release with the plugin."""
