from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from epd_sglang.window_pool.extent import WINDOW, Extent, windows

PAGE = 256


@dataclass(frozen=True)
class Row:
    request: int
    position: int


@st.composite
def steps(draw: st.DrawFn) -> list[Extent]:
    extents = []
    for _ in range(draw(st.integers(1, 4))):
        prefix = PAGE * draw(st.integers(0, 4))
        rows = draw(st.integers(1, 700))
        rest = draw(st.sampled_from([0, 1, 100, 300]))
        replayed = draw(st.sampled_from([0, min(prefix, WINDOW)]))
        extents.append(Extent(prefix, rows, replayed, prefix + rows + rest))
    return extents


def rows_of(extents: list[Extent]) -> list[Row]:
    """Every row of a step, in order."""
    return [
        Row(number, position)
        for number, extent in enumerate(extents)
        for position in range(extent.prefix - extent.replayed, extent.prefix + extent.rows)
    ]


@given(steps())
def test_a_window_is_where_its_rows_are(extents: list[Extent]) -> None:
    rows = rows_of(extents)
    for number, end, first in windows(extents, PAGE):
        assert rows[first : first + WINDOW] == [Row(number, position) for position in range(end - WINDOW, end)]


@given(steps())
def test_it_is_the_last_one_that_a_longer_prompt_hits_and_none_that_ran_before(extents: list[Extent]) -> None:
    ends = {number: end for number, end, _ in windows(extents, PAGE)}
    for number, extent in enumerate(extents):
        end = extent.prompt - extent.prompt % PAGE
        new = range(extent.prefix, extent.prefix + extent.rows)
        whole = end > 0 and set(range(end - WINDOW, end)) <= set(new)
        assert ends.get(number) == (end if whole else None)


def test_chunks_that_end_on_pages_leave_every_prompt_one_window() -> None:
    chunks = [Extent(start, min(768, 2000 - start), 0, 2000) for start in range(0, 2000, 768)]
    assert [list(windows([chunk], PAGE)) for chunk in chunks] == [[], [], [(0, 1792, 128)]]
