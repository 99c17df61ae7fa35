"""Prefill and decode as separate servers, and the vision encoder as a third: what one server of them refuses."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import IS_DECODE, IS_ENCODER, IS_PD, IS_PREFILL, IS_V41, MODE, ON_A_SPEC
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import A2A_BACKEND_GIVEN
from epd_operator.engines.sglang.parallel import ATTN_DP_SIZE_GIVEN, DP_SIZE_GIVEN, SCALE_JOINER
from epd_operator.engines.sglang.plugin import LOADED, NAME, RELEASE
from epd_operator.engines.sglang.release import since
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import every, field_of, model_of, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/pd_disaggregation_hook.py"
_DECIDES: Final = "pd_disaggregation_hook.handle_pd_disaggregation"
_COMPLETE: Final = "pd_disaggregation_hook._validate_prefill_complete"
_ENCODER: Final = "pd_disaggregation_hook.handle_encoder_disaggregation"
_STAGED_BACKENDS: Final = ("mooncake", "nixl")
_WITHOUT_TIER: Final = ("deepseek_v41", "deepseek_v4")
_API_PORT: Final = flag("port")

TRANSFER_BACKEND: Final = named(
    "disaggregation_transfer_backend",
    when(
        flag("disaggregation-transfer-backend") == "mooncake_tcp", "mooncake", flag("disaggregation-transfer-backend")
    ),
    written("disaggregation-transfer-backend"),
)
IB_DEVICE: Final = named(
    "disaggregation_ib_device",
    when(flag("disaggregation-transfer-backend") == "mooncake_tcp", None, written("disaggregation-ib-device")),
    written("disaggregation-ib-device"),
)
ENCODER_TRANSFER_BACKEND: Final = named(
    "encoder_transfer_backend",
    when(flag("encoder-transfer-backend") == "auto", "zmq_to_scheduler", flag("encoder-transfer-backend")),
    written("encoder-transfer-backend"),
)
HOST_RECEIVE: Final = flag("disaggregation-decode-host-receive-threshold") < 1.0
"""Decode receives pages in host memory first."""
RETRACTION_BACKUP: Final = named(
    "disaggregation_decode_retraction_backup",
    when(HOST_RECEIVE, "host_pool", written("disaggregation-decode-retraction-backup")),
    written("disaggregation-decode-retraction-backup"),
    written("disaggregation-decode-host-receive-threshold"),
)
STAGING: Final = switch("SGLANG_DISAGG_STAGING_BUFFER")
RUST_SERVER: Final = switch("SGLANG_RUST_SERVER")
_VISION_TIER: Final = named(
    "vision_tier", IS_ENCODER | flag("language-only"), written("encoder-only"), written("language-only")
)
PREFILL_COMPLETE: Final = flag("disaggregation-decode-allocation-policy") == "prefill_complete"
BOOTSTRAP_PORT: Final = named(
    "disaggregation_bootstrap_port",
    when(IS_PREFILL & RUST_SERVER, _API_PORT, flag("disaggregation-bootstrap-port")),
    written("disaggregation-bootstrap-port"),
)
_FOREIGN_PORT: Final = every(
    IS_PREFILL,
    RUST_SERVER,
    ~(flag("disaggregation-bootstrap-port") == 8998),
    ~(flag("disaggregation-bootstrap-port") == _API_PORT),
)
_SHARE: Final = written("max-running-requests") // (DP_SIZE_GIVEN * ATTN_DP_SIZE_GIVEN)
_WORKER_REQUESTS: Final = when(_SHARE > 1, _SHARE, 1)
EXTRA_SLOTS: Final = named(
    "disaggregation_decode_extra_slots",
    when(
        IS_DECODE & ~written("disaggregation-decode-extra-slots").given,
        when(written("max-running-requests").given & (_WORKER_REQUESTS <= 32), _WORKER_REQUESTS * 2, 0),
        written("disaggregation-decode-extra-slots"),
    ),
    written("disaggregation-decode-extra-slots"),
    written("max-running-requests"),
)
_HOST_CACHE: Final = flag("enable-hierarchical-cache")

_NOT_AFTER_PREFILL: Final = every(
    PREFILL_COMPLETE,
    some(
        ~IS_PD,
        ~(TRANSFER_BACKEND == "mooncake"),
        ~(flag("pp-size") == 1),
        ~(flag("attn-cp-size") == 1),
        ~(flag("dcp-size") == 1),
        # The check still reads the old attention DP flag, which is always off by then.
        ~(flag("tp-size") == 1),
        flag("enable-pdmux"),
        ~(flag("decoupled-spec-role") == "null"),
        flag("enable-pd-role-switch"),
        IS_ENCODER,
        flag("language-only"),
        flag("enable-hisparse"),
        HOST_RECEIVE,
        IS_DECODE & (flag("disaggregation-decode-enable-radix-cache") | _HOST_CACHE),
        IS_PREFILL
        & _HOST_CACHE
        & (written("hicache-storage-backend").given | ~(flag("hicache-write-policy") == "write_back")),
        STAGING,
        RUST_SERVER,
    ),
)
_POLICY: Final = written("disaggregation-decode-allocation-policy")
_EARLY: Final = "leave disaggregation-decode-allocation-policy at early on prefill and decode"

_PLUMBING: Final = (
    Rule(
        id="decode-allocation-after-prefill",
        when=_NOT_AFTER_PREFILL,
        sides=(_POLICY, written("tp-size"), MODE, TRANSFER_BACKEND),
        says="prefill_complete works between servers of one rank over mooncake, without anything that adds to that; "
        "with DeepSeek-V4.1 it never does",
        fix=_EARLY,
        source=_SOURCE,
        decided_by=_COMPLETE,
        roles=ROLES,
    ),
    Rule(
        id="decode-allocation-window",
        when=every(PREFILL_COMPLETE, ~_NOT_AFTER_PREFILL, model_of("model_type", "str").isin(_WITHOUT_TIER)),
        sides=(_POLICY,),
        says="prefill_complete moves no pages of a sliding window, which DeepSeek-V4.1 has; the engine checks it only "
        "after the weights are loaded, and stops",
        fix=_EARLY,
        source="SGLang 0.5.23, disaggregation/common/conn.py (read, not run)",
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="host-receive-threshold-range",
        when=~every(
            flag("disaggregation-decode-host-receive-threshold") >= 0.0,
            flag("disaggregation-decode-host-receive-threshold") <= 1.0,
        ),
        sides=(written("disaggregation-decode-host-receive-threshold"),),
        says="the share of the pages that decode receives in GPU memory is between 0 and 1",
        fix="set a number from 0 to 1; 1 turns host receive off",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="host-receive-features",
        when=HOST_RECEIVE & (flag("enable-hisparse") | flag("enable-pd-role-switch")),
        sides=(
            written("disaggregation-decode-host-receive-threshold"),
            written("enable-pd-role-switch"),
            written("enable-hisparse"),
        ),
        says="host receive on decode supports neither HiSparse nor role switching",
        fix="remove enable-pd-role-switch and enable-hisparse, or leave the threshold at 1",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="host-receive-backup",
        when=HOST_RECEIVE & (written("disaggregation-decode-retraction-backup") == "cpu_tensor"),
        sides=(
            written("disaggregation-decode-host-receive-threshold"),
            written("disaggregation-decode-retraction-backup"),
        ),
        says="host receive shares its memory with retracted requests, so these must be backed up in the host pool",
        fix="set disaggregation-decode-retraction-backup: host_pool or leave it out",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="decode-radix-cache-features",
        when=IS_DECODE
        & flag("disaggregation-decode-enable-radix-cache")
        & (flag("enable-hisparse") | (~ON_A_SPEC & (TRANSFER_BACKEND == "fake"))),
        sides=(written("disaggregation-decode-enable-radix-cache"), TRANSFER_BACKEND, written("enable-hisparse")),
        says="a radix cache on decode works neither with HiSparse nor with the fake transfer backend",
        fix="remove disaggregation-decode-enable-radix-cache, or use a real transfer backend without HiSparse",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="transfer-fake-prefill",
        # A spec that names it is refused for that.
        when=every(IS_PREFILL, TRANSFER_BACKEND == "fake", ~ON_A_SPEC),
        sides=(TRANSFER_BACKEND, MODE),
        says="a prefill server cannot use the fake transfer backend, which moves no pages",
        fix="set the transfer backend to mooncake or nixl on prefill and decode",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="rust-server-bootstrap-port",
        when=_FOREIGN_PORT,
        sides=(env("SGLANG_RUST_SERVER"), written("disaggregation-bootstrap-port"), written("port")),
        says="the Rust server answers the bootstrap registry on its API port and takes no other bootstrap port",
        fix="remove SGLANG_RUST_SERVER; on a bare command line, leaving the bootstrap port out and pointing decode and "
        "router at the API port does it too",
        source=_SOURCE,
        decided_by="pd_disaggregation_hook._alias_bootstrap_port_to_api_port",
        roles=ROLES,
    ),
    Rule(
        id="rust-server-prefill",
        when=every(ON_A_SPEC, IS_PREFILL, RUST_SERVER, ~_FOREIGN_PORT),
        sides=(env("SGLANG_RUST_SERVER"), BOOTSTRAP_PORT),
        says="the Rust server moves the bootstrap registry to its API port, and router, decode and the readiness probe "
        "look for it at the bootstrap port",
        fix="remove SGLANG_RUST_SERVER from prefill",
        source=_SOURCE,
        roles=("prefill",),
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="staging-buffer-backend",
        when=IS_PD & STAGING & ~TRANSFER_BACKEND.isin(_STAGED_BACKENDS),
        sides=(env("SGLANG_DISAGG_STAGING_BUFFER"), TRANSFER_BACKEND),
        says="staging buffers exist for the transfer backends mooncake and nixl only",
        fix="unset SGLANG_DISAGG_STAGING_BUFFER, or set the transfer backend to mooncake or nixl",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="role-switch-features",
        when=IS_PD
        & flag("enable-pd-role-switch")
        & some(
            flag("ep-size") > 1,
            ~(A2A_BACKEND_GIVEN == "none"),
            flag("pp-size") > 1,
            flag("enable-dp-attention-local-control-broadcast") & ((ATTN_DP_SIZE_GIVEN > 1) | SCALE_JOINER),
            flag("dcp-size") > 1,
            SPECULATES,
        ),
        sides=(
            written("enable-pd-role-switch"),
            written("ep-size"),
            A2A_BACKEND_GIVEN,
            written("dcp-size"),
            written("speculative-algorithm"),
        ),
        says="switching between prefill and decode does not rebuild expert parallelism, a MoE all-to-all, PP, DCP, the "
        "local control broadcast of attention DP or speculative decoding",
        fix="remove enable-pd-role-switch, or ep-size, moe-a2a-backend, pp-size, dcp-size and speculative-algorithm",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
)

_TIERS: Final = (
    Rule(
        id="vision-tier-unsupported",
        when=_VISION_TIER & model_of("model_type", "str").isin(_WITHOUT_TIER) & ~(LOADED & IS_V41),
        sides=(_VISION_TIER,),
        says="DeepSeek-V4.1 has no separate vision encoder in this version by itself: the engine refuses encoder-only "
        "and language-only servers for it",
        fix="{plugin} remove the encode role (language-only on a prefill server): prefill then keeps the vision tower "
        "and takes images itself; or set language-model-only for text alone",
        source=_SOURCE,
        decided_by=_ENCODER,
        roles=ROLES,
        shows={
            "plugin": since(
                RELEASE,
                f"add {NAME} to spec.engine.plugins, which gives it one; or",
                f"set spec.engine.version to {RELEASE} and add {NAME} to spec.engine.plugins; or",
            )
        },
    ),
    Rule(
        id="prefix-mm-cache-encoder",
        when=flag("enable-prefix-mm-cache") & ~IS_ENCODER,
        sides=(written("enable-prefix-mm-cache"),),
        says="the prefix cache for media lives in an encoder-only server",
        fix="remove enable-prefix-mm-cache",
        source=_SOURCE,
        decided_by=_ENCODER,
    ),
    Rule(
        id="encoder-and-language",
        when=IS_ENCODER & flag("language-only"),
        sides=(written("encoder-only"), written("language-only")),
        says="a server is either the vision encoder or the language model without it",
        fix="remove one of encoder-only and language-only",
        source=_SOURCE,
        decided_by=_ENCODER,
        roles=ROLES,
    ),
    Rule(
        id="encoder-without-pd-mode",
        when=IS_ENCODER & IS_PD,
        sides=(written("encoder-only"), MODE),
        says="a vision encoder is neither a prefill nor a decode server",
        fix="remove disaggregation-mode from the encoder, or encoder-only",
        source=_SOURCE,
        decided_by=_ENCODER,
        roles=ROLES,
    ),
    Rule(
        id="ib-device-present",
        when=IB_DEVICE.given
        & ((IS_PD & (TRANSFER_BACKEND == "mooncake")) | (flag("encoder-transfer-backend") == "mooncake"))
        & ~(field_of("resources.rdma", "int") > 0)
        & ~(field_of("hostNetwork", "bool") == True),  # noqa: E712 - an expression
        sides=(IB_DEVICE, field_of("resources.rdma", "int")),
        says="the engine looks these InfiniBand devices up in /sys/class/infiniband and stops if one is missing; no "
        "RDMA "
        "device is known here",
        fix="leave disaggregation-ib-device out, which finds the devices by itself, or give the pods an RDMA device",
        source="SGLang 0.5.23, arg_groups/validation_hook.py",
        decided_by="validation_hook.validate_ib_devices",
        roles=ROLES,
        overridable=True,
    ),
)

RULES: Final = (*_PLUMBING, *_TIERS)
RESOLVED: Final = (
    TRANSFER_BACKEND,
    IB_DEVICE,
    ENCODER_TRANSFER_BACKEND,
    RETRACTION_BACKUP,
    BOOTSTRAP_PORT,
    EXTRA_SLOTS,
)
