"""Experts that move: rebalancing between ranks (EPLB), and ranks that join at run time (elastic EP)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import IS_ENCODER, IS_PREFILL
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.graph import CUDA_GRAPH_DECODE, CUDA_GRAPH_PREFILL, DECODE_GRAPH_PLACE
from epd_operator.engines.sglang.moe import A2A_BACKEND, EP_SIZE, RUNNER_BACKEND
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE,
    ATTN_DP_ENABLED,
    ATTN_DP_SIZE,
    ATTN_TP_SIZE,
    DCP_SIZE,
    ENABLE_DP_LM_HEAD,
    MOE_DENSE_TP_SIZE,
    MOE_DP_SIZE,
    PP_SIZE,
    SCALE_JOINER,
    TP_SIZE,
)
from epd_operator.rules.expression import every, field_of, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_PARALLEL: Final = "SGLang 0.5.23, srt/arg_groups/parallel_hook.py"
_ELASTIC: Final = f"{_PARALLEL}, handle_elastic_ep"
_IN_ELASTIC: Final = "parallel_hook.handle_elastic_ep"
_MARLIN: Final = "SGLang 0.5.23, srt/lora/marlin_lora_temp/policy.py"

_BACKEND: Final = written("elastic-ep-backend")
_JOIN: Final = written("elastic-ep-join-mode")
_OFFSET: Final = flag("elastic-ep-join-rank-offset")
_LARGEST: Final = written("max-ep-size")
_INITIAL: Final = written("elastic-ep-initial-size")
_STARTS_WITH: Final = _INITIAL.otherwise(TP_SIZE)
_GROWS: Final = every(_BACKEND.given, _LARGEST > TP_SIZE)
_REPLICA: Final = named("attention_replica_size", ATTN_TP_SIZE * ATTN_CP_SIZE, written("tp-size"))
_BALANCE: Final = named(
    "load_balance_method",
    when(
        flag("load-balance-method") == "auto",
        when(IS_PREFILL, "follow_bootstrap_room", "round_robin"),
        flag("load-balance-method"),
    ),
    written("load-balance-method"),
)

_REBALANCE: Final = (
    Rule(
        id="eplb-needs-expert-parallelism",
        when=every(flag("enable-eplb"), ~SCALE_JOINER, EP_SIZE <= 1),
        sides=(written("enable-eplb"), EP_SIZE),
        says="rebalancing moves experts between ranks, and every rank has all of them",
        fix="set ep-size above 1, or remove enable-eplb",
        source=f"{_PARALLEL}, handle_eplb_and_dispatch (a bare assertion: the engine gives no reason)",
        decided_by="parallel_hook.handle_eplb_and_dispatch",
    ),
    Rule(
        id="expert-dispatch-without-exchange",
        when=every(A2A_BACKEND == "none", flag("ep-dispatch-algorithm").isin(("static", "lp"))),
        sides=(written("ep-dispatch-algorithm"), A2A_BACKEND),
        says="this choice of a replica differs from rank to rank, which is right only where an exchange sends each "
        "token to "
        "one rank",
        fix="set ep-dispatch-algorithm: dynamic, or a moe-a2a-backend",
        source=f"{_PARALLEL}, handle_eplb_and_dispatch",
        decided_by="parallel_hook.handle_eplb_and_dispatch",
    ),
    Rule(
        id="marlin-exchange",
        when=every(RUNNER_BACKEND == "experimental_sgl_marlin", EP_SIZE > 1, ~(A2A_BACKEND == "none")),
        sides=(RUNNER_BACKEND, A2A_BACKEND),
        says="the experimental Marlin runner computes spread experts without an exchange only",
        fix="set moe-a2a-backend: none, or another moe-runner-backend",
        source=f"{_MARLIN}, validate_experimental_sgl_marlin_server_args",
        decided_by="policy.validate_experimental_sgl_marlin_server_args",
    ),
)

_JOINING: Final = (
    Rule(
        id="elastic-eplb-algorithm",
        when=every(
            _BACKEND.given,
            flag("enable-eplb"),
            ~flag("eplb-algorithm").isin(("auto", "elasticity_aware", "elasticity_aware_hierarchical")),
        ),
        sides=(_BACKEND, written("eplb-algorithm")),
        says="ranks that come and go need a rebalancing algorithm that supports them",
        fix="remove eplb-algorithm, or set it to elasticity_aware",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
    Rule(
        id="elastic-without-pipeline",
        when=_BACKEND.given & ~(PP_SIZE == 1),
        sides=(_BACKEND, PP_SIZE),
        says="elastic expert parallelism does not work with pipeline parallelism",
        fix="set pp-size to 1",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
    Rule(
        id="elastic-ib-device",
        when=every(
            _BACKEND == "mooncake",
            written("mooncake-ib-device").given,
            ~(field_of("resources.rdma", "int") > 0),
            ~(field_of("hostNetwork", "bool") == True),  # noqa: E712 - builds an expression
        ),
        sides=(written("mooncake-ib-device"), field_of("resources.rdma", "int")),
        says="InfiniBand devices are looked up in /sys/class/infiniband at start, and a server that sees none of that "
        "name "
        "stops; none is known here",
        fix="remove mooncake-ib-device, which finds the devices by itself, or give the pods an RDMA device",
        source="SGLang 0.5.23, srt/arg_groups/validation_hook.py, validate_ib_devices",
        decided_by="validation_hook.validate_ib_devices",
        overridable=True,
    ),
    Rule(
        id="elastic-backend-missing",
        when=some(_JOIN.given, _LARGEST.given) & ~_BACKEND.given,
        sides=(_BACKEND, _JOIN, _LARGEST),
        says="joining ranks and a largest size belong to elastic expert parallelism, which is off",
        fix="set elastic-ep-backend, or remove elastic-ep-join-mode and max-ep-size",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
    Rule(
        id="elastic-joiner",
        when=some(
            SCALE_JOINER & (~(flag("node-rank") == 1) | (_OFFSET <= 0)),
            ~SCALE_JOINER & ~(_OFFSET == 0),
            _LARGEST <= 0,
        ),
        sides=(_JOIN, written("node-rank"), written("elastic-ep-join-rank-offset"), _LARGEST),
        says="a group that joins has node rank 1 and an offset above 0, the size that it joins; no other group has an "
        "offset; the largest size is above 0",
        fix="remove elastic-ep-join-mode and elastic-ep-join-rank-offset, and give max-ep-size only above 0; a server "
        "that "
        "joins is started by a command line of its own, with elastic-ep-join-mode scale, node-rank 1 and the offset",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
    Rule(
        id="elastic-initial-size",
        when=some(
            every(_INITIAL.given, ~_GROWS),
            every(_GROWS, ~SCALE_JOINER, ~(_STARTS_WITH == TP_SIZE)),
            every(
                _GROWS,
                SCALE_JOINER,
                some(~_INITIAL.given, _INITIAL <= 0, _INITIAL > _OFFSET, _OFFSET + TP_SIZE > _LARGEST),
            ),
        ),
        sides=(_INITIAL, TP_SIZE, _LARGEST),
        says="the initial size belongs to a deployment that can grow beyond tp-size: the first group's is its own "
        "tp-size, a joining group's is at most the offset that it joins at, and the result is at most max-ep-size",
        fix="remove elastic-ep-initial-size, or set it to the first group's tp-size",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
)

_GROWING: Final = (
    Rule(
        id="elastic-replicas",
        when=every(
            _GROWS,
            some(
                TP_SIZE <= 0,
                ATTN_DP_SIZE <= 0,
                ATTN_CP_SIZE <= 0,
                ~(TP_SIZE % (ATTN_DP_SIZE * ATTN_CP_SIZE) == 0),
                ~(_LARGEST % _REPLICA == 0),
                ~(_STARTS_WITH % _REPLICA == 0),
                _STARTS_WITH <= 0,
                SCALE_JOINER & ~(_OFFSET % _REPLICA == 0),
            ),
        ),
        sides=(_LARGEST, _INITIAL, _REPLICA),
        says="sizes grow by whole attention replicas of {replica} ranks",
        fix="set max-ep-size, elastic-ep-initial-size and the offset to multiples of it",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
        shows={"replica": _REPLICA},
    ),
    Rule(
        id="elastic-layout",
        when=every(
            _GROWS,
            some(
                ~(_BACKEND == "mooncake"),
                ~(A2A_BACKEND == "nixl"),
                ~(EP_SIZE == TP_SIZE),
                ~ATTN_DP_ENABLED,
                ~ENABLE_DP_LM_HEAD,
                ~(ATTN_CP_SIZE == 1),
                ~(MOE_DP_SIZE == 1),
                ~(_BALANCE == "round_robin"),
                ~(ATTN_TP_SIZE % DCP_SIZE == 0),
                some(ATTN_TP_SIZE > 1, SCALE_JOINER & (TP_SIZE == 1)) & ~(MOE_DENSE_TP_SIZE == 1),
            ),
        ),
        sides=(
            *(_BACKEND, A2A_BACKEND, ATTN_DP_SIZE, ENABLE_DP_LM_HEAD, ATTN_CP_SIZE),
            *(MOE_DP_SIZE, MOE_DENSE_TP_SIZE, _BALANCE),
        ),
        says="a deployment that grows needs elastic-ep-backend mooncake, moe-a2a-backend nixl, attention data "
        "parallelism "
        "with a data-parallel LM head, moe-dense-tp-size 1, round_robin balancing, and neither context parallelism nor "
        "moe-dp-size",
        fix="set these, or remove max-ep-size",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
    Rule(
        id="elastic-process",
        when=every(
            _GROWS,
            some(
                flag("elastic-ep-scale-timeout") <= 0.0,
                ~(flag("tokenizer-worker-num") == 1),
                flag("use-ray"),
                flag("enable-elastic-expert-backup"),
            ),
        ),
        sides=(
            _LARGEST,
            written("elastic-ep-scale-timeout"),
            written("tokenizer-worker-num"),
            written("use-ray"),
            written("enable-elastic-expert-backup"),
        ),
        says="a deployment that grows has a timeout above 0, one tokenizer worker, no Ray and no expert backup",
        fix="remove tokenizer-worker-num, use-ray and enable-elastic-expert-backup, or max-ep-size",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
    ),
    Rule(
        id="elastic-graph",
        when=every(
            _GROWS,
            some(
                ~CUDA_GRAPH_DECODE.isin(("full", "disabled")),
                ~(CUDA_GRAPH_PREFILL == "disabled"),
                every(
                    CUDA_GRAPH_DECODE == "full",
                    some(
                        SPECULATES,
                        flag("is-embedding"),
                        written("dllm-algorithm").given,
                        IS_ENCODER,
                        written("forward-hooks").given,
                        flag("enable-pdmux"),
                    ),
                ),
            ),
        ),
        sides=(_LARGEST, CUDA_GRAPH_DECODE, CUDA_GRAPH_PREFILL, written("speculative-algorithm")),
        says="a deployment that grows captures its decode graph again: full or none, no prefill graph, and with a full "
        "one "
        "no speculation, embedding, diffusion, encoder, hooks or multiplexing",
        fix="set {place} to disabled, or remove max-ep-size",
        source=_ELASTIC,
        decided_by=_IN_ELASTIC,
        shows={"place": DECODE_GRAPH_PLACE},
    ),
)

RULES: Final = tuple(replace(rule, roles=ROLES) for rule in (*_REBALANCE, *_JOINING, *_GROWING))
RESOLVED: Final = ()
