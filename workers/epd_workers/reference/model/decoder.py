"""Causal decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_workers.reference.model.cache import PagedCache
    from epd_workers.reference.model.weights import SeededWeights

_QUERY_BLOCK = 32  # bounds the score matrix of a long prompt; measured fastest at 8000 tokens of context
_TEXT = frozenset(b" abcdefghijklmnopqrstuvwxyz")
_PRINTABLE = frozenset(range(32, 127))


@dataclass(frozen=True)
class DecoderSizes:
    """The architecture in numbers."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    rope_theta: float = 10000.0


def rms_norm(rows: Tensor) -> Tensor:
    """Rows divided by their root mean square (epsilon 1e-6)."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6)


class _Layer:
    def __init__(self, sizes: DecoderSizes, weights: SeededWeights, name: str) -> None:
        hidden, heads = sizes.hidden, sizes.heads * sizes.head_dim
        kv = sizes.kv_heads * sizes.head_dim
        # Queries and keys above unit scale make attention pick rows instead of averaging all: a wrong cache entry then
        # changes tokens, which is what tests of a transfer need.
        self.query = weights.matrix(f"{name}.query", hidden, heads, gain=1.5)
        self.key = weights.matrix(f"{name}.key", hidden, kv, gain=1.5)
        self.value = weights.matrix(f"{name}.value", hidden, kv)
        self.output = weights.matrix(f"{name}.output", heads, hidden)
        self.gate = weights.matrix(f"{name}.gate", hidden, sizes.intermediate)
        self.up = weights.matrix(f"{name}.up", hidden, sizes.intermediate)
        self.down = weights.matrix(f"{name}.down", sizes.intermediate, hidden)


class Decoder:
    """Embeddings in, logits out. Computes in float64 (see the package's docstring)."""

    def __init__(self, sizes: DecoderSizes, vocab_size: int, eos_id: int, context: int, weights: SeededWeights) -> None:
        self.sizes = sizes
        self._embedding = weights.draw("embedding", vocab_size, sizes.hidden, std=1.0)
        self._layers = [_Layer(sizes, weights, f"layers.{i}") for i in range(sizes.layers)]
        self._head = weights.matrix("head", sizes.hidden, vocab_size, gain=3.0)
        # Untrained weights would answer with random bytes; the bias keeps most answers in letters and lets them end.
        bias = [
            0.0 if i in _TEXT else -4.0 if i in _PRINTABLE else -5.0 if i == eos_id else -40.0
            for i in range(vocab_size)
        ]
        self._bias = torch.tensor(bias, dtype=torch.float64)
        frequency = sizes.rope_theta ** (-torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
        self._cos, self._sin = angles.cos()[:, None], angles.sin()[:, None]

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """[n, hidden] float64."""
        return self._embedding[torch.tensor(token_ids)]

    def extend(self, rows: Tensor, cache: PagedCache) -> Tensor:
        """Run n consecutive rows of one sequence: [n, hidden] before the head; appends to the cache."""
        n = len(rows)
        positions = torch.arange(cache.length, cache.length + n)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, rows, positions)
            keys, values = cache.store(index, key.transpose(0, 1), value.transpose(0, 1))
            blocks = [self._attend(part, keys, values) for part in self._blocks(query, cache.length)]
            rows = self._mix(layer, rows, torch.cat(blocks))
        cache.advance(n)
        return rows

    def decode(self, rows: Tensor, caches: Sequence[PagedCache]) -> Tensor:
        """Run one row of each of B sequences: [B, hidden] before the head; appends to every cache."""
        positions = torch.tensor([cache.length for cache in caches])
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, rows, positions)
            attended = [
                self._attend((query[i : i + 1], None), *cache.store(index, key[i, :, None], value[i, :, None]))
                for i, cache in enumerate(caches)
            ]
            rows = self._mix(layer, rows, torch.cat(attended))
        for cache in caches:
            cache.advance(1)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """[n, vocab] float32; the rounding hides the order of the float64 sums."""
        return (rms_norm(rows) @ self._head + self._bias).float()

    def _project(self, layer: _Layer, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed, dim = rms_norm(rows), self.sizes.head_dim
        query = self._rotate((normed @ layer.query).view(len(rows), -1, dim), positions)
        key = self._rotate((normed @ layer.key).view(len(rows), -1, dim), positions)
        return query, key, (normed @ layer.value).view(len(rows), -1, dim)

    def _rotate(self, rows: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self._cos[positions], self._sin[positions]
        even, odd = rows[..., 0::2], rows[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    @staticmethod
    def _blocks(query: Tensor, start: int) -> list[tuple[Tensor, int]]:
        return [(query[i : i + _QUERY_BLOCK], start + i) for i in range(0, len(query), _QUERY_BLOCK)]

    def _attend(self, block: tuple[Tensor, int | None], keys: Tensor, values: Tensor) -> Tensor:
        """Attention of m query rows [m, heads, dim] over [kv_heads, total, dim]; from position `first` on, causally."""
        query, first = block
        m, dim = len(query), self.sizes.head_dim
        kv, group = self.sizes.kv_heads, self.sizes.heads // self.sizes.kv_heads
        end = keys.shape[1] if first is None else first + m
        grouped = (query * dim**-0.5).view(m, kv, group, dim).permute(1, 2, 0, 3).reshape(kv, group * m, dim)
        scores = grouped @ keys[:, :end].transpose(1, 2)
        if m > 1:
            later = torch.ones(m, m, dtype=torch.bool).triu(1)
            scores.view(kv, group, m, end)[..., end - m :].masked_fill_(later, float("-inf"))
        mixed: Tensor = scores.softmax(-1) @ values[:, :end]
        return mixed.view(kv, group, m, dim).permute(2, 0, 1, 3).reshape(m, kv * group * dim)

    @staticmethod
    def _mix(layer: _Layer, rows: Tensor, attended: Tensor) -> Tensor:
        rows = rows + attended @ layer.output
        normed = rms_norm(rows)
        return rows + (functional.silu(normed @ layer.gate) * (normed @ layer.up)) @ layer.down
