"""Rows by index, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.launching import Launch
from epd_kernels.row_gather.kernel import gather_rows_kernel
from epd_kernels.row_gather.tiles import TILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from epd_kernels.sizes import Sizes

_WORDS: Final = (torch.int32, torch.int16, torch.uint8)


def gather_rows(sources: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """Take the same rows of every source, bit for bit: `reference.gather_rows` in one launch a source.

    Raises:
        ValueError: A source's rows are not dense.
    """
    outputs, launches = launches_gather_rows(sources, rows)
    for launch in launches:
        launch.run()
    return outputs


def launches_gather_rows(sources: Sequence[Tensor], rows: Tensor) -> tuple[list[Tensor], list[Launch]]:
    """The results, not yet filled, and what fills them.

    Raises:
        ValueError: A source's rows are not dense.
    """
    outputs = [torch.empty(len(rows), *source.shape[1:], dtype=source.dtype, device=rows.device) for source in sources]
    dense = rows.contiguous()
    return outputs, [_launch(source, dense, output) for source, output in zip(sources, outputs, strict=True)]


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: hidden rows, residual streams, their weights, flags, what a row selected."""
    wide = (sizes.streams, sizes.hidden)
    kept = {
        "hidden bf16": torch.zeros(2, sizes.hidden, dtype=torch.bfloat16, device=device),
        "streams bf16": torch.zeros(2, *wide, dtype=torch.bfloat16, device=device),
        "streams f32": torch.zeros(2, *wide, dtype=torch.float32, device=device),
        "weights f32": torch.zeros(2, sizes.streams, dtype=torch.float32, device=device),
        "flags": torch.zeros(2, dtype=torch.bool, device=device),
        "entries": torch.zeros(2, sizes.topk, dtype=torch.int32, device=device),
        "candidates": torch.zeros(2, sizes.blocks, dtype=torch.int32, device=device),
    }
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    _, launches = launches_gather_rows(list(kept.values()), rows)
    yield from zip(kept, launches, strict=True)


def _launch(source: Tensor, rows: Tensor, output: Tensor) -> Launch:
    word = _word(source)
    words, copied = _as_words(source, word), _as_words(output, word)
    width = copied.shape[1]
    tile = TILES[current()]
    count, columns = tile.shape(width)
    return Launch(
        kernel=gather_rows_kernel,
        grid=(triton.cdiv(len(rows), count), triton.cdiv(width, columns)),
        arguments=(words, rows, copied, words.stride(0), len(rows)),
        options={"WIDTH": width, "ROWS": count, "WORDS": columns, "num_warps": tile.warps},
        writes=("output",),
    )


def _word(source: Tensor) -> torch.dtype:
    """The widest word that rows of `source` are made of and begin at a multiple of."""
    size = source.element_size()
    sizes = (source[:1].numel() * size, source.stride(0) * size, source.data_ptr())
    return next(word for word in _WORDS if not any(value % word.itemsize for value in sizes))


def _as_words(tensor: Tensor, word: torch.dtype) -> Tensor:
    if not tensor[:1].is_contiguous():
        raise ValueError(f"a source has strides {tensor.stride()}: rows may lie apart, but must be dense")
    flat = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    return flat.view(word)
