"""Weights drawn from a seed, the same bits on every machine.

Normal deviates would go through `log` and `cos`, whose last bit differs between CPUs. Uniform ones need only a shift
and exact multiplications of Philox's raw integers, a stream that NumPy guarantees not to change.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor


class SeededWeights:
    """Draws named tensors; a tensor depends on the seed, its name and its size, not on the order of the draws."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draw(self, name: str, *shape: int, std: float) -> Tensor:
        """Uniform with mean 0 and this standard deviation: [*shape] float64."""
        key = int.from_bytes(hashlib.sha256(f"{self._seed}/{name}".encode()).digest()[:16], "little")
        raw = np.asarray(np.random.Philox(key=key).random_raw(math.prod(shape)))
        unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return torch.from_numpy(unit.reshape(shape)) * (std * math.sqrt(3.0))

    def matrix(self, name: str, inputs: int, outputs: int, *, gain: float = 1.0) -> Tensor:
        """[inputs, outputs] float64; maps rows of root mean square 1 to rows of root mean square `gain`."""
        return self.draw(name, inputs, outputs, std=gain / math.sqrt(inputs))
