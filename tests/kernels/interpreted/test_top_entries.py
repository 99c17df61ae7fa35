"""The best entries of a row: kernel and torch against sorting."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.architecture import Architecture
from epd_kernels.selection.tiles import TILES, Tile
from epd_kernels.sizes import RELEASED
from epd_kernels.top_entries import launch, reference
from tests.kernels import oracle_selection as oracle

if TYPE_CHECKING:
    from types import ModuleType

OPERATIONS = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])
TILE = TILES[Architecture.INTERPRETER]
WIDEST = Tile(rows=2, columns=2**14, warps=1)


def check(values: torch.Tensor, count: int, candidates: torch.Tensor | None = None, block: int = 1) -> None:
    wanted = torch.tensor([oracle.best(line, count) for line in values.tolist()]).reshape(len(values), count)
    if candidates is not None and values.shape[1]:
        entries = (candidates[:, :, None] * block + torch.arange(block)).flatten(1)
        wanted = torch.where(wanted >= 0, entries.gather(1, wanted.clamp(min=0)), -1)
    for operation in (reference, launch):
        actual = operation.top_entries(values, count=count, candidates=candidates, block=block)
        assert actual.dtype == torch.int32
        assert actual.tolist() == wanted.tolist()


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    """Of few different values, so that most tie, or of any finite ones."""
    few = st.sampled_from([-inf, -2.0, -0.0, 0.0, 1.0, 1.5])
    value = draw(st.sampled_from([few, few | st.floats(width=32, allow_nan=False, allow_infinity=False)]))
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(0, 12))
    line = st.lists(value, min_size=columns, max_size=columns)
    return torch.tensor([draw(line) for _ in range(rows)], dtype=torch.float32).reshape(rows, columns)


@settings(max_examples=40)
@given(values=matrices(), count=st.integers(1, 14))
def test_best_entries_equal_the_oracle(values: torch.Tensor, count: int) -> None:
    check(values, count)


@settings(max_examples=15)
@given(values=matrices(), count=st.integers(1, 9), block=st.sampled_from([1, 2, 8]), seed=st.integers(0, 2**16))
def test_best_of_candidates_equal_the_oracle(values: torch.Tensor, count: int, block: int, seed: int) -> None:
    values = values.repeat_interleave(block, 1)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.rand(len(values), 20, generator=generator).argsort(-1)[:, : values.shape[1] // block]
    check(values, count, blocks.sort(-1).values.int(), block)


@pytest.mark.parametrize("value", [-3.0, 0.0, -0.0, 1e-40, 3e38, -inf])
def test_of_equal_scores_the_first(value: float) -> None:
    check(torch.full((2, TILE.columns + 3), value), 40)


@pytest.mark.parametrize("columns", [1, TILE.columns - 1, TILE.columns, TILE.columns + 1, 2 * TILE.columns + 7])
@pytest.mark.parametrize("kind", ["normal", "ties", "few"])
def test_rows_of_several_tiles(columns: int, kind: str) -> None:
    values = torch.randn(3, columns, generator=torch.Generator().manual_seed(columns))
    if kind == "ties":
        values = values.mul(2).round()
    if kind == "few":
        values[:, 2::3] = -inf
        values[1] = -inf
        values[2, 9:] = -inf
    check(values, 64)


@pytest.mark.parametrize("rows", [0, 1, TILE.rows - 1, TILE.rows, 2 * TILE.rows + 1])
def test_any_number_of_rows(rows: int) -> None:
    check(torch.randn(rows, 50, generator=torch.Generator().manual_seed(rows)).mul(4).round(), 16)


@OPERATIONS
def test_every_float32_has_its_place(operation: ModuleType) -> None:
    # One value of every binade and sign, its neighbours, zero, and the subnormals' ends.
    bits = torch.arange(0, 255, dtype=torch.int64)[:, None] * 2**23 + torch.tensor([0, 1, 2**22, 2**23 - 1])
    magnitudes = bits.flatten().int().view(torch.float32)
    values = torch.cat((magnitudes, -magnitudes[1:]))
    shuffled = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))]
    for count in (1, 1020, 2000):
        actual = operation.top_entries(shuffled[None], count=count, block=1)[0].long()
        assert torch.equal(shuffled[actual].sort().values, values.sort().values[-count:])
        assert torch.equal(actual, actual.sort().values)


@OPERATIONS
def test_released_sizes_have_the_scores_of_topk(operation: ModuleType) -> None:
    values = torch.randn(3, 16384, generator=torch.Generator().manual_seed(1)).mul(8).round().div(8)
    values[1, 300:] = -inf
    candidates = torch.arange(1, 4097, 2, dtype=torch.int32).repeat(3, 1)
    actual = operation.top_entries(values, count=512, candidates=candidates, block=8).long()
    assert actual.shape == (3, 512)
    assert actual[1].ge(0).sum() == 300
    for row, entries in zip(values, actual, strict=True):
        kept = entries[entries >= 0]
        assert torch.equal(kept, kept.unique())
        assert torch.all(kept // 8 % 2 == 1)
        columns = (kept // 8 // 2) * 8 + kept % 8
        assert torch.equal(row[columns].sort(descending=True).values, row.topk(len(kept)).values)


@OPERATIONS
def test_rows_may_lie_apart(operation: ModuleType) -> None:
    wide = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    blocks = torch.full((3, 9), 77, dtype=torch.int32)
    blocks[:, :5] = torch.tensor([0, 2, 3, 7, 9])
    given = {"count": 6, "block": 4}
    actual = operation.top_entries(wide[:, 7:27], candidates=blocks[:, :5], **given)
    wanted = operation.top_entries(wide[:, 7:27].clone(), candidates=blocks[:, :5].clone(), **given)
    assert torch.equal(actual, wanted)


@OPERATIONS
def test_offsets_into_scores_are_64_bit(operation: ModuleType) -> None:
    # Two rows, 2^31 scores apart: memory that is never touched is never taken.
    stride = 2**31
    values = torch.empty(stride + 4).as_strided((2, 4), (stride, 1))
    values.copy_(torch.tensor([[1.0, 2.0, 3.0, 0.0], [4.0, -inf, 0.0, 5.0]]))
    assert operation.top_entries(values, count=2, block=1).tolist() == [[1, 2], [0, 3]]


def test_torch_sorts_in_double_precision() -> None:
    values = torch.tensor([[1.0, 1.0 + 2**-40, 1.0 - 2**-40]], dtype=torch.float64)
    assert reference.top_entries(values, count=2, block=1).tolist() == [[0, 1]]


def test_a_million_entries() -> None:
    values = torch.randn(2, 2**20, generator=torch.Generator().manual_seed(3)).mul(2**12).round()
    values[1, 2**19 + 5 :] = -inf
    wanted = reference.top_entries(values, count=512, block=8)
    with patch.dict(TILES, {Architecture.INTERPRETER: WIDEST}):
        assert torch.equal(launch.top_entries(values, count=512, block=8), wanted)


def test_the_widest_tile_counts_all_its_columns() -> None:
    with patch.dict(TILES, {Architecture.INTERPRETER: WIDEST}):
        check(torch.zeros(2, 2 * WIDEST.columns), 7)
        check(torch.ones(1, WIDEST.columns), WIDEST.columns - 1)


def test_warm_covers_candidates() -> None:
    assert [one.arguments[1] is None for _, one in launch.warm(RELEASED, torch.device("cpu"))] == [True, False]
