"""Candidate blocks: kernel and torch against sorting."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.candidate_blocks import launch, reference
from epd_kernels.sizes import RELEASED
from tests.kernels import oracle_selection as oracle
from tests.kernels.ragged import ints

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

OPERATIONS = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])


def check(maxima: Tensor, visible: list[int], block: int, count: int) -> None:
    wanted = [oracle.best_blocks(line, seen, block, count) for line, seen in zip(maxima.tolist(), visible, strict=True)]
    for operation in (reference, launch):
        actual = operation.candidate_blocks(maxima, ints(visible), block=block, count=count)
        assert actual.dtype == torch.int32
        assert actual.shape == (len(wanted), count)
        assert actual.tolist() == wanted


@settings(max_examples=30)
@given(block=st.sampled_from([1, 4, 8]), count=st.integers(1, 9), data=st.data())
def test_blocks_equal_the_oracle(block: int, count: int, data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, 12))
    value = st.sampled_from([-inf, -1.0, -0.0, 0.0, 2.0]) | st.floats(-9, 9, width=32)
    lines, visible = [], []
    for _ in range(data.draw(st.integers(0, 5))):
        seen = data.draw(st.integers(0, blocks * block))
        line = data.draw(st.lists(value, min_size=blocks, max_size=blocks))
        visible.append(seen)
        lines.append([one if b * block < seen else -inf for b, one in enumerate(line)])
    check(torch.tensor(lines, dtype=torch.float32).reshape(len(lines), blocks), visible, block, count)


@pytest.mark.parametrize("visible", [1, 7, 8, 9, 16, 71, 72])
@OPERATIONS
def test_the_newest_block_is_always_kept(operation: ModuleType, visible: int) -> None:
    newest = (visible - 1) // 8
    maxima = torch.arange(9, 0, -1.0)[None] * 1e30
    maxima[0, newest] = -3e38
    maxima[0, newest + 1 :] = -inf
    actual = operation.candidate_blocks(maxima, ints([visible]), block=8, count=2).tolist()[0]
    assert actual == sorted({0, newest}) if newest else [0, -1]
    assert operation.candidate_blocks(maxima, ints([visible]), block=8, count=1).tolist() == [[newest]]


@OPERATIONS
def test_all_blocks_are_kept_where_they_fit(operation: ModuleType) -> None:
    maxima = torch.randn(3, 1024, generator=torch.Generator().manual_seed(0))
    maxima[1, 300:], maxima[2] = -inf, -inf
    actual = operation.candidate_blocks(maxima, ints([8192, 2400, 0]), block=8, count=2048)
    order = torch.arange(2048)
    assert torch.equal(actual, torch.stack([torch.where(order < kept, order, -1) for kept in (1024, 300, 0)]).int())


@pytest.mark.parametrize("blocks", [2048, 2049, 4096])
def test_released_sizes(blocks: int) -> None:
    maxima = torch.randn(3, blocks, generator=torch.Generator().manual_seed(blocks)).mul(8).round()
    maxima[0, -1] = -99
    maxima[1, blocks // 2 :] = -inf
    check(maxima, [blocks * 8 - 5, blocks // 2 * 8, blocks * 8], 8, 2048)


@pytest.mark.parametrize("rows", [0, 1, 63, 65])
def test_any_number_of_rows(rows: int) -> None:
    maxima = torch.randn(rows, 12, generator=torch.Generator().manual_seed(rows)).mul(2).round()
    check(maxima, [1 + row % 48 for row in range(rows)], 4, 5)


def test_equal_scores() -> None:
    check(torch.zeros(3, 40), [320, 319, 8], 8, 7)


@pytest.mark.nightly
def test_blocks_of_a_million_entries() -> None:
    maxima = torch.randn(2, 2**17, generator=torch.Generator().manual_seed(1)).mul(2**8).round()
    maxima[1, -1] = -1e9
    visible = ints([2**20 - 3, 2**20])
    actual = [one.candidate_blocks(maxima, visible, block=8, count=2048) for one in (reference, launch)]
    assert torch.equal(actual[0], actual[1])
    assert actual[0][1, -1] == 2**17 - 1


def test_warm_compiles_the_released_count() -> None:
    assert [one.options["COUNT"] for _, one in launch.warm(RELEASED, torch.device("cpu"))] == [2048]
