"""The sizes of a model: `config.json` in the released structure, and what each layer does with them.

The tricky idea: a layer's mode follows from four short lists alone (`LayerPlan`), so the released 40 layers and a tiny
8-layer model run the same code. Source of the keys: DeepSeek-V4.1-Flash, config.json, revision dba1be0a.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from epd_workers.reference.model.document import plain, read

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Mode = Literal["Window", "Full", "Reuse", "Reindex"]
ARCHITECTURE: Final = "DeepseekV41ForCausalLM"
MODEL_TYPE: Final = "deepseek_v41"
QUANTISATION: Final = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}

_SMALLEST_SPAN: Final = 4
_LARGEST: Final = 2**31 - 1
"""Of every integer: what is computed from it then fits int64, and a search from it for primes is exact."""


class BadConfig(ValueError):
    """A configuration that no model can be built from; `faults` has one message per fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does.

    Attributes:
        index: Its number, from 0.
        mode: `Window` has no global branch; `Full` owns global KV and selects; `Reuse` takes both from earlier layers;
            `Reindex` selects again among the candidates over another layer's index keys.
        ratio: Tokens per global entry; 0 without a global branch.
        decoder: Whether it belongs to the decoder half, whose only global KV is that of its first layer.
        kv_source: The layer whose global entries and index keys it reads; -1 without.
        index_source: The layer whose selection it uses; -1 without.
        engram: Whether an Engram lookup stands before its attention.
        candidates: Whether it publishes the candidate blocks for the `Reindex` layers behind it.
    """

    index: int
    mode: Mode
    ratio: int
    decoder: bool
    kv_source: int
    index_source: int
    engram: bool
    candidates: bool

    @property
    def owns_kv(self) -> bool:
        """Whether it writes global entries and index keys."""
        return self.kv_source == self.index

    @property
    def owns_index(self) -> bool:
        """Whether it selects entries with its own index queries."""
        return self.index_source == self.index


@dataclass(frozen=True)
class RopeScaling:
    """YaRN over the compressed layers' rotary frequencies."""

    type: str = "yarn"
    factor: float = 16.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position_embeddings: int = 65536


@dataclass(frozen=True)
class TextConfig:
    """`text_config` of config.json; every name and default is the released one."""

    vocab_size: int = 129280
    hidden_size: int = 5120
    num_hidden_layers: int = 40
    num_nextn_predict_layers: int = 3
    max_position_embeddings: int = 1048576
    rms_norm_eps: float = 1e-20
    swiglu_limit: float = 10.0
    num_attention_heads: int = 64
    num_key_value_heads: int = 1
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 1280
    o_lora_rank: int = 1024
    o_groups: int = 8
    sliding_window: int = 128
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    compress_ratios: tuple[int, ...] = (0, 0, *(2,) * 18, *(1,) * 20, 0, 0, 0)
    kv_source_layer_ids: tuple[int, ...] = (2, 8, 14, 20)
    index_source_layer_ids: tuple[int, ...] = (2, 8, 14, 20, 24, 28, 32, 36)
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 512
    candidate_source_layer_id: int = 20
    candidate_topk_blocks: int = 2048
    candidate_block_size: int = 8
    n_routed_experts: int = 384
    n_shared_experts: int = 1
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 2304
    scoring_func: str = "sqrtsoftplus"
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.5
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    engram_layer_ids: tuple[int, ...] = (1, 14)
    engram_num_embeddings: tuple[int, ...] = (384006168, 384016682)
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 16000000
    engram_n_heads: int = 8
    engram_head_dim: int = 256
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 99092
    dspark_block_size: int = 5
    dspark_noise_token_id: int = 128799
    dspark_target_layer_ids: tuple[int, ...] = (37, 38, 39)
    dspark_markov_rank: int = 256
    dspark_n_routed_experts: int = 128
    dspark_num_experts_per_tok: int = 3
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    hidden_act: str = "silu"
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    model_type: str = "deepseek_v41_text"

    @property
    def split(self) -> int:
        """First layer of the decoder half: the last owner of global KV."""
        return self.kv_source_layer_ids[-1]

    @property
    def plans(self) -> tuple[LayerPlan, ...]:
        """What each layer does, in order."""
        return tuple(self._plan(index) for index in range(self.num_hidden_layers))

    @property
    def kv_owners(self) -> tuple[LayerPlan, ...]:
        """The layers that write global entries."""
        return tuple(plan for plan in self.plans if plan.owns_kv)

    def _plan(self, index: int) -> LayerPlan:
        ratio = self.compress_ratios[index]
        kv_source = max((i for i in self.kv_source_layer_ids if i <= index), default=-1) if ratio else -1
        index_source = max((i for i in self.index_source_layer_ids if i <= index), default=-1) if ratio else -1
        mode: Mode = "Window"
        if ratio:
            mode = "Full" if kv_source == index else "Reindex" if index_source == index else "Reuse"
        return LayerPlan(
            index=index,
            mode=mode,
            ratio=ratio,
            decoder=index >= self.split,
            kv_source=kv_source,
            index_source=index_source,
            engram=index in self.engram_layer_ids,
            candidates=index == self.candidate_source_layer_id,
        )

    def faults(self) -> list[str]:
        """What keeps a model from being built with these sizes, one message each."""
        values = {**asdict(self), **_dotted("rope_scaling", asdict(self.rope_scaling))}
        result = _unlike(values, _FIXED) + _out_of_bounds(values, _FREE)
        rope_limit = min(self.head_dim, self.index_head_dim)
        layers, stages = self.num_hidden_layers, self.num_nextn_predict_layers
        ratios, sources = self.compress_ratios, self.kv_source_layer_ids
        last = sources[-1] if sources else -1
        selecting = self.index_source_layer_ids
        ids = {name: values[name] for name in ("engram_pad_token_id", "dspark_noise_token_id")}
        rules = (
            (self.o_groups and self.num_attention_heads % self.o_groups == 0,
             f"num_attention_heads is {self.num_attention_heads}: must be a multiple of o_groups ({self.o_groups})"),
            (self.num_key_value_heads == 1, f"num_key_value_heads is {self.num_key_value_heads}: must be 1"),
            (self.head_dim % 32 == 0, f"head_dim is {self.head_dim}: must be a multiple of 32"),
            (self.index_head_dim % 32 == 0, f"index_head_dim is {self.index_head_dim}: must be a multiple of 32"),
            (self.qk_rope_head_dim % 2 == 0 and self.qk_rope_head_dim <= rope_limit,
             (f"qk_rope_head_dim is {self.qk_rope_head_dim}: must be even and at most {rope_limit}, "
             "the smaller of head_dim and index_head_dim")),
            (len(ratios) == layers + stages,
             (f"compress_ratios has {len(ratios)} entries: must have num_hidden_layers + num_nextn_predict_layers "
             f"({layers + stages})")),
            (set(ratios) <= {0, 1, 2}, f"compress_ratios has {sorted(set(ratios) - {0, 1, 2})}: must be 0, 1 or 2"),
            (bool(sources) and list(sources) == sorted(set(sources)) and last < layers,
             f"kv_source_layer_ids is {list(sources)}: must be rising layer numbers below {layers}"),
            (set(sources) <= set(selecting),
             f"kv_source_layer_ids is {list(sources)}: every one must be in index_source_layer_ids"),
            (all(i in sources or last < i < layers for i in selecting) and list(selecting) == sorted(set(selecting)),
             (f"index_source_layer_ids is {list(selecting)}: must be rising, and what is not in kv_source_layer_ids "
             f"must stand behind the candidate source, at {last + 1} to {layers - 1}")),
            (self.candidate_source_layer_id == last,
             (f"candidate_source_layer_id is {self.candidate_source_layer_id}: must be the last of "
             f"kv_source_layer_ids ({last})")),
            (all(0 <= i < last for i in self.engram_layer_ids),
             f"engram_layer_ids is {list(self.engram_layer_ids)}: must stand before layer {last}"),
            (list(self.engram_layer_ids) == sorted(set(self.engram_layer_ids)),
             f"engram_layer_ids is {list(self.engram_layer_ids)}: must be rising"),
            (len(self.engram_layer_ids) == len(self.engram_num_embeddings),
             "engram_num_embeddings must have one entry per engram_layer_ids"),
            (not stages or (bool(self.dspark_target_layer_ids)
                            and all(last <= i < layers for i in self.dspark_target_layer_ids)),
             f"dspark_target_layer_ids is {list(self.dspark_target_layer_ids)}: must be {last} to {layers - 1}"),
            (not any(ratios[layers:]), f"compress_ratios is {list(ratios)}: must be 0 for draft stages"),
            (self.num_experts_per_tok <= self.n_routed_experts,
             f"num_experts_per_tok is {self.num_experts_per_tok}: at most n_routed_experts ({self.n_routed_experts})"),
            (not stages or self.dspark_num_experts_per_tok <= self.dspark_n_routed_experts,
             (f"dspark_num_experts_per_tok is {self.dspark_num_experts_per_tok}: at most dspark_n_routed_experts "
             f"({self.dspark_n_routed_experts})")),
            *((0 <= i < self.vocab_size, f"{name} is {i}: must be an id below vocab_size ({self.vocab_size})")
              for name, i in ids.items()),
        )  # fmt: skip
        result += [text for good, text in rules if not good]
        return result or self._layer_faults()

    def _layer_faults(self) -> list[str]:
        faults = []
        for plan in self.plans:
            if plan.ratio and plan.kv_source < 0:
                faults.append(f"compress_ratios[{plan.index}] is {plan.ratio}: no kv source stands at or before it")
            elif plan.ratio and self.compress_ratios[plan.kv_source] != plan.ratio:
                faults.append(
                    f"compress_ratios[{plan.index}] is {plan.ratio}: its kv source, layer {plan.kv_source}, "
                    f"has {self.compress_ratios[plan.kv_source]}"
                )
            if plan.decoder and plan.ratio > 1:
                faults.append(f"compress_ratios[{plan.index}] is {plan.ratio}: the decoder half takes 0 or 1")
        faults += [
            f"kv_source_layer_ids has {i}: compress_ratios[{i}] is 0" for i in self.kv_source_layer_ids
            if not self.compress_ratios[i]
        ]  # fmt: skip
        return faults


@dataclass(frozen=True)
class VisionConfig:
    """`vision_config` of config.json; every name and default is the released one."""

    num_hidden_layers: int = 32
    hidden_size: int = 1024
    num_attention_heads: int = 16
    intermediate_size: int = 2816
    patch_size: int = 14
    rope_theta: float = 10000.0
    downsample_ratio: int = 3
    max_image_tokens: int = 1024
    min_pixels: int = 295936
    max_wh_ratio: float | None = None
    model_type: str = "deepseek_v41_vision"

    def faults(self) -> list[str]:
        """What keeps a tower from being built with these sizes, one message each."""
        values = asdict(self)
        result = _unlike(values, {"model_type": VisionConfig.model_type}) + _out_of_bounds(values, frozenset())
        if 0 < self.max_image_tokens < _SMALLEST_SPAN:
            result.append(f"max_image_tokens is {self.max_image_tokens}: must be at least {_SMALLEST_SPAN}, one cell")
        if self.max_wh_ratio is not None and self.max_wh_ratio < 1:
            result.append(f"max_wh_ratio is {self.max_wh_ratio}: must be null or at least 1")
        if not result and self.hidden_size % (4 * self.num_attention_heads):
            result.append(
                f"hidden_size is {self.hidden_size}: must be a multiple of 4 * num_attention_heads "
                f"({4 * self.num_attention_heads})"
            )
        return result


@dataclass(frozen=True)
class Config:
    """config.json."""

    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    image_token_id: int = 129264

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read and check a config.json.

        Raises:
            BadConfig: Lists every missing key, wrong type and broken rule. Keys that mean nothing here are ignored.
        """
        faults: list[str] = []
        if data.get("model_type") != MODEL_TYPE:
            faults.append(f"model_type is {data.get('model_type')!r}: must be {MODEL_TYPE!r}")
        image = data.get("image_token_id")
        if not isinstance(image, int) or isinstance(image, bool):
            faults.append(f"image_token_id is {image!r}: must be an integer")
            image = 0
        text = read(TextConfig, data.get("text_config"), "text_config", faults, optional=_OPTIONAL)
        vision = read(VisionConfig, data.get("vision_config"), "vision_config", faults)
        if not faults:
            faults += [f"text_config.{fault}" for fault in text.faults()]
            faults += [f"vision_config.{fault}" for fault in vision.faults()]
            if not 0 <= image < text.vocab_size:
                faults.append(f"image_token_id is {image}: must be an id below vocab_size ({text.vocab_size})")
        if faults:
            raise BadConfig(faults)
        return cls(text, vision, image)

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "image_token_id": self.image_token_id,
            "quantization_config": QUANTISATION,
            "text_config": plain(asdict(self.text)),
            "vision_config": plain(asdict(self.vision)),
        }


_FREE: Final = frozenset({
    "num_nextn_predict_layers", "candidate_source_layer_id", "engram_pad_token_id", "dspark_noise_token_id",
    "bos_token_id", "eos_token_id", "pad_token_id",
})  # fmt: skip
"""Integers that are not sizes: their own rules bound them, if any."""

_FIXED: Final[dict[str, object]] = {
    "model_type": TextConfig.model_type, "hidden_act": "silu", "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "n_shared_experts": 1, "attention_bias": False,
    "tie_word_embeddings": False, "rope_scaling.type": "yarn",
}  # fmt: skip
"""What the architecture has one value of: another one means another model, which would be computed wrongly."""

_MOST: Final = {"n_routed_experts": 4096, "dspark_n_routed_experts": 4096, "engram_max_ngram_size": 16,
                "engram_n_heads": 1024}  # fmt: skip
"""Where one size makes that many tensors, or a long search."""

_OPTIONAL = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})  # the released file has them not


def _dotted(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def _unlike(values: Mapping[str, Any], fixed: Mapping[str, object]) -> list[str]:
    """One message per value that this architecture does not have."""
    return [
        f"{name} is {values[name]!r}: must be {json.dumps(value) if isinstance(value, bool) else value}"
        for name, value in fixed.items()
        if values[name] != value
    ]


def _out_of_bounds(values: Mapping[str, Any], free: Collection[str]) -> list[str]:
    """One message per size below 1 or too large to compute with, and per number that must be positive."""
    result = []
    for name, value in values.items():
        if isinstance(value, bool) or (name in free and abs(value) <= _LARGEST):
            continue
        if isinstance(value, int) and value < 1:
            result.append(f"{name} is {value}: must be at least 1")
        elif isinstance(value, int) and value > (most := _MOST.get(name, _LARGEST)):
            result.append(f"{name} is {value}: must be at most {most}")
        elif isinstance(value, float) and value <= 0:
            result.append(f"{name} is {value!r}: must be above 0")
    return result


RELEASED: Final = Config()
"""DeepSeek-V4.1-Flash."""

SHIPPED: Final = Config(
    text=TextConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=8,
        num_nextn_predict_layers=1,
        max_position_embeddings=8192,
        num_attention_heads=4,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=96,
        o_lora_rank=64,
        o_groups=2,
        compress_ratios=(0, 0, 2, 2, 1, 1, 1, 1, 0),
        kv_source_layer_ids=(2, 4),
        index_source_layer_ids=(2, 4, 6),
        index_n_heads=4,
        index_head_dim=32,
        index_topk=64,
        candidate_source_layer_id=4,
        candidate_topk_blocks=16,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        hc_mult=2,
        engram_layer_ids=(1,),
        engram_num_embeddings=(12126,),
        engram_vocab_size=2000,
        engram_n_heads=2,
        engram_head_dim=32,
        engram_pad_token_id=262,
        engram_compressed_vocab_size=280,
        dspark_noise_token_id=263,
        dspark_target_layer_ids=(5, 6, 7),
        dspark_markov_rank=32,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=2,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=262,
    ),
    vision=VisionConfig(
        num_hidden_layers=2,
        hidden_size=96,
        num_attention_heads=4,
        intermediate_size=192,
        max_image_tokens=160,
        min_pixels=15876,
    ),
    image_token_id=258,
)
"""The checkpoint in the package: small enough to train on two CPU cores."""
