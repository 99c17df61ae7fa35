"""Random tiny configs in the released structure, and weights and prompts for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.reference.model.oracle_engram import primes_of


def tiny(
    *,
    lead: int = 2,
    encoder: tuple[tuple[int, int], ...] = ((2, 1),),
    decoder: tuple[int, ...] = (1, 1),
    trailing: int = 0,
    heads: int = 4,
    groups: int = 2,
    head_dim: int = 32,
    rope: int = 8,
    hidden: int = 32,
    ranks: tuple[int, int] = (32, 32),
    window: int = 8,
    index: tuple[int, int, int] = (4, 32, 4),
    candidates: tuple[int, int] = (3, 4),
    experts: tuple[int, int, int] = (4, 2, 32),
    streams: int = 4,
    engram: tuple[tuple[int, ...], int, int, int, int] = ((1,), 4, 2, 32, 100),
    stages: int = 1,
    targets: int = 2,
    vision: tuple[int, int, int] = (2, 32, 2),
    context: int = 1024,
) -> dict[str, Any]:
    """A config.json dictionary.

    Args:
        lead: Window-only layers in front.
        encoder: (ratio, Reuse layers behind) of each KV source of the first half.
        decoder: Layers of each selection of the second half; the first group starts with the last KV source.
        trailing: Window-only layers at the end.
        heads: Attention heads.
        groups: Output groups.
        head_dim: Attention head size.
        rope: Rotated values of a head.
        hidden: d.
        ranks: Query and output ranks.
        window: W.
        index: Index heads, head size, top-k.
        candidates: Blocks kept, entries a block.
        experts: Routed, chosen, intermediate size.
        streams: Residual streams.
        engram: Layers, n-gram size, heads, head size, prime search start.
        stages: Draft stages.
        targets: At most this many of the last layers feed them.
        vision: Layers, hidden size, heads.
        context: Longest sequence.
    """
    ratios, kv, selecting = [0] * lead, [], []
    for ratio, reuse in encoder:
        kv.append(len(ratios))
        selecting.append(len(ratios))
        ratios += [ratio] * (1 + reuse)
    kv.append(len(ratios))
    for size in decoder:
        selecting.append(len(ratios))
        ratios += [1] * size
    ratios += [0] * trailing
    count = len(ratios)
    text: dict[str, Any] = {
        "model_type": "deepseek_v41_text",
        "vocab_size": 96,
        "hidden_size": hidden,
        "num_hidden_layers": count,
        "num_nextn_predict_layers": stages,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-20,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "attention_bias": False,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "qk_rope_head_dim": rope,
        "q_lora_rank": ranks[0],
        "o_lora_rank": ranks[1],
        "o_groups": groups,
        "sliding_window": window,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 4096,
        },
        "compress_ratios": ratios + [0] * stages,
        "kv_source_layer_ids": kv,
        "index_source_layer_ids": selecting,
        "index_n_heads": index[0],
        "index_head_dim": index[1],
        "index_topk": index[2],
        "candidate_source_layer_id": kv[-1],
        "candidate_topk_blocks": candidates[0],
        "candidate_block_size": candidates[1],
        "n_routed_experts": experts[0],
        "n_shared_experts": 1,
        "num_experts_per_tok": experts[1],
        "moe_intermediate_size": experts[2],
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "hc_mult": streams,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": list(engram[0]),
        "engram_max_ngram_size": engram[1],
        "engram_vocab_size": engram[4],
        "engram_n_heads": engram[2],
        "engram_head_dim": engram[3],
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 90,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 93,
        "dspark_target_layer_ids": list(range(max(kv[-1], count - targets), count)),
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 3,
        "dspark_num_experts_per_tok": 2,
    }
    text["engram_num_embeddings"] = [sum(map(sum, table)) for table in primes_of(text)]
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "image_token_id": 94,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": text,
        "vision_config": {
            "model_type": "deepseek_v41_vision",
            "num_hidden_layers": vision[0],
            "hidden_size": vision[1],
            "num_attention_heads": vision[2],
            "intermediate_size": 64,
            "patch_size": 14,
            "rope_theta": 10000,
            "downsample_ratio": 3,
            "max_image_tokens": 64,
            "min_pixels": 3136,
            "max_wh_ratio": None,
        },
    }


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Configs that a shrunken model must obey: one m = 2 source with a Reuse layer, m = 1 in the second half, ..."""
    pick = st.sampled_from
    lead = draw(st.integers(1, 2))
    encoder = [(2, draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        encoder.append((draw(pick([1, 2])), draw(st.integers(0, 1))))
    encoded = lead + sum(1 + reuse for _, reuse in encoder)
    heads, head_dim, index_dim = draw(pick([2, 4])), draw(pick([32, 64])), draw(pick([32, 64]))
    layers = draw(st.lists(st.integers(0, encoded - 1), max_size=2, unique=True))
    routed = draw(st.integers(2, 6))
    return tiny(
        lead=lead,
        encoder=tuple(encoder),
        decoder=tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))),
        trailing=draw(pick([0, 0, 0, 1])),
        heads=heads,
        groups=draw(pick([1, 2])),
        head_dim=head_dim,
        rope=draw(pick([4, 8, 16, 32])),
        hidden=draw(pick([32, 64])),
        ranks=(draw(pick([32, 64])), draw(pick([32, 64]))),
        window=draw(st.integers(4, 16)),
        index=(draw(pick([4, 8])), index_dim, draw(st.integers(2, 8))),
        candidates=(draw(st.integers(2, 6)), draw(st.integers(2, 4))),
        experts=(routed, draw(st.integers(1, min(3, routed))), draw(pick([32, 64]))),
        streams=draw(pick([2, 4])),
        engram=(
            tuple(sorted(layers)),
            draw(st.integers(2, 4)),
            draw(st.integers(1, 3)),
            draw(pick([32, 64])),
            draw(pick([60, 100])),
        ),
        stages=draw(st.integers(0, 2)),
        targets=draw(st.integers(1, 3)),
        vision=(draw(st.integers(1, 2)), draw(pick([32, 64])), draw(pick([1, 2]))),
    )


@dataclass
class _Draws:
    generator: torch.Generator
    tensors: dict[str, Tensor]

    def normal(self, name: str, *shape: int, std: float = 1.0, mean: float = 0.0) -> None:
        self.tensors[name] = mean + std * torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def linear(self, name: str, out: int, into: int, *, gain: float = 1.0) -> None:
        self.normal(f"{name}.weight", out, into, std=gain / math.sqrt(into))

    def affine(self, name: str, out: int, into: int) -> None:
        self.linear(name, out, into)
        self.normal(f"{name}.bias", out, std=0.3)

    def norm(self, name: str, size: int) -> None:
        self.normal(f"{name}.weight", size, mean=1.0, std=0.1)


def _attention(put: _Draws, text: dict[str, Any], name: str, sharpness: float) -> None:
    d, heads, size, rank = (text[k] for k in ("hidden_size", "num_attention_heads", "head_dim", "q_lora_rank"))
    put.linear(f"{name}.wq_a", rank, d)
    put.norm(f"{name}.q_norm", rank)
    put.linear(f"{name}.wq_b", heads * size, rank, gain=sharpness)
    put.linear(f"{name}.wkv", size, d)
    put.norm(f"{name}.kv_norm", size)
    put.normal(f"{name}.attn_sink", heads)
    put.linear(f"{name}.wo_a", text["o_groups"] * text["o_lora_rank"], heads * size // text["o_groups"], gain=1.5)
    put.linear(f"{name}.wo_b", d, text["o_groups"] * text["o_lora_rank"], gain=1.5)


def _block(put: _Draws, text: dict[str, Any], name: str, experts: int, sharpness: float) -> None:
    d, n, inter = text["hidden_size"], text["hc_mult"], text["moe_intermediate_size"]
    _attention(put, text, f"{name}.attn", sharpness)
    put.norm(f"{name}.attn_norm", d)
    put.norm(f"{name}.ffn_norm", d)
    for site in ("attn", "ffn"):
        put.normal(f"{name}.hc_{site}_fn", (2 + n) * n, n * d, std=1 / math.sqrt(n * d))
        put.normal(f"{name}.hc_{site}_base", (2 + n) * n)
        put.normal(f"{name}.hc_{site}_scale", 3, mean=1.0, std=0.2)
    put.linear(f"{name}.ffn.gate", experts, d)
    put.normal(f"{name}.ffn.gate.bias", experts, std=0.5)
    for part in [f"experts.{e}" for e in range(experts)] + ["shared_experts"]:
        # Gains above one make the clamps act on some values.
        put.linear(f"{name}.ffn.{part}.w1", inter, d, gain=4.0)
        put.linear(f"{name}.ffn.{part}.w3", inter, d, gain=4.0)
        put.linear(f"{name}.ffn.{part}.w2", d, inter, gain=0.3)


def _global(put: _Draws, text: dict[str, Any], layer: int) -> None:
    """The compressor and the indexer of a layer that has them."""
    name, size, dim = f"layers.{layer}.attn", text["head_dim"], text["index_head_dim"]
    if layer in text["kv_source_layer_ids"]:
        put.linear(f"{name}.compressor.wkv", size, text["hidden_size"])
        put.norm(f"{name}.compressor.norm", size)
        if text["compress_ratios"][layer] > 1:
            put.linear(f"{name}.compressor.wgate", size, text["hidden_size"], gain=2.0)
        put.linear(f"{name}.indexer.wk", dim, size)
        put.norm(f"{name}.indexer.k_norm", dim)
    if layer in text["index_source_layer_ids"]:
        heads, rank = text["index_n_heads"], text["q_lora_rank"]
        put.linear(f"{name}.indexer.weights_proj", heads, text["hidden_size"])
        put.linear(f"{name}.indexer.wq_b", heads * dim, rank)
        # The second half of the heads negates the first: one of each pair is positive, so no score is exactly zero
        # and selections have no ties.
        half = put.tensors[f"{name}.indexer.wq_b.weight"][: heads // 2 * dim]
        put.tensors[f"{name}.indexer.wq_b.weight"] = torch.cat([half, -half])


def _vision(put: _Draws, config: dict[str, Any]) -> None:
    cfg, d = config["vision_config"], config["text_config"]["hidden_size"]
    size, inter = cfg["hidden_size"], cfg["intermediate_size"]
    put.affine("vision.patch_embed.proj", size, 3 * cfg["patch_size"] ** 2)
    for layer in range(cfg["num_hidden_layers"]):
        name = f"vision.blocks.{layer}"
        put.norm(f"{name}.norm1", size)
        put.affine(f"{name}.attn.wqkv", 3 * size, size)
        put.affine(f"{name}.attn.wo", size, size)
        put.norm(f"{name}.norm2", size)
        put.linear(f"{name}.mlp.w1", 2 * inter, size)
        put.linear(f"{name}.mlp.w2", size, inter)
    put.norm("vision.norm", size)
    put.affine("aligner.w1", d, size * cfg["downsample_ratio"] ** 2)
    put.affine("aligner.w2", d, d)
    for name in ("image_start", "image_newline", "image_end"):
        put.normal(name, d)


def _draft(put: _Draws, text: dict[str, Any], sharpness: float) -> None:
    d, stages, rank = text["hidden_size"], text["num_nextn_predict_layers"], text["dspark_markov_rank"]
    for stage in range(stages):
        _block(put, text, f"mtp.{stage}", text["dspark_n_routed_experts"], sharpness)
    if stages:
        last = f"mtp.{stages - 1}"
        put.linear("mtp.0.main_proj", d, d * len(text["dspark_target_layer_ids"]))
        put.norm("mtp.0.main_norm", d)
        put.norm(f"{last}.norm", d)
        put.normal(f"{last}.markov_head.embed.weight", text["vocab_size"], rank)
        put.linear(f"{last}.markov_head.head", text["vocab_size"], rank)
        put.linear(f"{last}.confidence_head.proj", 1, d + rank)


def random_weights(config: dict[str, Any], seed: int, sharpness: float = 3.0) -> dict[str, Tensor]:
    """Float64 weights under the released names.

    Args:
        config: A config.json dictionary.
        seed: Of the draws.
        sharpness: The spread of the attention scores; about 3 picks rows, well below 1 averages them.
    """
    text = config["text_config"]
    put = _Draws(torch.Generator().manual_seed(seed), {})
    d, n, size = text["hidden_size"], text["hc_mult"], text["engram_head_dim"]
    put.normal("embed.weight", text["vocab_size"], d)
    put.norm("norm", d)
    put.linear("head", text["vocab_size"], d)
    for layer in range(text["num_hidden_layers"]):
        name = f"layers.{layer}"
        _block(put, text, name, text["n_routed_experts"], sharpness)
        put.normal(f"{name}.ffn.gate.bias_vl", text["n_routed_experts"], std=0.5)
        _global(put, text, layer)
    orders = text["engram_max_ngram_size"] - 1
    for layer, rows in zip(text["engram_layer_ids"], text["engram_num_embeddings"], strict=True):
        name = f"layers.{layer}.engram"
        put.normal(f"{name}.embed.weight", rows, size)
        put.linear(f"{name}.wkv", (n + 1) * d, orders * text["engram_n_heads"] * size)
        put.normal(f"{name}.q_weight", n, d, mean=1.0, std=0.3)
        put.normal(f"{name}.k_weight", n, d, mean=1.0, std=0.3)
    _draft(put, text, sharpness)
    _vision(put, config)
    return put.tensors


@dataclass(frozen=True)
class Prompt:
    """What `oracle.forward` takes: ids, image embeddings by position, token id -> compressed id."""

    token_ids: list[int]
    image_rows: dict[int, Tensor]
    token_map: list[int]


def random_prompt(config: dict[str, Any], seed: int, length: int, images: tuple[range, ...] = ()) -> Prompt:
    """Random text with image spans at the given positions, and a random many-to-one token map."""
    text = config["text_config"]
    generator = torch.Generator().manual_seed(seed)

    def integers(high: int, count: int) -> list[int]:
        return [int(v) for v in torch.randint(0, high, (count,), generator=generator)]

    ids = integers(90, length)
    rows = {}
    for position in (p for span in images for p in span):
        ids[position] = config["image_token_id"]
        rows[position] = torch.randn(text["hidden_size"], dtype=torch.float64, generator=generator)
    return Prompt(ids, rows, integers(text["engram_compressed_vocab_size"], text["vocab_size"]))
