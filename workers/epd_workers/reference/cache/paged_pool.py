"""The bytes of all pages, and their allocation."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
import torch

from epd_kernels.paged import Paged

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.formats.reference import Codec
    from epd_workers.reference.cache.geometry import Geometry


class OutOfPages(RuntimeError):
    """More pages were asked for than are free; evict from the prefix tree first."""


class PageAllocator:
    """Hands out page numbers, the lowest free one first.

    Args:
        name: For messages.
        count: Pages; numbers 0 to `count` - 1 are free at the start.
    """

    def __init__(self, name: str, count: int) -> None:
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


class KvPool:
    """Storage for the pages of all sequences.

    Token p of a sequence has the window slot `window_pages[p // page_size] * page_size + p % page_size` in every
    layer; the window rows of all layers of a page lie together: [window_pages, layers, page_size, bytes]. Entry j of
    an owner of ratio r, which stands for the tokens from j * r on, has the slot
    `pages[j // n] * n + j % n`, n = page_size / r.
    """

    def __init__(self, geometry: Geometry, pages: int, window_pages: int) -> None:
        self.geometry = geometry
        self.pages = PageAllocator("global", pages)
        self.window_pages = PageAllocator("window", window_pages)
        self._main: dict[int, Paged] = {}
        self._index: dict[int, Paged] = {}
        for owner in geometry.owners:
            entries = geometry.page_size // owner.ratio
            self._main[owner.layer] = _paged(pages, entries, geometry.head_dim, geometry.main_codec)
            self._index[owner.layer] = _paged(pages, entries, geometry.index_dim, geometry.index_codec)
        self._windows = _zeros(window_pages, geometry.window_page_bytes)
        layers = self._windows.view(window_pages, geometry.layers, geometry.page_size * geometry.window_bytes).unbind(1)
        size, dim, codec = geometry.page_size, geometry.head_dim, geometry.window_codec
        self._window = [Paged(layer, size, dim, codec) for layer in layers]

    def main(self, layer: int) -> Paged:
        """Main entries of an owner layer."""
        return self._main[layer]

    def index(self, layer: int) -> Paged:
        """Index keys of an owner layer."""
        return self._index[layer]

    def window(self, layer: int) -> Paged:
        """Window rows of a layer; its pages lie apart."""
        return self._window[layer]

    def allocate_windows(self, count: int) -> list[int]:
        """Take window pages, zeroed: what a replay leaves out must read the same, no matter who had the page before.

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
        return self._main[layer].data[page].view(-1, self.geometry.main_bytes)

    def index_page(self, layer: int, page: int) -> Tensor:
        """Bytes of an owner's index keys in a page: [page_size / ratio, bytes] uint8, a view."""
        return self._index[layer].data[page].view(-1, self.geometry.index_bytes)

    def window_page(self, page: int) -> Tensor:
        """Bytes of a window page: [layers, page_size, bytes] uint8, a view."""
        geometry = self.geometry
        return self._windows[page].view(geometry.layers, geometry.page_size, geometry.window_bytes)


def _paged(pages: int, size: int, dim: int, codec: Codec) -> Paged:
    return Paged(_zeros(pages, size * codec.width(dim)), size, dim, codec)


def _zeros(rows: int, width: int) -> Tensor:
    """Zeros that take memory only once touched, which `torch.zeros` does at once."""
    return torch.from_numpy(np.zeros((rows, width), dtype=np.uint8))
