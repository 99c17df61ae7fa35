"""What the engine checks last, across all subjects: scheduling, multiplexing, workers, watermarks, hidden states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.attention import PAGE_SIZE, SPECULATES
from epd_operator.engines.sglang.base import IS_DECODE, IS_PD, MODE, ON_A_SPEC
from epd_operator.engines.sglang.chunk import CHUNK_SIZE
from epd_operator.engines.sglang.disaggregation import RUST_SERVER
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.rules.expression import Opaque, contains, lower, size, some, starts
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Value

_SOURCE: Final = "SGLang 0.5.23, arg_groups/validation_hook.py"
_CHECK: Final = "validation_hook.check_server_args"
_AUX: Final = "validation_hook.handle_aux_hidden_state_capture"
_WATERMARK: Final = "validation_hook.check_watermark_server_args"
_WATERMARK_KEYS: Final = ("key", "key_b")
_WATERMARK_NUMBERS: Final = ("mixing_probability", "max_probability")
_WATERMARK_SWITCHES: Final = ("default_enabled", "enforce_all")
_WATERMARK_FIELDS: Final = (*_WATERMARK_KEYS, *_WATERMARK_NUMBERS, *_WATERMARK_SWITCHES, "context_window")
_WATERMARK_BYTES: Final = 4096
_HEX: Final = frozenset("0123456789abcdefABCDEF")

_NAME: Final = written("served-model-name").otherwise(written("model-path"))
_PRIORITY: Final = flag("enable-priority-scheduling")
_AUX_STATES: Final = flag("enable-return-aux-hidden-states")
_LAYERS: Final = written("return-aux-hidden-state-layer-ids")
_METHOD: Final = lower(written("speculative-algorithm"))
_CONFIG: Final = written("watermark-config")
_MASK_VARIABLE: Final = env("SGLANG_DISAGGREGATION_SAMPLING_MASK_MAX_TOKENS")


def _twice_or_negative(layers: Value) -> bool:
    numbers = [layer for layer in layers if isinstance(layer, int)] if isinstance(layers, list | tuple) else []
    return len(set(numbers)) != len(numbers) or any(layer < 0 for layer in numbers)


def _inline(text: Value) -> Any:
    """The watermark configuration of a command line; None when it stands in a file or nowhere."""
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return None
    try:
        return json.loads(text) if len(text.encode()) <= _WATERMARK_BYTES else ""
    except (ValueError, RecursionError):
        return ""


def _is_key(value: Any) -> bool:
    digits = value[2:] if isinstance(value, str) and value.lower().startswith("0x") else value
    return isinstance(digits, str) and 1 <= len(digits) <= 16 and set(digits) <= _HEX


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_window(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64


def _watermark_shape(text: Value) -> bool:
    """Whether an inline watermark configuration has the wrong shape."""
    config = _inline(text)
    if config is None:
        return False
    if not isinstance(config, dict) or set(config) - set(_WATERMARK_FIELDS):
        return True
    given = {name: value for name, value in config.items() if value is not None}
    return not all(
        (name not in _WATERMARK_KEYS or _is_key(value))
        and (name not in _WATERMARK_NUMBERS or _is_number(value))
        and (name not in _WATERMARK_SWITCHES or isinstance(value, bool))
        and (name != "context_window" or _is_window(value))
        for name, value in given.items()
    )


def _watermark_values(text: Value) -> bool:
    """Whether an inline watermark configuration of the right shape contradicts itself."""
    config = _inline(text)
    if not isinstance(config, dict) or _watermark_shape(text):
        return False
    given = {name: value for name, value in config.items() if value is not None}
    mixing = given.get("mixing_probability", 0.5)
    return (
        ("key_b" in given and "key" not in given)
        or not 0 < mixing < 1
        or ("key_b" not in given and mixing != 0.5)
        or not 0 < given.get("max_probability", 1.0) <= 1
        or ("key" not in given and any(given.get(name) for name in _WATERMARK_SWITCHES))
    )


_SCHEDULING: Final = (
    Rule(
        id="chunk-multiple-of-page",
        when=(CHUNK_SIZE > 0) & ~IS_DECODE & ~(CHUNK_SIZE % PAGE_SIZE == 0),
        sides=(CHUNK_SIZE, PAGE_SIZE),
        says="one prefill step holds {chunk} tokens a rank, which is not a whole number of pages of {page}",
        fix="set chunked-prefill-size to a multiple of {page} times attn-dp-size",
        source=_SOURCE,
        decided_by=_CHECK,
        shows={"chunk": CHUNK_SIZE, "page": PAGE_SIZE},
    ),
    Rule(
        id="multiplexing-features",
        when=flag("enable-pdmux")
        & some(~(CHUNK_SIZE == -1), IS_PD, ~flag("disable-overlap-schedule"), ~(flag("pp-size") == 1)),
        sides=(written("enable-pdmux"), CHUNK_SIZE, MODE, written("disable-overlap-schedule")),
        says="multiplexing prefill and decode on one GPU needs an aggregated server with chunked-prefill-size -1 and "
        "disable-overlap-schedule, without pipeline parallelism",
        fix="remove enable-pdmux",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="priority-schedule-policy",
        when=_PRIORITY & ~flag("schedule-policy").isin(("fcfs", "lof")),
        sides=(written("enable-priority-scheduling"), written("schedule-policy")),
        says="priorities work with the schedule policies fcfs and lof",
        fix="set schedule-policy: fcfs or lof, or remove enable-priority-scheduling",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="priority-retraction",
        when=(flag("retraction-policy") == "priority") & ~_PRIORITY,
        sides=(written("retraction-policy"), written("enable-priority-scheduling")),
        says="requests can be retracted by priority only where they have one",
        fix="set enable-priority-scheduling, or retraction-policy: length",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="scheduler-numbers",
        when=some(
            written("pp-max-micro-batch-size") < 1,
            flag("base-gpu-id") < 0,
            flag("gpu-id-step") < 1,
            flag("tokenizer-worker-num") <= 0,
            flag("detokenizer-worker-num") <= 0,
            flag("mm-processor-worker-num") < 0,
            flag("mm-io-worker-num") < 0,
            flag("schedule-conservativeness") < 0.0,
            size(written("gc-threshold")) > 3,
        ),
        sides=(
            written("pp-max-micro-batch-size"),
            written("base-gpu-id"),
            written("gpu-id-step"),
            written("tokenizer-worker-num"),
            written("detokenizer-worker-num"),
            written("mm-processor-worker-num"),
            written("mm-io-worker-num"),
            written("schedule-conservativeness"),
            written("gc-threshold"),
        ),
        says="micro batch, GPU step and (de)tokenizer workers are at least 1; GPU id, media workers and "
        "conservativeness "
        "are not negative; gc-threshold holds one to three numbers",
        fix="choose numbers in these ranges, or leave the flag out",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="graph-padding-compile",
        when=flag("disable-cuda-graph-padding") & flag("enable-torch-compile"),
        sides=(written("disable-cuda-graph-padding"), written("enable-torch-compile")),
        says="without padding every batch size would be compiled on its own, which takes many minutes",
        fix="remove disable-cuda-graph-padding or enable-torch-compile",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="prefill-decode-interval-range",
        when=some(written("prefill-decode-interval") < 0, flag("prefill-decode-interval-min-bs") < 0),
        sides=(written("prefill-decode-interval"), written("prefill-decode-interval-min-bs")),
        says="the steps between prefills and the batch size from which they count are not negative",
        fix="set both to 0 or more, or leave them out",
        source=_SOURCE,
        decided_by="validation_hook.validate_prefill_decode_interval",
        roles=ROLES,
    ),
)

_SERVING: Final = (
    Rule(
        id="served-name-colon",
        # A spec's own schema refuses it first.
        when=contains(_NAME, ":")
        & ~ON_A_SPEC
        & ~some(*(starts(lower(_NAME), scheme) for scheme in ("s3://", "gs://", "az://"))),
        sides=(written("served-model-name"), written("model-path")),
        says="a colon in the served name would be read as model:adapter, the way clients ask for LoRA adapters",
        fix="set a served model name without a colon",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="response-store-under-pd",
        when=flag("enable-response-store") & IS_PD,
        sides=(written("enable-response-store"), MODE),
        says="prefill and decode servers cannot store responses",
        fix="remove enable-response-store",
        source=_SOURCE,
        decided_by="validation_hook.validate_response_store",
        roles=ROLES,
    ),
    Rule(
        id="mindspore-hardware",
        when=flag("model-impl") == "mindspore",
        sides=(written("model-impl"),),
        says="MindSpore models run on Ascend NPUs",
        fix="remove model-impl",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="quantized-communication-hardware",
        when=flag("enable-quant-communications"),
        sides=(written("enable-quant-communications"),),
        says="quantized communication exists for Ascend NPUs only",
        fix="remove enable-quant-communications",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="sampling-backend-hardware",
        when=flag("sampling-backend") == "intel_xpu",
        sides=(written("sampling-backend"),),
        says="the sampling back end intel_xpu runs on Intel GPUs",
        fix="remove sampling-backend",
        source=_SOURCE,
        decided_by="validation_hook.validate_device_sampling_backend",
    ),
    Rule(
        id="kv-canary-sweep",
        when=(flag("kv-canary-sweep-interval") > 0) & (flag("kv-canary") == "none"),
        sides=(written("kv-canary-sweep-interval"), written("kv-canary")),
        says="sweeping looks for canaries in the KV cache, and none are placed",
        fix="set kv-canary: log or raise, or remove kv-canary-sweep-interval",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="sampling-mask-size",
        when=_MASK_VARIABLE.given | (flag("sampling-mask-max-tokens") <= 0),
        sides=(written("sampling-mask-max-tokens"), _MASK_VARIABLE),
        says="the size of a sampling mask is set by a flag, at least 1, and no longer by a variable",
        fix="unset the variable; set sampling-mask-max-tokens alike on prefill and decode, and "
        "SGLANG_ENABLE_DISAGG_SAMPLING_MASK=1 to use masks between them",
        source=_SOURCE,
        decided_by="validation_hook.validate_sampling_mask_max_tokens",
        roles=ROLES,
    ),
    Rule(
        id="aux-hidden-states",
        when=some(
            _LAYERS.given & ~_AUX_STATES,
            _AUX_STATES
            & some(
                ~_METHOD.isin(("eagle3", "dflash", "dspark")),
                written("speculative-draft-model-path").given,
                ~(flag("pp-size") == 1),
                ~(_METHOD == "eagle3") & ~_LAYERS.given,
                Opaque(
                    "whether a layer is named twice or is negative",
                    _twice_or_negative,
                    (_LAYERS,),
                    "bool",
                    blind=False,
                    nullable=False,
                ),
            ),
        ),
        sides=(
            written("enable-return-aux-hidden-states"),
            _LAYERS,
            written("speculative-algorithm"),
            written("speculative-draft-model-path"),
        ),
        says="auxiliary hidden states are named by speculative-algorithm (EAGLE3, DFLASH or DSPARK, then without a "
        "draft) "
        "and, except for EAGLE3, by distinct layers of return-aux-hidden-state-layer-ids",
        fix="set all of these, or remove enable-return-aux-hidden-states and return-aux-hidden-state-layer-ids",
        source=_SOURCE,
        decided_by=_AUX,
        roles=ROLES,
    ),
)

_MARKS: Final = (
    Rule(
        id="watermark-config-shape",
        when=Opaque(
            "whether the watermark configuration has the right shape",
            _watermark_shape,
            (_CONFIG,),
            "bool",
            blind=False,
            nullable=False,
        ),
        sides=(_CONFIG,),
        says="the watermark configuration is a JSON object of at most 4096 bytes with hex keys of 1 to 16 digits, a "
        "context_window from 1 to 64, numbers and switches, and no other fields",
        fix='correct watermark-config, such as {{"key": "1f", "context_window": 4}}',
        source="SGLang 0.5.23, sampling/watermarking/config.py",
        decided_by="config.load_watermark_config",
        roles=ROLES,
    ),
    Rule(
        id="watermark-needs-switch",
        when=_CONFIG.given & ~flag("enable-watermark"),
        sides=(_CONFIG, written("enable-watermark")),
        says="a watermark is configured, and none is enabled",
        fix="set enable-watermark, or remove watermark-config",
        source=_SOURCE,
        decided_by=_WATERMARK,
    ),
    Rule(
        id="watermark-features",
        when=flag("enable-watermark")
        & some(
            flag("enable-custom-logit-processor"),
            written("dllm-algorithm").given,
            IS_PD,
            SPECULATES & ~written("speculative-algorithm").isin(("NGRAM", "EAGLE", "EAGLE3")),
            flag("speculative-use-rejection-sampling"),
            RUST_SERVER,
        ),
        sides=(
            written("enable-watermark"),
            MODE,
            written("speculative-algorithm"),
            written("enable-custom-logit-processor"),
        ),
        says="watermarks are for aggregated servers without DSpark, rejection sampling, custom logit processors or the "
        "Rust server",
        fix="remove enable-watermark",
        source=_SOURCE,
        decided_by=_WATERMARK,
    ),
    Rule(
        id="watermark-config-values",
        when=flag("enable-watermark")
        & Opaque(
            "whether the watermark configuration agrees with itself",
            _watermark_values,
            (_CONFIG,),
            "bool",
            blind=False,
            nullable=False,
        ),
        sides=(_CONFIG,),
        says="a second key, default_enabled and enforce_all need a key; mixing_probability lies between 0 and 1 and "
        "needs a "
        "second key; max_probability lies above 0 and up to 1",
        fix="correct watermark-config",
        source=_SOURCE,
        decided_by=_WATERMARK,
    ),
)

RULES: Final = (*_SCHEDULING, *_SERVING, *_MARKS)
RESOLVED: Final = ()
