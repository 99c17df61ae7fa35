"""How the operations are called: what torch and Triton must have in common, for the type checker to compare.

Each folder's `reference` says what its operation does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

# ruff: noqa: D102, PLR0917 -- documented and ordered where they are defined

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from epd_kernels.attention.reference import Attended
    from epd_kernels.compressor.pairs import Pairs
    from epd_kernels.index_scores.reference import Scores
    from epd_kernels.paged import Paged
    from epd_kernels.selection.reference import Selection
    from epd_kernels.tail_layout.policy import Policy
    from epd_kernels.tail_layout.reference import Layout
    from epd_kernels.window_slots.reference import Slots


class TailLayout(Protocol):
    """`tail_layout.reference` says what it does."""

    def __call__(
        self,
        extends: Tensor,
        lengths: Tensor,
        bases: Tensor,
        whole: Tensor,
        *,
        window: int,
        policy: Policy,
        capacity: int,
    ) -> Layout: ...


class WindowSlots(Protocol):
    """`window_slots.reference` says what it does."""

    def __call__(
        self, positions: Tensor, floors: Tensor, requests: Tensor, table: Tensor, *, page_size: int, window: int
    ) -> Slots: ...


class EntrySlots(Protocol):
    """`window_slots.reference` says what it does."""

    def __call__(self, entries: Tensor, requests: Tensor, table: Tensor, *, page_size: int) -> Tensor: ...


class GatherRows(Protocol):
    """`row_gather.reference` says what it does."""

    def __call__(self, sources: Sequence[Tensor], rows: Tensor) -> list[Tensor]: ...


class Pack(Protocol):
    """`formats.reference` says what it does."""

    def __call__(self, values: Tensor, pool: Paged, slots: Tensor) -> None: ...


class Unpack(Protocol):
    """`formats.reference` says what it does."""

    def __call__(self, pool: Paged, slots: Tensor, dtype: torch.dtype) -> Tensor: ...


class PoolPairs(Protocol):
    """`compressor.reference` says what it does."""

    def __call__(
        self,
        projected: Tensor,
        starts: Tensor,
        firsts: Tensor,
        pending: Tensor,
        waiting: Tensor,
        norm_weight: Tensor,
        eps: float,
        *,
        capacity: int,
    ) -> Pairs: ...


class Attend(Protocol):
    """`attention.reference` says what it does."""

    def __call__(
        self,
        query: Tensor,
        window: Paged,
        slots: Slots,
        entries: Paged | None,
        selected: Tensor | None,
        sink: Tensor,
        *,
        scale: float,
    ) -> Attended: ...


class IndexScores(Protocol):
    """`index_scores.reference` says what it does."""

    def __call__(
        self,
        query: Tensor,
        weights: Tensor,
        keys: Paged,
        table: Tensor,
        requests: Tensor,
        visible: Tensor,
        *,
        columns: int,
        block: int,
        candidates: Tensor | None = None,
    ) -> Scores: ...


class CandidateBlocks(Protocol):
    """`candidate_blocks.reference` says what it does."""

    def __call__(self, maxima: Tensor, visible: Tensor, *, block: int, count: int) -> Tensor: ...


class TopEntries(Protocol):
    """`top_entries.reference` says what it does."""

    def __call__(self, values: Tensor, *, count: int, candidates: Tensor | None = None, block: int) -> Tensor: ...


class SelectEntries(Protocol):
    """`selection.reference` says what it does."""

    def __call__(
        self,
        query: Tensor,
        weights: Tensor,
        keys: Paged,
        table: Tensor,
        requests: Tensor,
        visible: Tensor,
        *,
        count: int,
        block: int,
        blocks: int | None,
        candidates: Tensor | None,
    ) -> Selection: ...
