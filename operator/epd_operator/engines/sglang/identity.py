"""What the pods of one set must agree on, as the engine resolves it.

The tricky idea: only what differs from the same pod without any flag enters. A default that is spelled out therefore
changes nothing, and a later release of the operator that learns to resolve one value more restarts no pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.agreement import (
    ATTENTION_TP_WITH_CP,
    COMPRESSED_LAYOUT,
    DRAFT,
    DRAFT_MODEL,
    DRAFT_REVISION,
    DRAFT_SIZE,
)
from epd_operator.engines.sglang.attention import DSV4_ATTN_BACKEND, KV_CACHE_DTYPE, KV_LAYOUT, PAGE_SIZE
from epd_operator.engines.sglang.base import CHECKPOINT, IS_PREFILL
from epd_operator.engines.sglang.catalogue import catalogue
from epd_operator.engines.sglang.flags import env, flag
from epd_operator.engines.sglang.ownership import OWNED
from epd_operator.engines.sglang.replay import DECODER_REPLAY
from epd_operator.rules.expression import named, when
from epd_operator.rules.process import Process, mapping, read
from epd_operator.rules.version import rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.deployment import Spec
    from epd_operator.api.names import RoleName

_DRAFTS: Final = DRAFT == "DSPARK"

IDENTITY: Final = (
    PAGE_SIZE,
    KV_CACHE_DTYPE,
    DSV4_ATTN_BACKEND,
    KV_LAYOUT,
    COMPRESSED_LAYOUT,
    named("allocation_policy", flag("disaggregation-decode-allocation-policy")),
    DRAFT,
    named("draft_size", when(_DRAFTS, DRAFT_SIZE, None)),
    named("draft_model", when(_DRAFTS & ~(flag("model-path") == DRAFT_MODEL), DRAFT_MODEL, None)),
    named("draft_revision", when(_DRAFTS & ~(flag("revision") == DRAFT_REVISION), DRAFT_REVISION.otherwise(""), None)),
    named("draft_attention_tp", when(_DRAFTS, ATTENTION_TP_WITH_CP, None)),
    named("draft_verify_mode", when(_DRAFTS, env("SGLANG_RAGGED_VERIFY_MODE"), None)),
    named("decoder_replay", when(IS_PREFILL, DECODER_REPLAY, None)),
    named("encoder_replay", IS_PREFILL & flag("enable-encoder-swa-bounded-replay")),
)
"""Source: SGLang 0.5.23, disaggregation/common/conn.py, and what changes the numbers that prefill hands over."""


def process(version: str, spec: Spec, role: RoleName, args: Mapping[str, Any]) -> Process:
    """The process of a role as its rules see it.

    Args:
        version: A known version.
        spec: The whole spec.
        role: A declared role.
        args: Its effective flags.
    """
    written = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _process(version, spec.engine.platform or "cuda-sm90", role, args, written)


def started(version: str, platform: str, role: RoleName, document: Mapping[str, Any]) -> Process:
    """The process of a role as a spec describes it; one without flags where the spec has no such role.

    Args:
        version: A known version.
        platform: What its pods run on.
        role: The role.
        document: The spec as written.
    """
    return _process(version, platform, role, mapping(read(document, f"roles.{role}.args")), document)


def _process(
    version: str, platform: str, role: RoleName, args: Mapping[str, Any], document: Mapping[str, Any]
) -> Process:
    known = catalogue(version)
    # A flag that this version does not know is only there under Nearest, and no rule reads it.
    typed = {name: result.normal(value) for name, value in args.items() if (result := known.find(name)) is not None}
    env = mapping(read(document, f"roles.{role}.env"))
    return Process(role, platform, rank(version), typed, env, CHECKPOINT, OWNED, document)


def agreement(process: Process) -> dict[str, Any]:
    """What the pods of one set must agree on, as this one has it; only what differs from one without any flag."""
    plain = Process(
        process.role,
        process.platform,
        process.rank,
        {},
        {},
        CHECKPOINT,
        {"disaggregation-mode": OWNED["disaggregation-mode"]},
    )
    values = {value.name: (value.value(process), value.value(plain)) for value in IDENTITY}
    return {name: value for name, (value, default) in values.items() if value != default}


def identity(version: str, spec: Spec, role: RoleName, args: Mapping[str, Any]) -> dict[str, Any]:
    """What a role must share with the others; arguments as for `process`. Encoders hold no keys and values."""
    return {} if role == "encode" else agreement(process(version, spec, role, args))
