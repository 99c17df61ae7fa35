"""Rows of one byte format, in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.formats.reference import Codec


@dataclass(frozen=True)
class Paged:
    """A pool of rows; row s lies in page s // page_size.

    Two layouts exist. Planar: a page holds the codes of all its rows, then the scales of all of them, then padding
    (SGLang 0.5.23 `V41_FP4`, `V41`). Row by row: each row's codes are followed by its scales (`V41_FP4_NEW`,
    `V41_NEW`, and the Reference engine).

    Attributes:
        data: [pages, bytes] uint8, the last stride 1; pages may lie apart (one layer of a pool of all layers).
        page_size: Rows in a page.
        dim: Values in a row.
        codec: Their format.
        planar: Which layout.
    """

    data: Tensor
    page_size: int
    dim: int
    codec: Codec
    planar: bool = False

    def __post_init__(self) -> None:
        """Check the shape once, so that no kernel reads past a page.

        Raises:
            ValueError: Names every fault.
        """
        faults = []
        least = self.page_size * self.codec.width(self.dim)
        if self.data.dtype != torch.uint8:
            faults.append(f"data is {self.data.dtype}: pages are bytes (torch.uint8)")
        if self.data.dim() != 2 or (self.data.shape[1] > 1 and self.data.stride(1) != 1):
            faults.append(f"data is {tuple(self.data.shape)} with strides {self.data.stride()}: must be [pages, bytes]")
        elif self.data.shape[1] < least:
            faults.append(f"pages are {self.data.shape[1]} bytes: {self.page_size} rows take {least}")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def slots(self) -> int:
        """Rows in all."""
        return len(self.data) * self.page_size

    @property
    def code_bytes(self) -> int:
        """Bytes of a row's codes."""
        return self.codec.code_bytes(self.dim)

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row's scales."""
        return self.codec.width(self.dim) - self.code_bytes

    @property
    def page_stride(self) -> int:
        """Bytes from a page to the next."""
        return self.data.stride(0)

    @property
    def code_stride(self) -> int:
        """Bytes from a row's codes to those of the next row of the page."""
        return self.code_bytes if self.planar else self.code_bytes + self.scale_bytes

    @property
    def scale_stride(self) -> int:
        """Bytes from a row's scales to those of the next row of the page."""
        return self.scale_bytes if self.planar else self.code_bytes + self.scale_bytes

    @property
    def scale_start(self) -> int:
        """Bytes from a page's begin to its first row's scales."""
        return self.page_size * self.code_bytes if self.planar else self.code_bytes
