"""Pooling of pairs: against plain Python, and the same bits however a sequence is cut into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from epd_kernels.architecture import Architecture
from epd_kernels.compressor import launch, reference
from epd_kernels.compressor.tiles import TILES
from tests.kernels.oracle_compressor import Owner, Token

if TYPE_CHECKING:
    from types import ModuleType

    from epd_kernels.compressor.pairs import Pairs

EPS = 1e-20
by_operation = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])


@dataclass
class Sequences:
    """Sequences that grow by chunks: what an engine keeps of them between its steps, and what an oracle makes."""

    dim: int
    count: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        self.lengths = torch.zeros(self.count, dtype=torch.int32)
        self.pending = torch.full((self.count, 2, self.dim), float("nan"))  # nobody may read what nobody wrote
        self.waiting = torch.zeros(self.count, dtype=torch.bool)
        self.weight = torch.rand(self.dim, generator=torch.Generator().manual_seed(7), dtype=self.dtype) + 0.5
        self.entries: list[list[Tensor]] = [[] for _ in range(self.count)]
        self.owners = [Owner() for _ in range(self.count)]

    def step(self, operation: ModuleType, chunks: list[Tensor], padding: int = 0) -> Pairs:
        """Give each sequence its chunk [rows, 2, dim], check all that comes back, and keep it."""
        rows = [len(chunk) for chunk in chunks]
        starts = torch.tensor([0, *accumulate(rows)], dtype=torch.int32)
        both = zip(rows, self.waiting.tolist(), strict=True)
        total = sum((count + waits) // 2 for count, waits in both)
        actual: Pairs = operation.pool_pairs(
            torch.cat(chunks),
            starts,
            self.lengths,
            self.pending,
            self.waiting,
            self.weight,
            EPS,
            capacity=total + padding,
        )
        self.lengths = self.lengths + torch.tensor(rows, dtype=torch.int32)
        self.pending, self.waiting = actual.pending, actual.waiting
        self._check(actual, chunks, total)
        for request, row in zip(actual.requests.tolist(), actual.latents, strict=True):
            if request >= 0:
                self.entries[request].append(row)
        return actual

    def _check(self, actual: Pairs, chunks: list[Tensor], total: int) -> None:
        expected: list[tuple[int, int, list[float]]] = []
        for request, (owner, chunk) in enumerate(zip(self.owners, chunks, strict=True)):
            before = len(owner.entries)
            for content, gate in chunk.tolist():
                owner.feed((content, gate), self.weight.tolist(), EPS)
            expected += [(request, entry, row) for entry, row in owner.entries[before:]]
        assert len(expected) == total
        assert actual.requests.tolist() == [request for request, _, _ in expected] + [-1] * (
            len(actual.requests) - total
        )
        assert actual.entries.tolist() == [entry for _, entry, _ in expected] + [-1] * (len(actual.entries) - total)
        assert actual.latents.dtype == self.dtype
        want = torch.tensor([row for _, _, row in expected], dtype=self.dtype).reshape(total, self.dim)
        close = 2e-6 if self.dtype == torch.float32 else 1e-13
        torch.testing.assert_close(actual.latents[:total], want, rtol=close, atol=close)
        assert not actual.latents[total:].any()
        assert actual.waiting.tolist() == [owner.kept is not None for owner in self.owners]
        kept = [_rows(owner.kept, self.dim) for owner in self.owners]
        assert actual.pending.dtype == torch.float32
        assert torch.equal(actual.pending, torch.tensor(kept, dtype=torch.float32).reshape(self.count, 2, self.dim))


def _rows(kept: Token | None, dim: int) -> list[list[float]]:
    return [[0.0] * dim] * 2 if kept is None else [kept[0], kept[1]]


def tokens(rows: int, dim: int, seed: int = 0) -> Tensor:
    """Contents and gates of a prompt."""
    return torch.randn(rows, 2, dim, generator=torch.Generator().manual_seed(seed)) * 3


def cut(whole: Tensor, places: list[int]) -> list[Tensor]:
    """The chunks between places."""
    return [whole[first:end] for first, end in pairwise([0, *places, len(whole)])]


@by_operation
@pytest.mark.parametrize("places", [[1], [6], [3], [2, 3, 4], [1, 2, 3, 4, 5, 6], [0, 0, 5, 5]], ids=str)
def test_any_cut_gives_the_same_bits(operation: ModuleType, places: list[int]) -> None:
    """1 + n, n + 1, odd and even cuts, single tokens, empty chunks."""
    whole = tokens(7, 48)
    once, pieces = Sequences(48, 1), Sequences(48, 1)
    once.step(operation, [whole])
    for chunk in cut(whole, places):
        pieces.step(operation, [chunk])
    assert torch.equal(torch.stack(once.entries[0]), torch.stack(pieces.entries[0]))
    assert torch.equal(once.pending, pieces.pending)


@by_operation
@pytest.mark.parametrize("dim", [32, 48], ids=["whole tile", "part of a tile"])
def test_every_kind_of_request_in_one_step(operation: ModuleType, dim: int) -> None:
    """Partners at the bounds of requests, empty ones that wait and that do not, more of them than one search takes."""
    sequences = Sequences(dim, 10)
    first = [3, 1, 0, 4, 5, 0, 0, 2, 1, 6]
    sequences.step(operation, [tokens(rows, dim, seed) for seed, rows in enumerate(first)], padding=3)
    second = [0, 1, 0, 1, 4, 1, 2, 0, 6, 129]
    sequences.step(operation, [tokens(rows, dim, 20 + seed) for seed, rows in enumerate(second)], padding=3)
    sequences.step(operation, [tokens(1, dim, 40 + seed) for seed in range(10)])


@by_operation
def test_nobody_and_nothing(operation: ModuleType) -> None:
    """No request: no rows, no pairs, nothing pending."""
    state = (torch.zeros(0, 2, 32), torch.zeros(0, dtype=torch.bool), torch.ones(32), EPS)
    none = torch.zeros(0, dtype=torch.int32)
    for padding in (0, 2):
        actual = operation.pool_pairs(torch.zeros(0, 2, 32), none.new_zeros(1), none, *state, capacity=padding)
        assert actual.latents.shape == (padding, 32)
        assert actual.requests.tolist() == actual.entries.tolist() == [-1] * padding
        assert (actual.pending.shape, actual.waiting.shape) == ((0, 2, 32), (0,))


@by_operation
def test_padding_alone(operation: ModuleType) -> None:
    actual = Sequences(32, 2).step(operation, [tokens(0, 32), tokens(1, 32)], padding=5)
    assert actual.entries.tolist() == [-1] * 5


@by_operation
def test_gates_far_apart_and_equal_and_contents_of_nothing(operation: ModuleType) -> None:
    """A weight of 0 or 1 exactly, of a half exactly; eps keeps a zero latent zero."""
    whole = tokens(8, 32)
    whole[0, 1], whole[1, 1] = 1e30, -1e30
    whole[2, 1], whole[3, 1] = -200.0, 200.0
    whole[4, 1] = whole[5, 1]
    whole[6:, 0] = 0.0
    sequences = Sequences(32, 1)
    sequences.step(operation, [whole])
    assert not sequences.entries[0][3].any()
    torch.testing.assert_close(sequences.entries[0][0], normalised(whole[0, 0], sequences.weight))
    torch.testing.assert_close(sequences.entries[0][1], normalised(whole[3, 0], sequences.weight))


def normalised(x: Tensor, weight: Tensor) -> Tensor:
    return x / x.square().mean().sqrt() * weight


@given(data=st.data(), count=st.integers(1, 4), dim=st.sampled_from([16, 40]), padding=st.integers(0, 3))
@settings(max_examples=25)
def test_any_steps_of_any_batch(data: st.DataObject, count: int, dim: int, padding: int) -> None:
    """Torch and Triton against the oracle in every step, and against themselves with each sequence alone and whole."""
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 7]), min_size=count, max_size=count)
    steps = data.draw(st.lists(sizes, min_size=1, max_size=3), label="rows")
    seed = data.draw(st.integers(0, 99), label="seed")
    totals = [sum(step[request] for step in steps) for request in range(count)]
    whole = [tokens(total, dim, seed + request) for request, total in enumerate(totals)]
    for operation in (reference, launch):
        sequences, given_before = Sequences(dim, count), [0] * count
        for step in steps:
            chunks = [part[at : at + rows] for part, at, rows in zip(whole, given_before, step, strict=True)]
            sequences.step(operation, chunks, padding)
            given_before = [at + rows for at, rows in zip(given_before, step, strict=True)]
        for request, part in enumerate(whole):
            alone = Sequences(dim, 1)
            alone.step(operation, [part])
            assert torch.equal(torch.stack(alone.entries[0] or [part.new_zeros(dim)]), stacked(sequences, request))
            assert torch.equal(alone.pending[0], sequences.pending[request])


def stacked(sequences: Sequences, request: int) -> Tensor:
    return torch.stack(sequences.entries[request] or [torch.zeros(sequences.dim)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_torch_pools_long_chunks_in_blocks(dtype: torch.dtype) -> None:
    """More pairs than one block of the implementation has, the block's edge amid a request that has waited."""
    whole = tokens(4201, 16).to(dtype)
    once, pieces = Sequences(16, 1, dtype), Sequences(16, 1, dtype)
    once.step(reference, [whole])
    for chunk in cut(whole, [1, 2500]):
        pieces.step(reference, [chunk])
    assert torch.equal(torch.stack(once.entries[0]), torch.stack(pieces.entries[0]))


def test_released_size() -> None:
    chunks = [tokens(5, 512), tokens(3, 512, 1)]
    ours, torchs = Sequences(512, 2), Sequences(512, 2)
    for operation, sequences in ((launch, ours), (reference, torchs)):
        for part in (slice(0, 2), slice(2, 5)):
            sequences.step(operation, [chunk[part] for chunk in chunks])
    for request in range(2):
        torch.testing.assert_close(stacked(ours, request), stacked(torchs, request), rtol=1e-6, atol=1e-6)


def test_the_kernel_pools_float32_alone() -> None:
    with pytest.raises(ValueError, match=r"projections are torch\.float64: the kernel pools float32; use the torch"):
        Sequences(32, 1, torch.float64).step(launch, [tokens(2, 32).double()])


@by_operation
def test_steps_pass_two_to_the_31_values(operation: ModuleType) -> None:
    """The last rows of a step; memory that nobody touches takes none."""
    dim, rows = 512, 2**21 + 2
    projected = torch.from_numpy(np.zeros(rows * 2 * dim, dtype=np.float32)).view(rows, 2, dim)
    projected[-2:] = tokens(2, dim)
    first = torch.zeros(1, dtype=torch.int32)
    state = (torch.zeros(1, 2, dim), torch.zeros(1, dtype=torch.bool), torch.ones(dim), EPS)
    latents = []
    for source, starts in ((projected, [rows - 2, rows]), (projected[-2:], [0, 2])):
        actual = operation.pool_pairs(source, torch.tensor(starts, dtype=torch.int32), first, *state, capacity=1)
        latents.append(actual.latents)
    assert torch.equal(*latents)
    assert latents[0].any()


def test_tiles_fit_any_row() -> None:
    assert set(TILES) == set(Architecture)
    for tile in TILES.values():
        for dim in (32, 96, 512):
            rows, columns = tile.shape(dim)
            assert columns >= dim
            assert columns < 2 * dim
            assert rows & (rows - 1) == 0
