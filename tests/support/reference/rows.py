"""A model of three caches, and rows that tell which token of which prompt wrote them."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from epd_kernels.formats.reference import pack, unpack
from epd_kernels.window_slots.reference import entry_slots
from epd_workers.reference.cache.geometry import CacheType, Geometry
from epd_workers.reference.model.config import SHIPPED, Config

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from torch import Tensor

    from epd_workers.reference.cache.paged_pool import KvPool
    from epd_workers.reference.cache.sequence import Sequence

PAIRS, SINGLES = 1, 2  # the owners of ratio 2 and 1
LAYERS = 3
WINDOW = 8
DIM = 32


def config(window: int = WINDOW) -> Config:
    text = replace(
        SHIPPED.text,
        num_hidden_layers=LAYERS,
        head_dim=DIM,
        index_head_dim=DIM,
        sliding_window=window,
        compress_ratios=(0, 2, 1, 0),
        kv_source_layer_ids=(PAIRS, SINGLES),
        index_source_layer_ids=(PAIRS, SINGLES),
        candidate_source_layer_id=SINGLES,
    )
    return replace(SHIPPED, text=text)


def geometry(page_size: int = 4, cache_type: CacheType = "bf16", window: int = WINDOW) -> Geometry:
    return Geometry.of(config(window), page_size, cache_type, "weights")


def stamps(key: Values[int], ends: Values[int], kind: int) -> Tensor:
    """[n, DIM]: rows that name the first `end` tokens of the key; bfloat16 holds them exactly."""
    digests = [zlib.crc32(repr((kind, *key[:end])).encode()).to_bytes(4, "little") for end in ends]
    rows = torch.zeros(len(digests), DIM, dtype=torch.float64)
    rows[:, :4] = torch.tensor([list(digest) for digest in digests], dtype=torch.float64).view(-1, 4)
    return rows


def slots_of(table: Tensor, places: Tensor, size: int) -> Tensor:
    """Slots of places [n] in pages [P] of this size, -1 where no page is."""
    return entry_slots(places[None].int(), torch.tensor([0]), table[None], page_size=size)[0]


def write_rows(sequence: Sequence, key: Values[int], start: int, stop: int, *, entries: bool = True) -> None:
    """What a model does with rows [start, stop): windows of all layers, and the entries that become complete."""
    pool = sequence.pool
    positions = torch.arange(start, stop)
    for layer in range(LAYERS):
        rows = stamps(key, range(start + 1, stop + 1), layer)
        pack(rows, pool.window(layer), slots_of(sequence.window_table, positions, pool.geometry.page_size))
    if not entries:
        return
    for layer, ratio in ((SINGLES, 1), (PAIRS, 2)):
        done = range(start // ratio, stop // ratio)
        slots = slots_of(sequence.page_table, torch.tensor(list(done)), pool.geometry.page_size // ratio)
        rows = stamps(key, [(entry + 1) * ratio for entry in done], 10 + layer)
        pack(rows, pool.main(layer), slots)
        pack(rows + 1, pool.index(layer), slots)


def check_entries(pool: KvPool, key: Values[int], pages: Values[int], length: int) -> None:
    """The pages hold this key's entries."""
    size = pool.geometry.page_size
    for layer, ratio in ((SINGLES, 1), (PAIRS, 2)):
        count = length // ratio
        full = [pages[entry * ratio // size] * size + entry * ratio % size for entry in range(count)]
        slots = torch.tensor(full, dtype=torch.int64) // ratio
        expected = stamps(key, [(entry + 1) * ratio for entry in range(count)], 10 + layer)
        assert torch.equal(unpack(pool.main(layer), slots, torch.float64), expected)
        assert torch.equal(unpack(pool.index(layer), slots, torch.float64), expected + 1)


def check_windows(pool: KvPool, key: Values[int], window_pages: Values[int], start: int, stop: int) -> None:
    """The window pages hold this key's rows [start, stop)."""
    size = pool.geometry.page_size
    slots = torch.tensor([window_pages[p // size] * size + p % size for p in range(start, stop)], dtype=torch.int64)
    for layer in range(LAYERS):
        expected = stamps(key, range(start + 1, stop + 1), layer)
        assert torch.equal(unpack(pool.window(layer), slots, torch.float64), expected)
