"""The sizes that decide which kernels serving will hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Sizes:
    """Of a model and its caches.

    Attributes:
        hidden: Columns of a row.
        streams: Residual streams (mHC).
        heads: Query heads.
        head_dim: Values of a latent.
        window: Rows of the sliding window.
        index_heads: Heads of the indexer.
        index_dim: Values of an index key.
        topk: Global entries that a row attends to.
        block: Entries in a candidate block.
        blocks: Candidate blocks kept.
        page_size: Tokens in a page.
    """

    hidden: int
    streams: int
    heads: int
    head_dim: int
    window: int
    index_heads: int
    index_dim: int
    topk: int
    block: int
    blocks: int
    page_size: int


RELEASED: Final = Sizes(
    hidden=5120,
    streams=4,
    heads=64,
    head_dim=512,
    window=128,
    index_heads=32,
    index_dim=128,
    topk=512,
    block=8,
    blocks=2048,
    page_size=256,
)
"""DeepSeek-V4.1-Flash, config.json, revision dba1be0a; page size of SGLang 0.5.23."""
