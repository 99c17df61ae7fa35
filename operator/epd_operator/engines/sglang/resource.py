"""What a pod is given against what its flags will take.

No engine checks these: it looks at the machine, not at the pod's limits, and is killed minutes later.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import GPU_MEMORY_GIB, IS_REHEARSAL, ON_A_SPEC
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import EP_SIZE
from epd_operator.engines.sglang.parallel import DP_SIZE, MOE_DP_SIZE, PP_SIZE, TP_SIZE
from epd_operator.engines.sglang.switch import switch
from epd_operator.engines.shared import MEMORY, MEMORY_GIB, SHM, SHM_GIB
from epd_operator.rules.expression import at, every, field_of, lift, named, number, some, spec_of, when
from epd_operator.rules.rule import Rule

_EPD: Final = "docs/resources.md"
_ROLES: Final = ("prefill", "decode")
_EVERY: Final = ("encode", *_ROLES)
_GB_IN_GIB: Final = 1e9 / 2**30

GPU: Final = field_of("resources.gpu", "int")
NODES: Final = field_of("nodes", "int").otherwise(1)
RDMA: Final = field_of("resources.rdma", "int")

GPUS_NEEDED: Final = named(
    "gpus_needed",
    when(IS_REHEARSAL, 0, TP_SIZE * PP_SIZE * DP_SIZE),
    written("tp-size"),
    written("pp-size"),
    written("dp-size"),
)
_GPUS_GIVEN: Final = GPU * NODES

_GPUS: Final = (
    Rule(
        id="gpu-too-few",
        when=_GPUS_GIVEN < GPUS_NEEDED,
        sides=(GPU, GPUS_NEEDED),
        says="the parallel sizes need {needed} GPUs, and gpu times nodes gives {given}",
        fix="set resources.gpu to the product of tp-size, pp-size and dp-size divided by nodes, or lower a size",
        source=_EPD,
        roles=_EVERY,
        shows={"needed": GPUS_NEEDED, "given": _GPUS_GIVEN},
    ),
    Rule(
        id="gpu-too-many",
        when=~IS_REHEARSAL & (_GPUS_GIVEN > GPUS_NEEDED),
        sides=(GPU, GPUS_NEEDED),
        says="the parallel sizes use {needed} GPUs, and gpu times nodes takes {given} from the cluster",
        fix="lower resources.gpu or nodes, or raise tp-size",
        source=_EPD,
        severity="warning",
        roles=_EVERY,
        shows={"needed": GPUS_NEEDED, "given": _GPUS_GIVEN},
    ),
    Rule(
        id="gpu-uneven-nodes",
        when=~(GPUS_NEEDED % NODES == 0),
        sides=(GPUS_NEEDED, field_of("nodes", "int")),
        says="{needed} GPUs do not divide evenly over {nodes} nodes",
        fix="choose sizes whose product is a multiple of nodes",
        source=_EPD,
        roles=_EVERY,
        shows={"needed": GPUS_NEEDED, "nodes": NODES},
    ),
)

_BLOCK: Final = 32
_INTERMEDIATE: Final = 2304
"""Edge of a quantised block, and width of one expert. Source: config.json of DeepSeek-V4.1-Flash."""
_EXPERT_RANKS: Final = TP_SIZE // EP_SIZE // MOE_DP_SIZE
_SLICE: Final = lift(_INTERMEDIATE) // _EXPERT_RANKS

_WEIGHTS: Final = spec_of("model.weightsGiBPerGpu", "float")
_CARD: Final = spec_of("engine.gpuMemoryGiB", "float").otherwise(GPU_MEMORY_GIB)
_SHARE: Final = written("mem-fraction-static")
_DRAFTS: Final = flag("speculative-algorithm") == "DSPARK"
_DRAFT_SHARE: Final = 0.02
"""What the draft's weights add to the least share that works. Source: SemiAnalysisAI/InferenceX#2128."""
LEAST_SHARE: Final = named(
    "least_memory_share",
    _WEIGHTS / _CARD + when(_DRAFTS, _DRAFT_SHARE, 0.0),
    spec_of("model.weightsGiBPerGpu", "float"),
)

_GRACE: Final = field_of("pod.terminationGracePeriodSeconds", "int")
_STARTUP: Final = field_of("startupMinutes", "int")

_ENGRAM_COPY_GIB: Final = 188.8
"""Both n-gram tables of DeepSeek-V4.1, once. Source: sgl-project/sglang#39666, vllm-project/vllm#57469."""
_ENGRAM: Final = switch("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE")
_NUMA: Final = env("SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT") == "numa_shared"
ENGRAM_GIB: Final = named(
    "engram_host_gib",
    when(_ENGRAM, when(_NUMA, 2 * _ENGRAM_COPY_GIB, _ENGRAM_COPY_GIB), 0.0),
    env("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"),
)

_RANKS_PER_POD: Final = GPUS_NEEDED // NODES
_HICACHE: Final = flag("enable-hierarchical-cache")
_HICACHE_SIZE: Final = flag("hicache-size")
_DEVICE_KV_GIB: Final = _SHARE * _CARD - _WEIGHTS
"""What a GPU has for key/value pages; absent unless the share and the weights are given."""
_HICACHE_RANK_GIB: Final = when(
    _HICACHE_SIZE > 0,
    _HICACHE_SIZE * _GB_IN_GIB,
    when(_DEVICE_KV_GIB < 0.0, 0.0, _DEVICE_KV_GIB) * flag("hicache-ratio").otherwise(2.0),
)
HICACHE_GIB: Final = named(
    "hicache_host_gib",
    when(_HICACHE, _HICACHE_RANK_GIB * _RANKS_PER_POD, None),
    written("hicache-size"),
    written("hicache-ratio"),
    written("enable-hierarchical-cache"),
)
_HEADROOM: Final = 1.1
"""Index and draft pools come on top of the size stated. Source: sgl-project/sglang#30581."""
_LEAST_LEFT_GIB: Final = 16.0
"""What the engine's own processes take beside tables and caches; below it a pod is at risk (a rule of thumb)."""
HOST_GIB: Final = named(
    "host_gib",
    ENGRAM_GIB + HICACHE_GIB.otherwise(0.0),
    written("hicache-size"),
    written("hicache-ratio"),
    written("enable-hierarchical-cache"),
    env("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"),
)
"""What tables and host caches of a pod take of its memory for good."""
_ENGRAM_FITS: Final = ENGRAM_GIB <= MEMORY_GIB
_HICACHE_FITS: Final = HICACHE_GIB.otherwise(0.0) <= MEMORY_GIB
_BOTH: Final = every(ENGRAM_GIB > 0.0, HICACHE_GIB > 0.0)
_HICACHE_TIGHT: Final = every(HICACHE_GIB > 0.0, HICACHE_GIB * _HEADROOM > MEMORY_GIB)
_NO_SHARE: Final = LEAST_SHARE >= 1.0

_HOST: Final = (
    Rule(
        id="weights-gpu-memory",
        when=_NO_SHARE,
        sides=(spec_of("model.weightsGiBPerGpu", "float"), spec_of("engine.gpuMemoryGiB", "float")),
        says="the {weights} GiB of weights fill the {card} GiB of a GPU, and no mem-fraction-static can help",
        fix="spread the model over more GPUs (tp-size, resources.gpu), or correct spec.model.weightsGiBPerGpu",
        source="sgl-project/sglang cookbook; SemiAnalysisAI/InferenceX#2128",
        roles=_ROLES,
        overridable=True,
        shows={"card": _CARD, "weights": _WEIGHTS},
    ),
    Rule(
        id="memory-share-weights",
        when=every(~_NO_SHARE, _SHARE <= LEAST_SHARE),
        sides=(_SHARE, LEAST_SHARE),
        says="of {card} GiB this share leaves nothing beside the {weights} GiB of weights for key/value pages",
        fix="set mem-fraction-static above {least}",
        source="sgl-project/sglang cookbook; SemiAnalysisAI/InferenceX#2128",
        roles=_ROLES,
        overridable=True,
        shows={"card": _CARD, "weights": _WEIGHTS, "least": LEAST_SHARE},
    ),
    Rule(
        id="engram-host-memory",
        when=(ENGRAM_GIB > 0.0) & (MEMORY_GIB < ENGRAM_GIB),
        sides=(MEMORY, env("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"), env("SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT")),
        says="the n-gram tables take {tables} GiB of the pod's memory (188.8 GiB a copy, one for each socket under "
        "numa_shared), and the limit is {memory} GiB",
        fix="raise resources.memory above the tables and the rest of the engine; a larger shm does not help",
        source="sgl-project/sglang#39666, vllm-project/vllm#57469",
        roles=_ROLES,
        overridable=True,
        shows={"tables": ENGRAM_GIB, "memory": MEMORY_GIB},
    ),
    Rule(
        id="hicache-memory",
        when=HICACHE_GIB > MEMORY_GIB,
        sides=(HICACHE_GIB, MEMORY),
        says="the host cache is counted for each rank: {ranks} ranks of {rank} GiB take {total} GiB, and the limit is "
        "{memory} GiB",
        fix="lower hicache-size (decimal GB a rank) or hicache-ratio, or raise resources.memory",
        source="sgl-project/sglang#14282, sgl-project/sglang#20136",
        roles=_ROLES,
        overridable=True,
        shows={"ranks": _RANKS_PER_POD, "rank": _HICACHE_RANK_GIB, "total": HICACHE_GIB, "memory": MEMORY_GIB},
    ),
    Rule(
        id="hicache-headroom",
        when=every(HICACHE_GIB <= MEMORY_GIB, _HICACHE_TIGHT, HOST_GIB <= MEMORY_GIB),
        sides=(HICACHE_GIB, MEMORY),
        says="{ranks} ranks of {rank} GiB take {total} GiB of {memory} GiB for the host cache, and index and draft "
        "pools come on top",
        fix="leave a tenth and what the engine needs beside it: lower hicache-size (decimal GB a rank) or "
        "hicache-ratio, or raise resources.memory",
        source="sgl-project/sglang#30581",
        severity="warning",
        roles=_ROLES,
        shows={"ranks": _RANKS_PER_POD, "rank": _HICACHE_RANK_GIB, "total": HICACHE_GIB, "memory": MEMORY_GIB},
    ),
    Rule(
        id="host-memory-sum",
        when=every(_BOTH, _ENGRAM_FITS, _HICACHE_FITS, HOST_GIB > MEMORY_GIB),
        sides=(MEMORY, ENGRAM_GIB, HICACHE_GIB),
        says="the n-gram tables ({tables} GiB) and the host cache ({cache} GiB) each fit into the {memory} GiB of the "
        "pod, and together they do not",
        fix="raise resources.memory above their sum and what the engine needs beside it, lower hicache-size or "
        "hicache-ratio, or give up one of the two",
        source="sgl-project/sglang#39666, sgl-project/sglang#14282",
        roles=_ROLES,
        overridable=True,
        shows={"tables": ENGRAM_GIB, "cache": HICACHE_GIB, "memory": MEMORY_GIB},
    ),
    Rule(
        id="host-memory-headroom",
        when=every(
            HOST_GIB > 0.0,
            HOST_GIB <= MEMORY_GIB,
            ~_HICACHE_TIGHT,
            HOST_GIB + SHM_GIB.otherwise(0.0) > MEMORY_GIB - _LEAST_LEFT_GIB,
        ),
        sides=(HOST_GIB, SHM, MEMORY),
        says="tables and caches take {host} GiB of {memory} GiB, and shared memory, when it is full, {shm} GiB: less "
        "than 16 GiB are left for the engine itself",
        fix="raise resources.memory, or lower hicache-size or resources.shm",
        source="docs/resources.md",
        severity="warning",
        roles=_ROLES,
        shows={"host": HOST_GIB, "memory": MEMORY_GIB, "shm": SHM_GIB.otherwise(0.0)},
    ),
    Rule(
        id="tp-quantisation-block",
        when=every(_EXPERT_RANKS > 0, ~(_SLICE % _BLOCK == 0)),
        sides=(TP_SIZE, EP_SIZE),
        says="{ranks} ranks share one expert, and a slice of {width} rows cuts its quantised blocks of 32",
        fix="raise ep-size so that fewer ranks share an expert, or use a tp-size of at most 8",
        source="sgl-project/sglang#23602; config.json of DeepSeek-V4.1-Flash",
        severity="warning",
        roles=_ROLES,
        shows={"ranks": _EXPERT_RANKS, "width": _SLICE},
    ),
)

_BACKEND_IS_RDMA: Final = flag("disaggregation-transfer-backend").isin(("mooncake", "nixl", "mori"))
_TIMEOUTS: Final = (
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
)
_ROUTER_SECONDS: Final = spec_of("router.requestTimeoutSeconds", "int").otherwise(1800)

_NETWORK: Final = (
    Rule(
        id="rdma-missing",
        when=every(ON_A_SPEC, _BACKEND_IS_RDMA, ~(RDMA.otherwise(0) > 0), ~switch("MC_FORCE_TCP")),
        sides=(spec_of("transfer.backend", "str"), RDMA),
        says="this back end moves pages over RDMA, and the pod gets no RDMA device",
        fix="set resources.rdma to the devices of a pod, or spec.transfer.backend to mooncake_tcp",
        source="docs/resources.md; smg-project/smg#1762",
        roles=_ROLES,
        overridable=True,
    ),
    Rule(
        id="transfer-timeout-router",
        when=some(*(number(at(role, env(name))) > _ROUTER_SECONDS for role in _ROLES for name in _TIMEOUTS)),
        sides=(
            spec_of("router.requestTimeoutSeconds", "int"),
            *(at(role, env(name)) for role in _ROLES for name in _TIMEOUTS),
        ),
        says="the router gives up before the transfer between prefill and decode does",
        fix="raise spec.router.requestTimeoutSeconds above both timeouts",
        source="sgl-project/sglang#10204, sgl-project/sglang#11648",
        severity="warning",
        roles=(),
    ),
)

_GATE: Final = written("gated-launch-port")

_LIFE: Final = (
    Rule(
        id="gated-launch",
        when=_GATE.given,
        sides=(_GATE,),
        says="the engine waits before it loads anything until somebody posts to /gate/activate on this port, and "
        "until then the pod is not ready",
        fix="leave gated-launch-port out, unless something of yours opens the gate",
        source="SGLang 0.5.23, srt/distributed/gated_launch.py (read, not run)",
        severity="warning",
        roles=_ROLES,
    ),
    Rule(
        id="grace-short",
        when=_GRACE < 120,
        sides=(_GRACE,),
        says="answers run for minutes, and whatever has not ended by then is cut off",
        fix="leave it out (900 seconds), or set what the longest answer takes",
        source="volcano-sh/kthena#1589, ai-dynamo/dynamo#11173",
        severity="warning",
        roles=_EVERY,
    ),
    Rule(
        id="startup-short",
        when=~IS_REHEARSAL & (_STARTUP < 15),
        sides=(_STARTUP,),
        says="a checkpoint of several hundred GB loads for longer, and the pod would be restarted before it is up",
        fix="leave it out (90 minutes), or set what the slowest load takes",
        source="kserve/kserve#5063, vllm-project/aibrix#772",
        severity="warning",
        roles=_EVERY,
    ),
)

RULES: Final = (*_GPUS, *_HOST, *_NETWORK, *_LIFE)
RESOLVED: Final = (GPUS_NEEDED,)
