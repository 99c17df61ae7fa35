"""Small steps of every operation, ragged and with padding, at whatever sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from epd_kernels.formats.reference import INDEX, MAIN, WINDOW
from epd_kernels.paged import Paged
from epd_kernels.sizes import Sizes
from epd_kernels.tail_layout.policy import Policy
from epd_kernels.window_slots.reference import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from epd_kernels.dispatch import Operations
    from epd_kernels.formats.reference import Codec

SMALL = Sizes(
    hidden=40,
    streams=2,
    heads=4,
    head_dim=32,
    window=8,
    index_heads=2,
    index_dim=32,
    topk=8,
    block=4,
    blocks=4,
    page_size=8,
)
"""Of a model that the interpreter can run."""


@dataclass(frozen=True)
class Case:
    """One call of an operation.

    Attributes:
        name: Of the operation and the case.
        run: Calls it with some implementation; everything that it gives and everything that it changed.
    """

    name: str
    run: Callable[[Operations], list[Tensor]]


def cases(sizes: Sizes, seed: int = 0) -> Iterator[Case]:
    """Cases of every operation."""
    maker = Maker(sizes, torch.Generator().manual_seed(seed))
    yield from maker.layouts()
    yield from maker.slots()
    yield from maker.gathers()
    yield from maker.formats()
    yield from maker.poolings()
    yield from maker.attentions()
    yield from maker.selections()


def ints(*values: int) -> Tensor:
    """As the kernels take them."""
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True)
class Maker:
    """Makes arguments.

    Attributes:
        sizes: Of the model.
        generator: Of all that is random.
    """

    sizes: Sizes
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        """Values."""
        return torch.randn(shape, generator=self.generator)

    def below(self, end: int, *shape: int) -> Tensor:
        """Integers from 0 to end - 1."""
        return torch.randint(0, end, shape, generator=self.generator, dtype=torch.int32)

    def pool(self, codec: Codec, dim: int, *, pages: int, page_size: int, planar: bool) -> Paged:
        """A pool of packed rows, its pages apart."""
        rows = codec.pack(self.normal(pages, page_size, dim))
        if planar:
            codes = codec.code_bytes(dim)
            rows = torch.cat((rows[..., :codes].flatten(1), rows[..., codes:].flatten(1)), 1)
        data = torch.zeros(pages, rows.flatten(1).shape[1] + 16, dtype=torch.uint8)
        data[:, :-16] = rows.flatten(1)
        return Paged(data, page_size, dim, codec, planar)

    def table(self, requests: int, pages: int) -> Tensor:
        """Pages [requests, pages] of each request, in no order, the last one missing."""
        order = torch.randperm(requests * pages, generator=self.generator).int().view(requests, pages)
        order[:, -1] = -1
        return order

    def layouts(self) -> Iterator[Case]:
        """Of a step with every kind of request."""
        window = self.sizes.window
        extends = [0, 1, window - 1, window, window + 1, 3 * window, 1]
        lengths = [4, 9, window - 1, 2 * window, window + 1, 5 * window + 3, 30]
        flags = torch.tensor([False, False, False, False, False, True, True])
        total = sum(end if whole else min(end, window) for end, whole in zip(extends, flags.tolist(), strict=True))
        given = (ints(*extends), ints(*lengths), ints(0, 3, 0, 0, 0, 2, 0), flags)
        for policy in Policy:

            def run(to: Operations, policy: Policy = policy) -> list[Tensor]:
                made = to.tail_layout(*given, window=window, policy=policy, capacity=total + 5)
                return [made.rows, made.positions, made.floors, made.requests, made.starts]

            yield Case(f"tail_layout {policy.name}", run)

    def slots(self) -> Iterator[Case]:
        """Of windows at page edges, and of entries."""
        page, window = self.sizes.page_size, self.sizes.window
        table = self.table(2, 4)
        positions = ints(0, window - 1, page - 1, page, 2 * page + 1, 3 * page, 4 * page - 1, -1)
        floors, requests = ints(0, 2, 1, page, page + 3, 0, 3 * page, 0), ints(0, 1, 0, 1, 0, 1, 0, -1)

        def windows(to: Operations) -> list[Tensor]:
            made = to.window_slots(positions, floors, requests, table, page_size=page, window=window)
            return [made.slots, made.counts]

        yield Case("window_slots", windows)
        entries = self.below(4 * page, len(positions), self.sizes.topk)
        entries[:, -3:] = -1
        yield Case("entry_slots", lambda to: [to.entry_slots(entries, requests, table, page_size=page)])

    def gathers(self) -> Iterator[Case]:
        """Of states of several types, with absent rows."""
        count = 11
        sources = [
            self.normal(count, self.sizes.hidden).bfloat16(),
            self.normal(count, self.sizes.streams, self.sizes.hidden),
            self.below(2, count).bool(),
        ]
        rows = torch.tensor([3, -1, 0, 10, 10, 7, -1])
        yield Case("gather_rows", lambda to: to.gather_rows(sources, rows))

    def formats(self) -> Iterator[Case]:
        """Of rows packed into pools, with rows dropped, and read back."""
        for codec, dim in ((WINDOW, self.sizes.head_dim), (MAIN, self.sizes.head_dim), (INDEX, self.sizes.index_dim)):
            for planar in (False, True):
                pool = self.pool(codec, dim, pages=3, page_size=self.sizes.page_size, planar=planar)
                values = self.normal(7, dim).bfloat16()
                order = torch.randperm(pool.slots, generator=self.generator)[:7].int()
                order[2] = -1

                def pack(
                    to: Operations, pool: Paged = pool, values: Tensor = values, order: Tensor = order
                ) -> list[Tensor]:
                    own = Paged(pool.data.clone(), pool.page_size, pool.dim, pool.codec, pool.planar)
                    to.pack(values, own, order)
                    return [own.data]

                def unpack(to: Operations, pool: Paged = pool, order: Tensor = order) -> list[Tensor]:
                    return [to.unpack(pool, order, torch.bfloat16)]

                kind = f"{codec.name} {'planar' if planar else 'row by row'}"
                yield Case(f"pack {kind}", pack)
                yield Case(f"unpack {kind}", unpack)

    def poolings(self) -> Iterator[Case]:
        """Of chunks that begin with an even or an odd token, of none, one and more, and padding behind."""
        rows, firsts = [0, 1, 1, 5, 4, 2], ints(2, 4, 7, 9, 6, 3)
        waiting = firsts % 2 == 1
        starts = ints(0, *torch.tensor(rows).cumsum(0).tolist())
        projected = self.normal(sum(rows), 2, self.sizes.head_dim)
        pending = self.normal(len(rows), 2, self.sizes.head_dim)
        weight = self.normal(self.sizes.head_dim)

        def run(to: Operations) -> list[Tensor]:
            made = to.pool_pairs(projected, starts, firsts, pending, waiting, weight, 1e-6, capacity=10)
            return [made.latents, made.entries, made.requests, made.pending, made.waiting]

        yield Case("pool_pairs", run)

    def attentions(self) -> Iterator[Case]:
        """Of one row and of several, with and without entries, of rows that see nothing."""
        sizes = self.sizes
        window, entries = (
            self.pool(codec, sizes.head_dim, pages=4, page_size=sizes.page_size, planar=planar)
            for codec, planar in ((WINDOW, False), (MAIN, True))
        )
        sink = self.normal(sizes.heads)
        for rows in (1, 16):
            query = self.normal(rows, sizes.heads, sizes.head_dim).bfloat16()
            counts = self.below(sizes.window + 1, rows)
            counts[0] = sizes.window
            counts[rows // 2 :][:1] *= int(rows == 1)
            seen = self.below(window.slots, rows, sizes.window)
            slots = Slots(seen.masked_fill(torch.arange(sizes.window) >= counts[:, None], -1), counts)
            selected = self.below(entries.slots, rows, sizes.topk)
            selected[rows // 2 :][:1] = -1
            for pool, chosen in ((None, None), (entries, selected)):

                def run(
                    to: Operations,
                    query: Tensor = query,
                    slots: Slots = slots,
                    pool: Paged | None = pool,
                    chosen: Tensor | None = chosen,
                ) -> list[Tensor]:
                    made = to.attend(query, window, slots, pool, chosen, sink, scale=sizes.head_dim**-0.5)
                    return [made.output, made.lse]

                yield Case(f"attend {rows} rows {'window' if pool is None else 'and entries'}", run)

    def selections(self) -> Iterator[Case]:
        """Of rows that see nothing, part of a block, and all entries; of a padding row; in candidate blocks."""
        sizes = self.sizes
        keys = self.pool(INDEX, sizes.index_dim, pages=8, page_size=sizes.page_size, planar=True)
        table = self.table(2, 4)
        requests = ints(0, 0, 0, 1, 1, 1, -1)
        room = 3 * sizes.page_size
        visible = ints(0, 1, room - 3, room, sizes.block + 1, 2 * sizes.page_size, 0)
        query = INDEX.pack(self.normal(len(requests), sizes.index_heads, sizes.index_dim))
        weights = self.normal(len(requests), sizes.index_heads)
        given = (query, weights, keys, table, requests, visible)
        blocks = torch.arange(sizes.blocks).int().expand(len(requests), -1).clone()
        blocks[:, -1:] = -1

        def scores(to: Operations, candidates: Tensor | None) -> list[Tensor]:
            made = to.index_scores(*given, columns=room, block=sizes.block, candidates=candidates)
            return [made.values, made.maxima]

        yield Case("index_scores", lambda to: scores(to, None))
        yield Case("index_scores in candidates", lambda to: scores(to, blocks))

        def select(to: Operations, count: int | None, candidates: Tensor | None) -> list[Tensor]:
            made = to.select_entries(*given, count=sizes.topk, block=sizes.block, blocks=count, candidates=candidates)
            return [made.entries] if made.candidates is None else [made.entries, made.candidates]

        yield Case("select_entries", lambda to: select(to, None, None))
        yield Case("select_entries and publish", lambda to: select(to, sizes.blocks, None))
        yield Case("select_entries in candidates", lambda to: select(to, None, blocks))
