"""Which global entries each row attends to, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from epd_kernels.candidate_blocks.launch import launches_candidate_blocks
from epd_kernels.index_scores.launch import empty, launches_index_scores
from epd_kernels.index_scores.reference import Scores
from epd_kernels.selection.reference import Selection
from epd_kernels.top_entries.launch import launches_top_entries

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.launching import Launch
    from epd_kernels.paged import Paged

_SCORES: Final = 1 << 26  # held at once: 256 MiB of float32
_ALIGNED: Final = 16  # rows: chunks begin where the first row's alignment holds again


def select_entries(  # noqa: PLR0917 -- tensors come in the order of every engine's call
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
) -> Selection:
    """Score all visible entries, or those of the candidate blocks, and keep the best: `reference.select_entries`.

    As many entries are scored as the table has room for, so that no size need come back from the GPU: pass a table no
    wider than the longest request needs.

    Raises:
        ValueError: Both `blocks` and `candidates` are given, or sizes or formats that the kernels do not know.
    """
    selection, launches = launches_select_entries(
        query,
        weights,
        keys,
        table,
        requests,
        visible,
        count=count,
        block=block,
        blocks=blocks,
        candidates=candidates,
    )
    for launch in launches:
        launch.run()
    return selection


def launches_select_entries(  # noqa: PLR0917 -- as `select_entries`
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
) -> tuple[Selection, list[Launch]]:
    """The result, not yet filled, and what fills it, in this order: chunks of rows share the room for their scores.

    Raises:
        ValueError: As of `select_entries`.
    """
    if blocks is not None and candidates is not None:
        raise ValueError("a row that is bound to candidate blocks cannot publish any: give blocks or candidates")
    rows, device = len(query), query.device
    columns = table.shape[1] * keys.page_size if candidates is None else candidates.shape[1] * block
    step = min(rows, max(_ALIGNED, _SCORES // max(columns, 1) // _ALIGNED * _ALIGNED))
    room = empty(step, columns, block, device)
    weights = weights.to(torch.float32)
    requests, visible = requests.contiguous(), visible.contiguous()
    entries = torch.empty(rows, count, dtype=torch.int32, device=device)
    result = None if blocks is None else torch.empty(rows, blocks, dtype=torch.int32, device=device)
    launches = []
    for start in range(0, rows, max(step, 1)):
        part = slice(start, min(start + step, rows))
        size = part.stop - start
        allowed = None if candidates is None else candidates[part]
        scores, scoring = launches_index_scores(
            query[part],
            weights[part],
            keys,
            table,
            requests[part],
            visible[part],
            columns=columns,
            block=block,
            candidates=allowed,
            out=Scores(room.values[:size], room.maxima[:size]),
        )
        _, choice = launches_top_entries(scores.values, count=count, candidates=allowed, block=block, out=entries[part])
        launches += scoring + choice
        if result is not None and blocks is not None:
            _, choice = launches_candidate_blocks(
                scores.maxima, visible[part], block=block, count=blocks, out=result[part]
            )
            launches += choice
    return Selection(entries, result), launches
