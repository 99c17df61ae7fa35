"""The encode tier that the plugin epd gives DeepSeek-V4.1: what it refuses on either side, and what it costs to forget.

Without the plugin the engine refuses the tier as a whole, which `disaggregation` says.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import IS_DECODE, IS_ENCODER, IS_V41, ON_A_SPEC
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import A2A_BACKEND_ASKED
from epd_operator.engines.sglang.ownership import ENCODER_TRANSFER
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE,
    ATTN_DP_ENABLED,
    ATTN_DP_SIZE,
    PP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.engines.sglang.plugin import LOADED, PLUGINS, SOURCE
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import declared, every, field_of, some
from epd_operator.rules.rule import ROLES, Rule

_LANGUAGE: Final = written("language-only")
_GATED: Final = every(LOADED, IS_V41, flag("language-only"))
"""A server that leaves images to encoders, as the plugin lets DeepSeek-V4.1 do."""
_HAS_TIER: Final = every(ON_A_SPEC, LOADED, declared("encode"))
_NODES: Final = field_of("nodes", "int")
_TRANSFER: Final = written("encoder-transfer-backend")
_ADAPTIVE: Final = written("enable-adaptive-dispatch-to-encoder")
_WORKERS: Final = written("tokenizer-worker-num")
_DOMAINS: Final = written("allowed-media-domains")
_TEXT_ONLY: Final = written("language-model-only")
_RANDOM_HASH: Final = "SGLANG_MM_SKIP_COMPUTE_HASH"
_VISION: Final = "SGLang 0.5.23, models/deepseek_v4.py, where the vision tower is built"

_ENCODER: Final = (
    Rule(
        id="encoder-width",
        when=every(ON_A_SPEC, LOADED, IS_ENCODER, some(TP_SIZE > 1, PP_SIZE > 1, _NODES > 1)),
        sides=(TP_SIZE, PP_SIZE, _NODES),
        says="every rank of an encoder holds the whole vision tower and encodes the same images, so more ranks cost "
        "GPUs and save nothing",
        fix="leave tp-size, pp-size and nodes at 1; set replicas, or dp-size for several GPUs in one pod",
        source=f"{SOURCE}; SGLang 0.5.23, models/deepseek_v41_vit.py",
        roles=("encode",),
    ),
    Rule(
        id="encoder-media-domains",
        when=every(_HAS_TIER, ~flag("language-model-only"), ~_DOMAINS.given),
        sides=(_DOMAINS,),
        says="these pods fetch every picture whose address a client sends, from any host that they can reach",
        fix="set allowed-media-domains on encode and decode to the hosts of your pictures",
        source="SGLang 0.5.23, utils/common.py, configure_media_url_security",
        severity="warning",
        roles=("encode", "decode"),
    ),
)
_PREFILL: Final = (
    Rule(
        id="language-only-attention-dp",
        when=every(_GATED, ATTN_DP_ENABLED, ~(flag("encoder-transfer-backend") == ENCODER_TRANSFER)),
        sides=(_TRANSFER, ATTN_DP_SIZE),
        says="only one data-parallel rank holds a request that waits for an image, and the ranks of this transfer wait "
        "for each other until a timeout",
        fix=f"set encoder-transfer-backend: {ENCODER_TRANSFER} on the encoder and on this server",
        source=f"{SOURCE}; SGLang 0.5.23, disaggregation/encoder/receiver.py, _process_waiting_requests",
        roles=ROLES,
    ),
    Rule(
        id="language-only-adaptive-dispatch",
        when=_GATED & flag("enable-adaptive-dispatch-to-encoder"),
        sides=(_LANGUAGE, _ADAPTIVE),
        says="adaptive dispatch encodes some images itself, and a server that leaves them to encoders has no vision "
        "tower",
        fix="remove enable-adaptive-dispatch-to-encoder",
        source=f"{SOURCE}; SGLang 0.5.23, managers/tokenizer_manager.py",
        roles=ROLES,
    ),
    Rule(
        id="language-only-tokenizers",
        when=_GATED & (flag("tokenizer-worker-num") > 1),
        sides=(_LANGUAGE, _WORKERS),
        says="further tokenizer processes load no plugins, and would leave the images of their requests where they are",
        fix="remove tokenizer-worker-num, or set it to 1",
        source=f"{SOURCE}; SGLang 0.5.23, entrypoints/http_server.py",
        roles=ROLES,
    ),
    Rule(
        id="language-only-decode",
        when=_GATED & IS_DECODE,
        sides=(_LANGUAGE, written("disaggregation-mode")),
        says="decode needs the length of an image and not what is in it, and would have every image encoded a second "
        "time",
        fix="remove language-only from decode",
        source=SOURCE,
        roles=ROLES,
    ),
    Rule(
        id="language-only-context-parallel",
        when=_GATED & some(PREFILL_CP, ATTN_CP_SIZE > 1),
        sides=(_LANGUAGE, ATTN_CP_SIZE, PREFILL_CP),
        says="DeepSeek-V4.1 takes no images under context parallelism",
        fix="remove enable-prefill-cp and attn-cp-size, or the encode role",
        source=_VISION,
        roles=ROLES,
    ),
    Rule(
        id="language-only-exchange",
        when=_GATED & ~A2A_BACKEND_ASKED.isin(("none", "megamoe")),
        sides=(_LANGUAGE, A2A_BACKEND_ASKED),
        says="DeepSeek-V4.1 takes images with the exchanges none and, on NVIDIA GPUs, megamoe",
        fix="set moe-a2a-backend to none or megamoe, or remove the encode role",
        source=_VISION,
        roles=ROLES,
    ),
    Rule(
        id="encode-random-hash",
        when=every(_HAS_TIER, switch(_RANDOM_HASH)),
        sides=(env(_RANDOM_HASH), PLUGINS),
        says="an encoder names an image by its pixels, and this replaces the name by a random one: no prompt with an "
        "image would ever be found in the prefix cache",
        fix=f"remove {_RANDOM_HASH} from prefill",
        source=f"{SOURCE}; SGLang 0.5.23, multimodal/cache/identity.py",
        roles=("prefill",),
    ),
    Rule(
        id="encode-text-only",
        when=every(_HAS_TIER, flag("language-model-only")),
        sides=(_TEXT_ONLY, PLUGINS),
        says="this server would route no image tokens and answer every image with 400, and encoders would wait for "
        "nothing",
        fix="remove language-model-only from prefill and decode, or remove the encode role",
        source=f"{SOURCE}; SGLang 0.5.23, managers/tokenizer_manager.py",
        roles=("prefill", "decode"),
    ),
)

RULES: Final = (*_ENCODER, *_PREFILL)
RESOLVED: Final = ()
