"""Selections: kernels and torch against one number at a time, and against themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.formats.reference import Codec
from epd_kernels.index_scores import reference as index_scores
from epd_kernels.selection import launch, reference
from tests.kernels import oracle_selection as oracle
from tests.kernels.scoring import Step, step, steps

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

    from epd_kernels.selection.reference import Selection

OPERATIONS = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])


def choose(
    operation: ModuleType,
    given: Step,
    *,
    count: int,
    block: int,
    blocks: int | None = None,
    candidates: Tensor | None = None,
) -> Selection:
    actual: Selection = operation.select_entries(
        *given.arguments(), count=count, block=block, blocks=blocks, candidates=candidates
    )
    assert actual.entries.dtype == torch.int32
    assert actual.entries.shape == (len(given.requests), count)
    return actual


@settings(max_examples=15)
@given(given=steps(), count=st.integers(1, 12), block=st.sampled_from([1, 4, 8]), blocks=st.integers(1, 6))
def test_selections_equal_the_oracle(given: Step, count: int, block: int, blocks: int) -> None:
    scores = given.scores(given.room)
    chosen = [oracle.best(line, count) for line in scores]
    allowed = [
        oracle.best_blocks(oracle.maxima(line, block), seen, block, blocks)
        for line, seen in zip(scores, given.visible, strict=True)
    ]
    inside = [oracle.best(oracle.only(line, kept, block), count) for line, kept in zip(scores, allowed, strict=True)]
    for operation in (reference, launch):
        first = choose(operation, given, count=count, block=block, blocks=blocks)
        assert first.entries.tolist() == chosen
        assert first.candidates is not None
        assert first.candidates.dtype == torch.int32
        assert first.candidates.tolist() == allowed
        again = choose(operation, given, count=count, block=block, candidates=first.candidates)
        assert again.candidates is None
        assert again.entries.tolist() == inside


def ragged(rows: int, width: int = 12, heads: int = 4) -> Step:
    """Rows of two requests and padding, each seeing another number of entries."""
    pages = [list(range(width)), list(range(width, 0, -1))]
    requests = [-1 if row % 7 == 6 else int(row > rows // 2) for row in range(rows)]
    return step(rows, requests, [(row * 11) % (width * 8 + 1) for row in range(rows)], pages, heads=heads)


@OPERATIONS
def test_candidates_that_hold_the_best_change_nothing(operation: ModuleType) -> None:
    given, count, block = ragged(28), 10, 4
    free = choose(operation, given, count=count, block=block)
    kept = 0
    for blocks in (4, 8, 24):
        candidates = choose(operation, given, count=count, block=block, blocks=blocks).candidates
        assert candidates is not None
        bound = choose(operation, given, count=count, block=block, candidates=candidates)
        for row in range(len(given.requests)):
            needed = {entry // block for entry in free.entries[row].tolist() if entry >= 0}
            if needed <= set(candidates[row].tolist()):
                assert torch.equal(bound.entries[row], free.entries[row])
                kept += bool(needed)
        if blocks == 24:  # all there are
            assert torch.equal(bound.entries, free.entries)
    assert 24 < kept < 3 * 24  # blocks were lost, and were not


@OPERATIONS
def test_no_rows(operation: ModuleType) -> None:
    nothing = step(0, [], [], [[0, 1]])
    actual = choose(operation, nothing, count=5, block=8, blocks=3)
    assert actual.candidates is not None
    assert actual.candidates.shape == (0, 3)


@OPERATIONS
def test_rows_that_see_nothing_choose_nothing(operation: ModuleType) -> None:
    blind = step(1, [0, 0, -1], [0, 0, 9], [[0, 1]])
    actual = choose(operation, blind, count=5, block=8, blocks=3)
    assert actual.candidates is not None
    assert actual.entries.eq(-1).all()
    assert actual.candidates.eq(-1).all()
    again = choose(operation, blind, count=5, block=8, candidates=actual.candidates)
    assert again.entries.eq(-1).all()


@OPERATIONS
@pytest.mark.parametrize("blocks", [None, 3])
def test_chunks_of_rows_change_nothing(operation: ModuleType, blocks: int | None) -> None:
    given = ragged(40)
    whole = choose(operation, given, count=9, block=8, blocks=blocks)
    with patch.object(launch, "_SCORES", 16 * given.room), patch.object(index_scores, "_PRODUCTS", 5 * 4 * given.room):
        if operation is launch:
            _, launches = launch.launches_select_entries(
                *given.arguments(), count=9, block=8, blocks=blocks, candidates=None
            )
            assert len(launches) == 3 * (2 if blocks is None else 3)
        parts = choose(operation, given, count=9, block=8, blocks=blocks)
        assert torch.equal(parts.entries, whole.entries)
        if blocks is not None:
            assert parts.candidates is not None
            assert whole.candidates is not None
            assert torch.equal(parts.candidates, whole.candidates)
            bound = choose(operation, given, count=9, block=8, candidates=whole.candidates)
    if blocks is not None:
        once = choose(operation, given, count=9, block=8, candidates=whole.candidates)
        assert torch.equal(bound.entries, once.entries)


def test_the_released_sizes() -> None:
    # 32 heads of 128 values, 512 entries of 8,192 and more; blocks of 8.
    pages = [list(range(35))]
    given = step(5, [0] * 3, [8960, 8197, 100], pages, heads=32, dim=128, page_size=256, planar=True)
    actual = [choose(one, given, count=512, block=8, blocks=1024) for one in (reference, launch)]
    assert torch.equal(actual[0].entries, actual[1].entries)
    assert actual[0].candidates is not None
    assert actual[1].candidates is not None
    assert torch.equal(actual[0].candidates, actual[1].candidates)
    assert 8196 // 8 in actual[0].candidates[1].tolist()
    bound = [choose(one, given, count=512, block=8, candidates=actual[0].candidates) for one in (reference, launch)]
    assert torch.equal(bound[0].entries, bound[1].entries)


def test_torch_decodes_the_keys_of_a_request_once() -> None:
    given = step(6, [0] * 300 + [1] * 200, [16] * 500, [[0, 1], [2, 3]])
    unpack, decoded = Codec.unpack, []

    def counted(codec: Codec, rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        decoded.append(tuple(rows.shape))
        return unpack(codec, rows, dim, dtype)

    with patch.object(Codec, "unpack", counted):
        choose(reference, given, count=4, block=8)
    assert [shape for shape in decoded if len(shape) == 2] == [(16, 17), (16, 17)]
    assert max(shape[0] for shape in decoded) == 128


def test_torch_computes_in_the_type_of_the_weights() -> None:
    given = ragged(20)
    wide = reference.select_entries(*given.arguments(torch.float64), count=9, block=8, blocks=None, candidates=None)
    assert torch.equal(wide.entries, choose(launch, given, count=9, block=8).entries)


@OPERATIONS
def test_refuses_to_publish_what_is_bound(operation: ModuleType) -> None:
    given = step(7, [0], [8], [[0]])
    candidates = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="give blocks or candidates"):
        choose(operation, given, count=4, block=8, blocks=1, candidates=candidates)
