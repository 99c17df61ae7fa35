"""The bytes of all pages and who may have which."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.formats.reference import Codec
    from epd_workers.reference.cache.geometry import Geometry


class OutOfPages(RuntimeError):
    """More pages were asked for than are free; evict from the prefix tree first."""


class PageAllocator:
    """Hands out page numbers, the lowest free one first."""

    def __init__(self, name: str, count: int) -> None:
        """Make pages 0 to `count` - 1 free; `name` is for messages."""
        self.name = name
        self.count = count
        self.high_water = 0
        self._returned: list[int] = []
        self._used: set[int] = set()

    @property
    def free_count(self) -> int:
        """Pages that nobody holds."""
        return self.count - len(self._used)

    def require(self, count: int) -> None:
        """Check that `count` pages are free.

        Raises:
            OutOfPages: Fewer are.
        """
        if count > self.free_count:
            raise OutOfPages(f"{count} {self.name} pages are needed and {self.free_count} of {self.count} are free")

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, or none.

        Raises:
            OutOfPages: Fewer are free.
        """
        self.require(count)
        taken = []
        for _ in range(count):
            if self._returned:
                taken.append(heapq.heappop(self._returned))
            else:
                taken.append(self.high_water)
                self.high_water += 1
        self._used.update(taken)
        return taken

    def free(self, page: int) -> None:
        """Give a page back.

        Raises:
            ValueError: Nobody holds it.
        """
        if page not in self._used:
            raise ValueError(f"{self.name} page {page} is not in use: it was freed twice or never allocated")
        self._used.remove(page)
        heapq.heappush(self._returned, page)


class _Store:
    """Rows of one width: [slots, width] uint8; a slot of -1 reads as zeros and swallows what is written."""

    def __init__(self, slots: int, dim: int, codec: Codec) -> None:
        self.rows = _zeros(slots, codec.width(dim))
        self._dim = dim
        self._codec = codec

    def write(self, slots: Tensor, values: Tensor) -> None:
        slots, values = slots.reshape(-1), values.reshape(-1, self._dim)
        kept = slots >= 0
        if not bool(kept.all()):
            slots, values = slots[kept], values[kept]
        self.rows[slots] = self._codec.pack(values)

    def read(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        absent = slots < 0
        rows = self.rows.index_select(0, slots.clamp(min=0).reshape(-1)).view(*slots.shape, self.rows.shape[1])
        return self._codec.unpack(rows, self._dim, dtype).masked_fill(absent[..., None], 0.0)


class KvPool:
    """Storage for the pages of all sequences.

    Token p of a sequence has full slot `page_table[p // page_size] * page_size + p % page_size`. Its owner layers'
    entries lie at that slot divided by their ratio. Window rows of all layers of a page lie together:
    [window_pages, layers, page_size, bytes].
    """

    def __init__(self, geometry: Geometry, pages: int, window_pages: int) -> None:
        self.geometry = geometry
        self.pages = PageAllocator("global", pages)
        self.window_pages = PageAllocator("window", window_pages)
        self._main: dict[int, _Store] = {}
        self._index: dict[int, _Store] = {}
        for owner in geometry.owners:
            entries = pages * geometry.page_size // owner.ratio
            self._main[owner.layer] = _Store(entries, geometry.head_dim, geometry.main_codec)
            self._index[owner.layer] = _Store(entries, geometry.index_dim, geometry.index_codec)
        rows = window_pages * geometry.layers * geometry.page_size
        self._windows = _Store(rows, geometry.head_dim, geometry.window_codec)

    def write_main(self, layer: int, slots: Tensor, values: Tensor) -> None:
        """Encode main entries of an owner layer.

        Args:
            layer: The owner.
            slots: [...] int64 entry slots; -1 drops the value.
            values: [..., head_dim].
        """
        self._main[layer].write(slots, values)

    def read_main(self, layer: int, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """Main entries [..., head_dim] at entry slots [...] int64; zeros where the slot is -1."""
        return self._main[layer].read(slots, dtype)

    def write_index(self, layer: int, slots: Tensor, values: Tensor) -> None:
        """Encode index keys [..., index_dim] of an owner layer at entry slots [...]; -1 drops the value."""
        self._index[layer].write(slots, values)

    def read_index(self, layer: int, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """Index keys [..., index_dim] at entry slots [...] int64; zeros where the slot is -1."""
        return self._index[layer].read(slots, dtype)

    def write_window(self, layer: int, slots: Tensor, values: Tensor) -> None:
        """Encode window rows [..., head_dim] of a layer at window slots [...]; -1 drops the row."""
        self._windows.write(self._window_rows(layer, slots), values)

    def read_window(self, layer: int, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """Window rows [..., head_dim] of a layer at window slots [...] int64; zeros where the slot is -1."""
        return self._windows.read(self._window_rows(layer, slots), dtype)

    def allocate_windows(self, count: int) -> list[int]:
        """Take window pages, zeroed: what a replay leaves out must read the same whoever had the page before.

        Raises:
            OutOfPages: Fewer are free.
        """
        fresh = self.window_pages.high_water
        taken = self.window_pages.allocate(count)
        for page in taken:
            if page < fresh:
                self.window_page(page).zero_()
        return taken

    def main_page(self, layer: int, page: int) -> Tensor:
        """Bytes of an owner's main entries in a page: [page_size / ratio, bytes] uint8, a view."""
        return self._entries(self._main[layer], page)

    def index_page(self, layer: int, page: int) -> Tensor:
        """Bytes of an owner's index keys in a page: [page_size / ratio, bytes] uint8, a view."""
        return self._entries(self._index[layer], page)

    def window_page(self, page: int) -> Tensor:
        """Bytes of a window page: [layers, page_size, bytes] uint8, a view."""
        geometry = self.geometry
        count = geometry.layers * geometry.page_size
        rows = self._windows.rows[page * count : (page + 1) * count]
        return rows.view(geometry.layers, geometry.page_size, geometry.window_bytes)

    def _entries(self, store: _Store, page: int) -> Tensor:
        count = len(store.rows) // self.pages.count
        return store.rows[page * count : (page + 1) * count]

    def _window_rows(self, layer: int, slots: Tensor) -> Tensor:
        geometry = self.geometry
        page, offset = slots.div(geometry.page_size, rounding_mode="floor"), slots % geometry.page_size
        return (page * geometry.layers + layer) * geometry.page_size + offset  # -1 stays negative on every layer


def _zeros(rows: int, width: int) -> Tensor:
    """Zeros that take memory only once touched, which `torch.zeros` does at once."""
    return torch.from_numpy(np.zeros((rows, width), dtype=np.uint8))
