"""The bytes that go from prefill to decode.

Per page of tokens the global entries of the owners of ratio 1, then of ratio 2, each owner's main entries before its
index keys; window pages only for the last rows; of an odd length the pending pairs. Same content as SGLang 0.5.23,
disaggregation for DeepSeek-V4.1: global pages by full-token page, window pages covering
[page_floor(max(decode_prefix, S - window)), S), pending pair for odd S. The receiver makes room first:
`sequence.reserve(S, windows_from=...)`, `sequence.advance(...)`, then writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from epd_workers.reference.model.interface import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_workers.reference.cache.sequence import Sequence


def window_range(length: int, decode_prefix: int, page_size: int, window: int) -> range:
    """Places of the window pages that a decode needs.

    Args:
        length: Tokens of the sequence.
        decode_prefix: Tokens that the decode has already, windows included.
        page_size: Tokens in a page.
        window: Rows of the window.
    """
    return range(max(decode_prefix, length - window, 0) // page_size, -(-length // page_size))


def read_page(sequence: Sequence, index: int) -> bytes:
    """Global entries of a page; those of tokens that the sequence does not have are zero.

    Raises:
        IndexError: The page holds no token.
    """
    tokens = _tokens(sequence, index)
    parts = []
    for ratio, rows in _parts(sequence, index):
        part = torch.zeros_like(rows)
        part[: tokens // ratio] = rows[: tokens // ratio]
        parts.append(part.reshape(-1))
    return torch.cat(parts).numpy().tobytes()


def write_page(sequence: Sequence, index: int, data: bytes) -> None:
    """Take over the global entries of a page.

    Raises:
        LayoutMismatch: `data` is not as long as this model's pages.
        IndexError: The page holds no token.
        ValueError: The page belongs to a prefix tree.
    """
    _tokens(sequence, index)
    if index < sequence.borrowed:
        raise ValueError(f"page {index} is shared with other requests: the first {sequence.borrowed} are not written")
    expected = sequence.pool.geometry.page_bytes
    if len(data) != expected:
        raise LayoutMismatch(f"page {index} has {len(data)} bytes: this model's pages have {expected}")
    source = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    offset = 0
    for _, rows in _parts(sequence, index):
        rows.copy_(source[offset : offset + rows.numel()].view_as(rows))
        offset += rows.numel()


def read_window_page(sequence: Sequence, index: int) -> bytes:
    """Window rows of a page, all layers; those of tokens that the sequence does not have are zero.

    Raises:
        IndexError: The page holds no token, or its windows are gone.
    """
    rows = _window(sequence, index)
    page = torch.zeros_like(rows)
    tokens = _tokens(sequence, index)
    page[:, :tokens] = rows[:, :tokens]
    return page.numpy().tobytes()


def write_window_page(sequence: Sequence, index: int, data: bytes) -> None:
    """Take over the window rows of a page.

    Raises:
        LayoutMismatch: `data` is not as long as this model's window pages.
        IndexError: The page holds no token, or no window page was reserved for it.
        ValueError: The window page belongs to a prefix tree.
    """
    rows = _window(sequence, index)
    if sequence.lease and sequence.lease.has_window(index):
        raise ValueError(f"window page {index} is shared with other requests: it is not written")
    if len(data) != rows.numel():
        raise LayoutMismatch(f"window page {index} has {len(data)} bytes: this model's have {rows.numel()}")
    rows.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view_as(rows))


def read_window(sequence: Sequence, end: int, layers: int) -> bytes:
    """Window rows of the first layers before a position, as many as the window has or there are.

    Args:
        sequence: Which one.
        end: The position behind the last row.
        layers: How many layers from the first one on.

    Returns:
        [layers, rows, bytes], positions rising.

    Raises:
        IndexError: Some of the rows are gone.
    """
    return torch.cat([part[:layers] for part in _window_parts(sequence, end)], 1).numpy().tobytes()


def write_window(sequence: Sequence, end: int, layers: int, data: bytes) -> None:
    """Take over what `read_window` gave elsewhere.

    Raises:
        LayoutMismatch: `data` is not as long as the window before `end` is here.
        IndexError: No window pages were reserved for it.
    """
    geometry = sequence.pool.geometry
    rows = min(geometry.window, end)
    expected = layers * rows * geometry.window_bytes
    if len(data) != expected:
        raise LayoutMismatch(f"the window before {end} has {len(data)} bytes: this model's has {expected}")
    source = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(layers, rows, geometry.window_bytes)
    parts = list(_window_parts(sequence, end))
    for part, values in zip(parts, source.split([part.shape[1] for part in parts], 1), strict=True):
        part[:layers] = values


def read_state(sequence: Sequence) -> bytes:
    """State beside the pages: per owner of pairs the little-endian float32 value and gate; empty for an even length.

    Raises:
        ValueError: The length is odd and an owner has no pending pair.
    """
    if not sequence.pool.geometry.state_bytes(sequence.length):
        return b""
    missing = [layer for layer, pair in sequence.pending.items() if pair is None]
    if missing:
        raise ValueError(f"the sequence has {sequence.length} tokens: layers {missing} must have a pending pair")
    pairs = [torch.stack(pair).reshape(-1) for pair in sequence.pending.values() if pair is not None]
    return torch.cat(pairs).numpy().astype("<f4").tobytes()


def write_state(sequence: Sequence, data: bytes) -> None:
    """Take over the state; `sequence.length` is the sender's already.

    Raises:
        LayoutMismatch: `data` is not as long as this length's state.
    """
    geometry = sequence.pool.geometry
    expected = geometry.state_bytes(sequence.length)
    if len(data) != expected:
        raise LayoutMismatch(
            f"the state of {sequence.length} tokens has {len(data)} bytes: this model's has {expected}"
        )
    if not data:
        sequence.pending = dict.fromkeys(sequence.pending)
        return
    values = torch.frombuffer(bytearray(data), dtype=torch.float32).view(-1, 2, geometry.head_dim)
    sequence.pending = {layer: (pair[0], pair[1]) for layer, pair in zip(sequence.pending, values, strict=True)}


def _tokens(sequence: Sequence, index: int) -> int:
    """Tokens in a page, at least 1."""
    size = sequence.pool.geometry.page_size
    if not 0 <= index * size < sequence.length:
        raise IndexError(f"page {index} holds no token: the sequence has {sequence.length}")
    return min(size, sequence.length - index * size)


def _parts(sequence: Sequence, index: int) -> Iterator[tuple[int, Tensor]]:
    """(ratio, rows) of everything in a page, in the order of the wire."""
    pool, page = sequence.pool, sequence.pages[index]
    for owner in sorted(pool.geometry.owners, key=lambda owner: (owner.ratio, owner.layer)):
        yield owner.ratio, pool.main_page(owner.layer, page)
        yield owner.ratio, pool.index_page(owner.layer, page)


def _window_parts(sequence: Sequence, end: int) -> Iterator[Tensor]:
    """The window's rows before `end`, page after page: [layers, rows, bytes] each, a view."""
    size, start = sequence.pool.geometry.page_size, max(0, end - sequence.pool.geometry.window)
    for index in range(start // size, -(-end // size)):
        yield _window(sequence, index)[:, max(0, start - index * size) : min(size, end - index * size)]


def _window(sequence: Sequence, index: int) -> Tensor:
    _tokens(sequence, index)
    page = sequence.window_pages[index]
    if page < 0:
        raise IndexError(f"page {index} has no window page: it was released or never reserved")
    return sequence.pool.window_page(page)
