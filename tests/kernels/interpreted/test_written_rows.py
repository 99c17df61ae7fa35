"""Over many chunk sequences: the late layers never read a row below a floor, nor one that no step has written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from epd_kernels.tail_layout import launch as layout_triton
from epd_kernels.tail_layout import reference as layout_torch
from epd_kernels.tail_layout.policy import Policy
from epd_kernels.window_slots import launch as slots_triton
from epd_kernels.window_slots import reference as slots_torch

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.tail_layout.reference import Layout

WINDOW, PAGE, PAGES = 8, 4, 30  # a sequence has at most 7 steps of 12 rows behind a prefix of 20


@dataclass(frozen=True)
class Operations:
    """Who lays out and walks."""

    layout: Any
    slots: Any


TORCH, TRITON = Operations(layout_torch, slots_torch), Operations(layout_triton, slots_triton)


@dataclass
class Sequences:
    """Many requests side by side, each with its pages somewhere in one pool.

    Attributes:
        count: How many.
        generator: Where chance comes from.
        table: [count, PAGES], a page each, in random order; given up below the last window after every step.
        written: [slots], whether a late layer has run that row.
        lengths: Tokens of each sequence, a prefix that others computed included.
        bases: Where each begins to write.
        rows: Rows that were run.
        reads: Slots that were read.
        unwritten: Those of them that nobody had written, or that have no page.
        below: Those of them below their row's floor.
    """

    count: int
    generator: torch.Generator
    table: Tensor = field(init=False)
    written: Tensor = field(init=False)
    lengths: Tensor = field(init=False)
    bases: Tensor = field(init=False)
    rows: int = 0
    reads: int = 0
    unwritten: int = 0
    below: int = 0

    def __post_init__(self) -> None:
        order = torch.randperm(self.count * PAGES, generator=self.generator)
        self.table = order.int().view(self.count, PAGES)
        self.written = torch.zeros(self.count * PAGES * PAGE, dtype=torch.bool)
        prefixed = self.random(0, 2) == 1
        self.lengths = torch.where(prefixed, self.random(1, 21), 0)
        self.bases = self.lengths.clone()

    def random(self, low: int, high: int) -> Tensor:
        """[count] int32 in low..high - 1."""
        return torch.randint(low, high, (self.count,), generator=self.generator, dtype=torch.int32)

    def step(self, operations: Operations, policy: Policy, *, floored: bool = True) -> Layout:
        """Run a chunk of each: nothing, one row (a decode), all rows, or a tail."""
        kind = self.random(0, 5)
        extends = torch.where(kind == 0, 0, torch.where(kind == 1, 1, self.random(1, 13)))
        whole = (kind == 1) | (kind == 2)
        self.lengths = self.lengths + extends
        tails = torch.where(whole, extends, extends.clamp(max=WINDOW))
        layout: Layout = operations.layout.tail_layout(
            extends, self.lengths, self.bases, whole, window=WINDOW, policy=policy, capacity=int(tails.sum()) + 3
        )
        real = layout.requests >= 0
        pages = self.table[layout.requests[real].long(), (layout.positions[real] // PAGE).long()]
        self.written[(pages * PAGE + layout.positions[real] % PAGE).long()] = True
        floors = layout.floors if floored else torch.zeros_like(layout.floors)
        self._read(operations, layout, floors)
        self._evict()
        return layout

    def _read(self, operations: Operations, layout: Layout, floors: Tensor) -> None:
        actual = operations.slots.window_slots(
            layout.positions, floors, layout.requests, self.table, page_size=PAGE, window=WINDOW
        )
        wanted = torch.arange(WINDOW) < actual.counts[:, None]
        slots = actual.slots[wanted].long()
        assert (actual.slots[~wanted] == -1).all()
        self.rows += int((layout.requests >= 0).sum())
        self.reads += len(slots)
        self.unwritten += int((~self.written[slots] | (slots < 0)).sum())
        self.below += int((self._positions(slots) < layout.floors[:, None].expand(wanted.shape)[wanted]).sum())

    def _positions(self, slots: Tensor) -> Tensor:
        """Which position of its sequence each slot holds."""
        place = torch.zeros(self.count * PAGES, dtype=torch.int64)
        places = torch.arange(PAGES).expand(self.count, PAGES)
        held = self.table >= 0
        place[self.table[held].long()] = places[held]
        return place[slots // PAGE] * PAGE + slots % PAGE

    def _evict(self) -> None:
        """Give up pages that lie wholly below the last window, as servers do after each step."""
        stop = (self.lengths - WINDOW).clamp(min=0) // PAGE
        self.table = torch.where(torch.arange(PAGES) < stop[:, None], -1, self.table)


def run(operations: Operations, policy: Policy, count: int, seed: int, *, floored: bool = True) -> Sequences:
    sequences = Sequences(count, torch.Generator().manual_seed(seed))
    for _ in range(7):
        sequences.step(operations, policy, floored=floored)
    return sequences


@pytest.mark.parametrize("policy", Policy)
def test_twenty_thousand_sequences_read_written_rows_alone(policy: Policy) -> None:
    sequences = run(TORCH, policy, 20_000, seed=0)
    assert sequences.rows > 500_000
    assert sequences.reads > 2_000_000
    assert (sequences.unwritten, sequences.below) == (0, 0)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("seed", range(3))
def test_the_kernels_read_written_rows_alone(policy: Policy, seed: int) -> None:
    sequences = run(TRITON, policy, 60, seed)
    assert sequences.reads > 4_000
    assert (sequences.unwritten, sequences.below) == (0, 0)


@pytest.mark.parametrize("policy", Policy)
def test_without_floors_rows_are_read_that_nobody_wrote(policy: Policy) -> None:
    sequences = run(TORCH, policy, 500, seed=0, floored=False)
    assert sequences.unwritten > 1_000
    assert sequences.below >= sequences.unwritten


def test_policies_read_different_windows() -> None:
    one, other = (run(TORCH, policy, 500, seed=0) for policy in Policy)
    assert one.rows == other.rows
    assert one.reads > other.reads
