"""A checkpoint small enough to start dozens of servers on: untrained, as what is said does not matter here."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from epd_workers.reference.model import checkpoint
from epd_workers.reference.model.config import SHIPPED, Config
from epd_workers.reference.model.loaded import PACKAGED, LoadedModel, engram_ids
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.model.transformer import Transformer, initialise

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 8
CONTEXT = 8192


def config() -> Config:
    """Four layers: windows and Engram, pairs, the decoder half's source, one that reuses it; a picture is few rows."""
    tokenizer = Tokenizer.default()
    text = replace(
        SHIPPED.text,
        vocab_size=tokenizer.vocab_size,
        engram_compressed_vocab_size=len(set(engram_ids(tokenizer))),
        hidden_size=32,
        num_hidden_layers=4,
        num_nextn_predict_layers=0,
        max_position_embeddings=CONTEXT,
        compress_ratios=(0, 2, 1, 1),
        kv_source_layer_ids=(1, 2),
        index_source_layer_ids=(1, 2),
        candidate_source_layer_id=2,
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


def write(directory: Path, seed: int = 0) -> Path:
    """A checkpoint directory whose answers depend on their prompts: its weights are larger than a fresh model's."""
    made = config()
    weights = initialise(Transformer(made), seed)
    with torch.no_grad():
        for name, weight in weights.named_parameters():
            if name.startswith("layers.") and weight.dim() > 1:
                weight.mul_(3.0)
    checkpoint.save(weights, made, directory)
    shutil.copy(PACKAGED / "tokenizer.json", directory)
    return directory


@lru_cache(maxsize=8)
def load(directory: Path, context_length: int) -> LoadedModel:
    """The model of a directory, once for all servers of this process."""
    return LoadedModel.load(directory, context_length)
