"""Index scores: kernel and torch against one number at a time."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.architecture import Architecture
from epd_kernels.formats.reference import BFLOAT16, INDEX
from epd_kernels.index_scores import launch, reference
from epd_kernels.index_scores.tiles import OWN, SHARED
from epd_kernels.paged import Paged
from epd_kernels.sizes import RELEASED
from tests.kernels import oracle_selection as oracle
from tests.kernels.ragged import ints
from tests.kernels.scoring import Step, packed, step, steps

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

OPERATIONS = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])


def check(given: Step, columns: int, block: int, candidates: list[list[int]] | None = None) -> None:
    wanted = given.scores(columns if candidates is None else given.room)
    chosen = None
    if candidates is not None:
        chosen = torch.tensor(candidates, dtype=torch.int32).reshape(
            len(wanted), len(candidates[0]) if candidates else 2
        )
        wanted = [in_blocks(line, blocks, block) for line, blocks in zip(wanted, candidates, strict=True)]
    for operation in (reference, launch):
        actual = operation.index_scores(*given.arguments(), columns=columns, block=block, candidates=chosen)
        assert actual.values.dtype == actual.maxima.dtype == torch.float32
        assert actual.values.shape[0] == actual.maxima.shape[0] == len(wanted)
        assert actual.values.tolist() == wanted
        assert actual.maxima.tolist() == [oracle.maxima(line, block) for line in wanted]


def in_blocks(line: list[float], blocks: list[int], block: int) -> list[float]:
    """What stands in the columns of candidates."""
    entries = [b * block + i if b >= 0 else len(line) for b in blocks for i in range(block)]
    return [line[entry] if entry < len(line) else -inf for entry in entries]


@settings(max_examples=15)
@given(given=steps(), block=st.sampled_from([1, 4, 8]), data=st.data())
def test_scores_equal_the_oracle(given: Step, block: int, data: st.DataObject) -> None:
    check(given, data.draw(st.sampled_from([0, 1, given.room - 1, given.room, given.room + 5])), block)


@settings(max_examples=15)
@given(given=steps(), block=st.sampled_from([1, 4, 8]), data=st.data())
def test_scores_in_candidates_equal_the_oracle(given: Step, block: int, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 4))
    numbers = st.lists(st.integers(0, given.room // block + 1), unique=True, max_size=width).map(sorted)
    candidates = [
        kept + [-1] * (width - len(kept)) for kept in (data.draw(numbers) for _ in range(len(given.requests)))
    ]
    check(given, given.room, block, candidates)


@pytest.mark.parametrize("planar", [False, True], ids=["rows", "planar"])
def test_the_released_shape(planar: bool) -> None:
    visible = [0, 1, 255, 256, 257, 300, 512, 9]
    requests = [0, 0, 0, 0, 1, 1, 1, -1]
    given = step(1, requests, visible, [[2, 0], [1, 3]], heads=32, dim=128, page_size=256, planar=planar)
    actual = [one.index_scores(*given.arguments(), columns=512, block=8) for one in (reference, launch)]
    assert torch.equal(actual[0].values, actual[1].values)
    assert torch.equal(actual[0].maxima, actual[1].maxima)
    # The oracle takes its time: the rows that see the edges of a page.
    some = Step(given.rows, given.query[4:5], given.weights[4:5], given.pages, [1], [257], 128, 256, planar)
    assert actual[1].values[4].tolist() == some.scores(512)[0]
    candidates = torch.cat((torch.arange(1, 64, 2), ints([-1] * 4))).int().repeat(8, 1)
    both = [
        one.index_scores(*given.arguments(), columns=512, block=8, candidates=candidates) for one in (reference, launch)
    ]
    assert torch.equal(both[0].values, both[1].values)
    assert torch.equal(both[1].values[:, :256], actual[1].values.unflatten(1, (64, 8))[:, 1::2].flatten(1))


@pytest.mark.parametrize("rows", [0, 1, 127, 129])
def test_any_number_of_rows(rows: int) -> None:
    requests = [0 if row < 100 else 1 for row in range(rows)]
    given = step(2, requests, [row % 33 for row in range(rows)], [[0, 1, 2, 3], [3, 2, 1, 0]])
    check(given, given.room, 8)


def test_columns_behind_several_programs() -> None:
    columns = SHARED[Architecture.INTERPRETER].columns * SHARED[Architecture.INTERPRETER].turns + 8
    pages = [list(range(columns // 8 + 1))]
    check(step(3, [0, 0, 0], [columns - 3, 700, columns], pages, heads=1), columns, 8)
    count = OWN[Architecture.INTERPRETER].columns * OWN[Architecture.INTERPRETER].turns // 8 + 1
    check(step(4, [0, 0], [columns, 900], pages, heads=1), columns, 8, [list(range(count)), [0, *[-1] * (count - 1)]])


def test_requests_whose_rows_stand_apart() -> None:
    check(step(5, [0, 1, 0, -1, 1, 0, -1, -1, 0], [9, 12, 16, 5, 3, 1, 0, 2, 16], [[0, 3], [2, 1]]), 16, 4)


def test_real_values_are_near_exact_ones() -> None:
    generator = torch.Generator().manual_seed(6)
    keys = INDEX.pack(torch.randn(64, 128, generator=generator)).view(4, -1)
    query = INDEX.pack(torch.randn(6, 32, 128, generator=generator))
    weights = torch.randn(6, 32, generator=generator, dtype=torch.float64)
    pool, table = Paged(keys, 16, 128, INDEX), torch.arange(4, dtype=torch.int32)[None]
    rest = (pool, table, ints([0] * 6), ints([64, 63, 9, 1, 40, 64]))
    exact = reference.index_scores(query, weights, *rest, columns=64, block=8)
    assert exact.values.dtype == exact.maxima.dtype == torch.float64
    for item in (
        reference.index_scores(query, weights.float(), *rest, columns=64, block=8),
        launch.index_scores(query, weights, *rest, columns=64, block=8),
    ):
        torch.testing.assert_close(item.values, exact.values.float(), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(item.maxima, exact.maxima.float(), rtol=1e-5, atol=1e-4)


@OPERATIONS
def test_offsets_into_a_pool_are_64_bit(operation: ModuleType) -> None:
    # Two pages, 2^32 bytes apart: memory that is never touched is never taken.
    given = step(7, [0, 0], [16, 11], [[1, 0]])
    near = given.pool()
    data = torch.empty(2**32 + near.data.shape[1], dtype=torch.uint8).as_strided(near.data.shape, (2**32, 1))
    data.copy_(near.data)
    query, weights, _, *rest = given.arguments()
    far = operation.index_scores(query, weights, Paged(data, 8, 32, INDEX), *rest, columns=16, block=8)
    assert far.values.tolist() == given.scores(16)


@OPERATIONS
def test_rows_of_tables_may_lie_apart(operation: ModuleType) -> None:
    given = step(8, [0, 1, 1], [16, 11, 13], [[1, 0], [2, 3]])
    query, weights, keys, table, requests, visible = given.arguments()
    wide = torch.full((2, 9), 77, dtype=torch.int32)
    wide[:, 2:4] = table
    candidates = torch.full((3, 5), 77, dtype=torch.int32)
    candidates[:, :2] = ints([0, 1])
    rest = (wide[:, 2:4], requests, visible)
    actual = operation.index_scores(query, weights, keys, *rest, columns=16, block=8, candidates=candidates[:, :2])
    assert actual.values.tolist() == given.scores(16)


def test_wide_keys_are_for_torch_alone() -> None:
    generator = torch.Generator().manual_seed(9)
    keys, query = torch.randn(16, 40, generator=generator), torch.randn(3, 2, 40, generator=generator)
    pool = Paged(BFLOAT16.pack(keys).view(2, -1), 8, 40, BFLOAT16)
    weights, table = torch.randn(3, 2, generator=generator), ints([1, 0])[None]
    arguments = (BFLOAT16.pack(query), weights, pool, table, ints([0, 0, 0]), ints([16, 16, 16]))
    actual = reference.index_scores(*arguments, columns=16, block=8)
    rounded, turned = BFLOAT16.round(query), BFLOAT16.round(keys).roll(8, 0)
    wanted = torch.einsum("rh,rhn->rn", weights, torch.relu(torch.einsum("rhd,nd->rhn", rounded, turned)))
    torch.testing.assert_close(actual.values, wanted)
    with pytest.raises(ValueError, match=r"bf16 format: .* use the torch operations"):
        launch.index_scores(*arguments, columns=16, block=8)


def refused(match: str, *, block: int = 8, table: Tensor | None = None, query: Tensor | None = None) -> None:
    given = step(10, [0], [16], [[0, 1]]).arguments()
    arguments = (given[0] if query is None else query, *given[1:3], given[3] if table is None else table, *given[4:])
    with pytest.raises(ValueError, match=match):
        launch.index_scores(*arguments, columns=16, block=block)


def test_refuses_what_the_kernel_cannot_do() -> None:
    refused("blocks have 6 entries", block=6)
    refused("blocks have 0 entries", block=0)
    refused("blocks have 4096 entries", block=4096)
    refused("strides", table=torch.zeros(4, 2, dtype=torch.int32).t())
    refused("queries are 34 bytes", query=torch.zeros(1, 3, 34, dtype=torch.uint8))
    odd = Paged(torch.zeros(2, 8 * INDEX.width(96), dtype=torch.uint8), 8, 96, INDEX)
    rest = (ints([0, 1])[None], ints([0]), ints([16]))
    query = packed(torch.Generator().manual_seed(0), 1, 3, dim=96)
    with pytest.raises(ValueError, match="keys have 96 values"):
        launch.index_scores(query, torch.ones(1, 3), odd, *rest, columns=16, block=8)


def test_warm_covers_both_page_sizes_and_candidates() -> None:
    launches = list(launch.warm(RELEASED, torch.device("cpu")))
    assert len({name for name, _ in launches}) == 4
    assert {(one.options["PAGE_SIZE"], one.arguments[6] is None) for _, one in launches} == {
        (256, True),
        (256, False),
        (128, True),
        (128, False),
    }
    assert {one.options["SCALE_START"] for _, one in launches} == {256 * 64, 128 * 64}
