"""All rows of one step, request after request, as tensors that every operation takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from epd_kernels.tail_layout.policy import Policy
from epd_workers.reference.model.replay import tail_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_kernels.dispatch import Operations
    from epd_kernels.tail_layout.reference import Layout
    from epd_kernels.window_slots.reference import Slots
    from epd_workers.reference.model.interface import Extend
    from epd_workers.reference.model.replay import Preset
    from epd_workers.reference.model.rope import Rotation


@dataclass
class Rows:
    """The rows that layers run now.

    Attributes:
        layout: Where they stand.
        image: Marks image positions [R].
        rotations: By compression ratio, of their positions.
        read: The window slots that each reads.
        written: The window slot that each writes [R] int32.
        selected: By index source, slots of the chosen global entries [R, K] int32.
        candidates: Blocks that `Reindex` layers choose from [R, C] int32, once the candidate source has run.
    """

    layout: Layout
    image: Tensor
    rotations: dict[int, Rotation]
    read: Slots
    written: Tensor
    selected: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None


class Fresh(NamedTuple):
    """The rows that write global entries: all but those that run again.

    Attributes:
        rows: [N] int64 among the step's rows.
        positions: [N] int32.
        requests: [N] int32.
        starts: [B + 1] int32; those of request b are starts[b] to starts[b + 1].
        firsts: [B] int32, positions of each request's first one.
    """

    rows: Tensor
    positions: Tensor
    requests: Tensor
    starts: Tensor
    firsts: Tensor


class Layouts(NamedTuple):
    """Which rows run.

    Attributes:
        early: All.
        late: Those of the late layers, and their floors; None where nothing differs.
        kept: How many of each request the last layer runs.
    """

    early: Layout
    late: Layout | None
    kept: list[int]


@dataclass
class Batch:
    """A step.

    Attributes:
        extends: Its requests.
        layouts: Which rows run.
        fresh: The rows that write global entries.
        pages: Global pages of each request [B, P] int32, -1 behind its own.
        windows: Window pages of each, the same.
        rows: Those that layers run now.
    """

    extends: Sequence[Extend]
    layouts: Layouts
    fresh: Fresh
    pages: Tensor
    windows: Tensor
    rows: Rows


def lay_out(operations: Operations, extends: Sequence[Extend], window: int, preset: Preset | None) -> Layouts:
    """Lay out the rows of a step: prompt log-probabilities and answers are never trimmed."""
    sizes = [len(extend.token_ids) for extend in extends]
    flags = [preset is None or extend.all_logits or extend.decode for extend in extends]
    counts, lengths, bases = (
        torch.tensor(values, dtype=torch.int32)
        for values in (
            sizes,
            [extend.end for extend in extends],
            [extend.start if extend.replayed else 0 for extend in extends],
        )
    )
    early = operations.tail_layout(
        counts,
        lengths,
        bases,
        torch.ones(len(sizes), dtype=torch.bool),
        window=window,
        policy=Policy.WINDOW,
        capacity=sum(sizes),
    )
    if preset is None or all(flags):
        return Layouts(early, None, sizes)
    kept = [tail_rows(preset, size, window, whole=flag) for size, flag in zip(sizes, flags, strict=True)]
    late = operations.tail_layout(
        counts,
        lengths,
        bases,
        torch.tensor(flags),
        window=preset.rows or window,
        policy=preset.policy,
        capacity=sum(kept),
    )
    return Layouts(early, late, kept)


def fresh_rows(early: Layout, extends: Sequence[Extend]) -> Fresh:
    """Find the rows that write global entries."""
    firsts = torch.tensor([extend.sequence.length for extend in extends], dtype=torch.int32)
    counts = torch.tensor([0, *(len(extend.token_ids) - extend.replayed for extend in extends)])
    rows = (early.positions >= firsts[early.requests]).nonzero().squeeze(1)
    return Fresh(rows, early.positions[rows], early.requests[rows], counts.cumsum(0).int(), firsts)


def tables(extends: Sequence[Extend]) -> tuple[Tensor, Tensor]:
    """Global and window pages of each request [B, P] int32, -1 behind its own."""
    both = zip(*((extend.sequence.page_table, extend.sequence.window_table) for extend in extends), strict=True)
    pages, windows = (pad_sequence(list(rows), batch_first=True, padding_value=-1) for rows in both)
    return pages, windows
