from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_sglang.encode.grid import Grid
from epd_workers.reference.model import image
from epd_workers.reference.model.config import RELEASED

sizes = st.integers(1, 4000)


@given(st.builds(Grid, st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)))
def test_a_row_survives_the_wire(grid: Grid) -> None:
    assert all(-(2**63) <= value < 2**63 for value in grid.row())
    assert Grid.read(grid.row()) == grid


@given(sizes, sizes)
def test_a_span_is_as_long_as_the_planner_says(width: int, height: int) -> None:
    """Against the Reference engine's planner, which equals the engine's."""
    if max(width, height) > image.MAX_RATIO * min(width, height):
        return
    plan = image.plan(width, height, RELEASED.vision)
    assert Grid(*plan.grid, 0, 0).tokens(RELEASED.vision.downsample_ratio) == plan.span


def test_a_row_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="by 3 numbers, not 4: encoders and prefills must run the same version"):
        Grid.read([27, 27, 5])
