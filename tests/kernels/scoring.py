"""Steps with index keys for the tests of scores and selections."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from epd_kernels.formats.reference import INDEX
from epd_kernels.paged import Paged
from tests.kernels import oracle_selection as oracle
from tests.kernels.ragged import ints

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Step:
    """Rows that look for entries.

    Values are small dyadic numbers, so that float32 sums are exact in any order and scores tie now and then.

    Attributes:
        rows: Of index keys by slot, uint8 [slots, width].
        query: uint8 [R, heads, width].
        weights: [R, heads].
        pages: Of each request.
        requests: Of each row.
        visible: Of each row.
        dim: Values of a key.
        page_size: Entries of a page.
        planar: The pages' layout.
    """

    rows: Tensor
    query: Tensor
    weights: Tensor
    pages: list[list[int]]
    requests: list[int]
    visible: list[int]
    dim: int
    page_size: int
    planar: bool

    @property
    def room(self) -> int:
        """Entries that the page table has room for."""
        return len(self.pages[0]) * self.page_size

    def arguments(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Paged, Tensor, Tensor, Tensor]:
        """As the operations take them."""
        table = torch.tensor(self.pages, dtype=torch.int32).reshape(len(self.pages), -1)
        return (self.query, self.weights.to(dtype), self.pool(), table, ints(self.requests), ints(self.visible))

    def pool(self) -> Paged:
        """The keys' pages, a few bytes apart."""
        rows = self.rows.unflatten(0, (-1, self.page_size))
        codes = self.dim // 2
        parts = (rows[..., :codes].flatten(1), rows[..., codes:].flatten(1)) if self.planar else (rows.flatten(1),)
        gap = torch.full((len(rows), 16), 255, dtype=torch.uint8)
        return Paged(torch.cat((*parts, gap), 1), self.page_size, self.dim, INDEX, self.planar)

    def scores(self, columns: int) -> list[list[float]]:
        """Each row's scores of entries 0.. by the oracle."""
        actual = []
        known = [oracle.decode(row, self.dim) for row in self.rows.tolist()]
        for row, (request, visible) in enumerate(zip(self.requests, self.visible, strict=True)):
            query = [oracle.decode(head, self.dim) for head in self.query[row].tolist()]
            weights = self.weights[row].tolist()
            line = [-inf] * columns
            for entry in range(min(visible, columns, self.room) if request >= 0 else 0):
                page = self.pages[request][entry // self.page_size]
                if page >= 0:
                    line[entry] = oracle.score(query, weights, known[page * self.page_size + entry % self.page_size])
            actual.append(line)
        return actual


def packed(generator: torch.Generator, *shape: int, dim: int) -> Tensor:
    """Packed rows [*shape, width] with scales of 1/2, 1 and 2."""
    codes = torch.randint(0, 256, (*shape, dim // 2), generator=generator)
    scales = torch.randint(126, 129, (*shape, dim // 32), generator=generator)
    return torch.cat((codes, scales), -1).to(torch.uint8)


def step(
    seed: int,
    requests: list[int],
    visible: list[int],
    pages: list[list[int]],
    *,
    heads: int = 3,
    dim: int = 32,
    page_size: int = 8,
    planar: bool = False,
) -> Step:
    """One with random values."""
    generator = torch.Generator().manual_seed(seed)
    slots = (max(page for line in pages for page in (0, *line)) + 1) * page_size
    weights = torch.randint(-2, 7, (len(requests), heads), generator=generator) / 4
    query = packed(generator, len(requests), heads, dim=dim)
    rows = packed(generator, slots, dim=dim)
    return Step(rows, query, weights, pages, requests, visible, dim, page_size, planar)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Ragged: requests of no rows, of one, of several, apart; padding; pages missing; rows that see nothing."""
    page_size = draw(st.sampled_from([3, 4, 8]))
    width = draw(st.integers(1, 5))
    line = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, -1]), min_size=width, max_size=width)
    pages = draw(st.lists(line, min_size=1, max_size=3))
    room = width * page_size
    requests: list[int] = []
    for _ in range(draw(st.integers(0, 4))):
        requests += [draw(st.integers(-1, len(pages) - 1))] * draw(st.sampled_from([0, 1, 2, 5]))
    seen = st.sampled_from([0, 1, room - 1, room, room + 3]) | st.integers(0, room)
    visible = [draw(seen) for _ in requests]
    return step(
        draw(st.integers(0, 2**32)),
        requests,
        visible,
        pages,
        heads=draw(st.sampled_from([1, 3, 4])),
        page_size=page_size,
        planar=draw(st.booleans()),
    )
