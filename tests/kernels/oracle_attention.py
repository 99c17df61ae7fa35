"""Windowed attention in float64, a key at a time, from the bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_kernels.paged import Paged

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Seen:
    """What rows see.

    Attributes:
        output: [R, heads, dim].
        lse: [R, heads].
        weighed: [R, heads, dim], the output were all terms positive: what errors are measured by.
    """

    output: Tensor
    lse: Tensor
    weighed: Tensor


def e4m3(code: int) -> float:
    """1 sign, 4 exponent (bias 7) and 3 mantissa bits."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-9
    return -magnitude if code & 0x80 else magnitude


def latent(pool: Paged, slot: int) -> list[float]:
    """The row at a slot."""
    page, row = divmod(slot, pool.page_size)
    size, scales = {"window": (pool.dim, pool.dim // 32), "main": (pool.dim // 2, pool.dim // 16)}[pool.codec.name]
    data = pool.data[page].tolist()
    if pool.planar:
        codes, factors = data[row * size :][:size], data[pool.page_size * size + row * scales :][:scales]
    else:
        whole = data[row * (size + scales) :][: size + scales]
        codes, factors = whole[:size], whole[size:]
    if pool.codec.name == "window":
        return [e4m3(code) * 2.0 ** (factors[i // 32] - 127) for i, code in enumerate(codes)]
    nibbles = [half for pair in codes for half in (pair & 15, pair >> 4)]
    signed = [-_E2M1[code & 7] if code & 8 else _E2M1[code] for code in nibbles]
    return [value * e4m3(factors[i // 16]) for i, value in enumerate(signed)]


def attend(query: Tensor, keys: Sequence[tuple[Paged, Tensor]], sink: Tensor, *, scale: float) -> Seen:
    """Let every row see the latents of each pool at its slots."""
    known: dict[tuple[int, int], list[float]] = {}
    results: list[tuple[Tensor, Tensor, Tensor]] = []
    for row, asked in enumerate(query.double()):
        latents = []
        for number, (pool, slots) in enumerate(keys):
            for slot in slots[row].tolist():
                if slot < 0:
                    continue
                if (number, slot) not in known:
                    known[number, slot] = latent(pool, slot)
                latents.append(known[number, slot])
        values = torch.tensor(latents, dtype=torch.float64).reshape(-1, query.shape[-1])
        results.append(_softmax(asked @ values.T * scale, values, sink.double()))
    if not results:
        empty = query.double()
        return Seen(empty, empty[..., 0], empty)
    return Seen(*(torch.stack(part) for part in zip(*results, strict=True)))


def _softmax(logits: Tensor, values: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    output, weighed = torch.zeros(len(sink), values.shape[1]).double(), torch.zeros(len(sink), values.shape[1]).double()
    lse = torch.full_like(sink, -math.inf)
    for head, row in enumerate(logits):
        if not len(row):
            continue
        top = max(row.max().item(), sink[head].item())
        weights = (row - top).exp()
        total = weights.sum() + math.exp(sink[head].item() - top)
        output[head], weighed[head] = weights @ values / total, weights @ values.abs() / total
        lse[head] = row.max() + (row - row.max()).exp().sum().log()
    return output, lse, weighed
