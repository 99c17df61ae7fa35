"""Stored weights to bfloat16, one at a time as the loader reads them.

The engine computes FP8 and MXFP4 products on GPUs only, so on a CPU its model is built as an unquantised one and gets
what the stored weights mean. An E4M3 or E2M1 code times a power of two fits bfloat16 exactly, so nothing is rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = torch.tensor((*_MAGNITUDES, *(-value for value in _MAGNITUDES)), dtype=torch.bfloat16)
_KEPT = ("engram.embed.",)
"""What the engine reads in its stored form everywhere: the tables of Engram are E4M3 rows that it looks up."""


def wide(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Put each quantised weight and its scale, which may come in any order, together.

    Raises:
        ValueError: A weight without its scale, or a scale without a weight.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights:
        stem, _, kind = name.rpartition(".")
        if any(part in name for part in _KEPT) or not _is_half(kind, tensor):
            yield name, tensor
            continue
        pair = halves.setdefault(stem, {})
        pair[kind] = tensor
        if len(pair) == 2:
            del halves[stem]
            yield f"{stem}.weight", dequantised(pair["weight"], pair["scale"])
    if halves:
        listed = ", ".join(f"{stem} has only its {next(iter(pair))}" for stem, pair in sorted(halves.items()))
        raise ValueError(f"quantised weights come with their scales: {listed}")


def _is_half(kind: str, tensor: Tensor) -> bool:
    if kind == "scale":
        return tensor.dtype in {torch.float8_e8m0fnu, torch.uint8}
    return kind == "weight" and tensor.dtype in {torch.float8_e4m3fn, torch.int8, torch.uint8}


def dequantised(codes: Tensor, scales: Tensor) -> Tensor:
    """bfloat16 [m, n] of E4M3 [m, n] with scales of blocks, or of two E2M1 a byte [m, n / 2] with scales of rows.

    Args:
        codes: As stored.
        scales: Powers of two as E8M0 [m / block, n / block] or, for E2M1, [m, n / block].
    """
    if codes.dtype is torch.float8_e4m3fn:
        values = codes.to(torch.bfloat16)
    else:
        packed = codes.view(torch.uint8).long()
        values = torch.stack((_E2M1[packed & 15], _E2M1[packed >> 4]), -1).flatten(-2)
    powers = torch.exp2(scales.view(torch.uint8).float() - 127).to(torch.bfloat16)
    for axis in (0, 1):
        powers = powers.repeat_interleave(-(-values.shape[axis] // scales.shape[axis]), axis)
    return values * powers[: values.shape[0], : values.shape[1]]
