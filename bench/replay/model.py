"""The model that is measured: the released lists of layers at small widths, with untrained weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

import torch

from epd_workers.reference.model.config import RELEASED, SHIPPED, Config
from epd_workers.reference.model.engram_hash import table_rows
from epd_workers.reference.model.loaded import LoadedModel, engram_ids
from epd_workers.reference.model.tokenizer import Tokenizer

SEED: Final = 0
PAGE_SIZE: Final = 64
CONTEXT: Final = 16384
"""Most tokens: from here on the candidate blocks would leave some out."""


def config() -> Config:
    """40 layers: which ones own global entries, select, look up n-grams, and at which ratio, is as released.

    So are the window and the number of candidate blocks, which takes in everything up to `CONTEXT` tokens. All widths
    are small, and there are no draft stages, which a prefill does not run.
    """
    released, tokenizer = RELEASED.text, Tokenizer.default()
    layers = released.num_hidden_layers
    text = replace(
        SHIPPED.text,
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        num_hidden_layers=layers,
        num_nextn_predict_layers=0,
        max_position_embeddings=CONTEXT,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=64,
        o_lora_rank=32,
        o_groups=1,
        sliding_window=released.sliding_window,
        compress_ratios=released.compress_ratios[:layers],
        kv_source_layer_ids=released.kv_source_layer_ids,
        index_source_layer_ids=released.index_source_layer_ids,
        index_n_heads=2,
        candidate_source_layer_id=released.candidate_source_layer_id,
        candidate_topk_blocks=released.candidate_topk_blocks,
        candidate_block_size=released.candidate_block_size,
        n_routed_experts=4,
        moe_intermediate_size=64,
        engram_layer_ids=released.engram_layer_ids,
        engram_compressed_vocab_size=len(set(engram_ids(tokenizer))),
    )
    return replace(SHIPPED, text=replace(text, engram_num_embeddings=table_rows(text)))


def load() -> LoadedModel:
    """The model in float32."""
    return LoadedModel.random(config(), SEED, torch.float32)


def lengths(total: int, requests: int) -> list[int]:
    """Lengths of a ragged batch that sum to `total`: in the proportion 1 : 2 : ... : `requests`."""
    shares = accumulate(range(1, requests + 1))
    whole = requests * (requests + 1) // 2
    return [end - start for start, end in pairwise([0, *(total * share // whole for share in shares)])]


def prompts(model: LoadedModel, sizes: list[int]) -> list[list[int]]:
    """Random token ids of the given lengths, no images, the same ones for the same lengths."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randint(0, model.image_id, (sum(sizes),), generator=generator)
    return [part.tolist() for part in drawn.split(sizes)]
