"""Keys and values of one sequence."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from epd_workers.reference.model.interface import LayoutMismatch


class PagedCache:
    """One growing buffer whose slices of `page_size` tokens are the pages.

    The buffer is float64 so that attention needs no conversion at each step, but holds only values that float32 can
    hold: a page is float32 [layers, 2 (key, value), heads, page_size, head_dim] in little-endian order.
    """

    def __init__(self, layers: int, heads: int, head_dim: int, page_size: int) -> None:
        self.page_size = page_size
        self.page_bytes = layers * 2 * heads * page_size * head_dim * 4
        self.length = 0
        self._buffer = torch.zeros(layers, 2, heads, 0, head_dim, dtype=torch.float64)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put n tokens behind the `length` present ones; `advance` makes them count once all layers are stored.

        Args:
            layer: Which layer's.
            keys: [heads, n, head_dim] float64.
            values: Same.

        Returns:
            All keys and all values, [heads, length + n, head_dim] float64.
        """
        end = self.length + keys.shape[1]
        self._reserve(end)
        for kind, rows in enumerate((keys, values)):
            self._buffer[layer, kind, :, self.length : end] = rows.float()
        return self._buffer[layer, 0, :, :end], self._buffer[layer, 1, :, :end]

    def advance(self, tokens: int) -> None:
        """Count the tokens stored last."""
        self.length += tokens

    def read_page(self, index: int) -> bytes:
        """See `interface.Cache`."""
        start = index * self.page_size
        if not 0 <= start < self.length:
            raise IndexError(f"page {index} holds no token: the sequence has {self.length}")
        end = min(start + self.page_size, self.length)
        page = np.zeros((*self._buffer.shape[:3], self.page_size, self._buffer.shape[4]), dtype="<f4")
        page[:, :, :, : end - start] = self._buffer[:, :, :, start:end].numpy()
        return page.tobytes()

    def write_page(self, index: int, data: bytes, tokens: int) -> None:
        """See `interface.Cache`."""
        if len(data) != self.page_bytes:
            raise LayoutMismatch(f"page {index} has {len(data)} bytes: this model's pages have {self.page_bytes}")
        if index * self.page_size != self.length or not 1 <= tokens <= self.page_size:
            raise IndexError(f"page {index} with {tokens} tokens cannot follow {self.length} tokens")
        page = np.frombuffer(data, dtype="<f4").reshape(*self._buffer.shape[:3], self.page_size, -1)
        end = self.length + tokens
        self._reserve(end)
        self._buffer[:, :, :, self.length : end] = torch.from_numpy(page[:, :, :, :tokens].astype(np.float64))
        self.length = end

    def _reserve(self, tokens: int) -> None:
        capacity = self._buffer.shape[3]
        if tokens <= capacity:
            return
        pages = -(-max(tokens, capacity * 3 // 2) // self.page_size)
        grown = torch.zeros(*self._buffer.shape[:3], pages * self.page_size, self._buffer.shape[4], dtype=torch.float64)
        grown[:, :, :, : self.length] = self._buffer[:, :, :, : self.length]
        self._buffer = grown
