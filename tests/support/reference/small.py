"""A model small enough for hundreds of answers and dozens of servers; untrained, as what is said does not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from epd_workers.reference.model.config import SHIPPED, Config
from epd_workers.reference.model.loaded import engram_ids
from epd_workers.reference.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from epd_workers.reference.model.transformer import Transformer

WINDOW = 8
LAYERS, SPLIT = 4, 2
HIDDEN = 32


def config(context: int) -> Config:
    """Window and Engram; pairs; the decoder half's source; a layer that reuses it. A picture is few rows."""
    tokenizer = Tokenizer.default()
    text = replace(
        SHIPPED.text,
        vocab_size=tokenizer.vocab_size,
        engram_compressed_vocab_size=len(set(engram_ids(tokenizer))),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_nextn_predict_layers=0,
        max_position_embeddings=context,
        compress_ratios=(0, 2, 1, 1),
        kv_source_layer_ids=(1, SPLIT),
        index_source_layer_ids=(1, SPLIT),
        candidate_source_layer_id=SPLIT,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=8,
        q_lora_rank=32,
        o_lora_rank=32,
        o_groups=1,
        sliding_window=WINDOW,
        index_n_heads=2,
        index_topk=8,
        candidate_topk_blocks=4,
        candidate_block_size=4,
        n_routed_experts=3,
        moe_intermediate_size=32,
        hc_mult=2,
        hc_sinkhorn_iters=2,
        engram_layer_ids=(0,),
    )
    vision = replace(
        SHIPPED.vision,
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=32,
        max_image_tokens=24,
        min_pixels=42 * 42,
    )
    return replace(SHIPPED, text=text, vision=vision)


@torch.no_grad()
def sharpen(weights: Transformer) -> Transformer:
    """Weights larger than a fresh model's, so that every row matters to the logits."""
    for name, weight in weights.named_parameters():
        if name.startswith("layers.") and weight.dim() > 1:
            weight.mul_(3.0)
    return weights
