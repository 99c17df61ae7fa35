"""Every operation with its cost at a case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.kernels import work
from bench.kernels.case import kept
from epd_kernels.formats.reference import INDEX, MAIN, WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.kernels.case import Case
    from bench.kernels.cost import Cost
    from epd_kernels.sizes import Sizes

    Counted = Callable[[Case, Sizes], Cost]


@dataclass(frozen=True)
class Operation:
    """One line of the report.

    Attributes:
        name: Of the function, and which use of it.
        least: Its cost; where rows choose pool rows of their own (selections, candidates), none is read for two.
        reused: The same if no pool row ever came from memory twice; None where that makes no difference.
        late: Only layers of the decoder half do it.
        trimmed: Only layers that do not run all rows do it.
    """

    name: str
    least: Counted
    reused: Counted | None = None
    late: bool = False
    trimmed: bool = False

    def occurs(self, case: Case) -> bool:
        """Whether a step like this one does it."""
        return not (self.late and case.ratio > 1) and not (self.trimmed and case.whole)


def _tail_layout(case: Case, sizes: Sizes) -> Cost:
    return work.tail_layout(requests=len(case.extends), rows=case.rows(sizes.window))


def _window_slots(case: Case, sizes: Sizes) -> Cost:
    pages = case.window_pages(sizes.window, sizes.page_size)
    return work.window_slots(rows=case.rows(sizes.window), window=sizes.window, pages=pages)


def _entry_slots(case: Case, sizes: Sizes) -> Cost:
    pages = case.entry_pages(sizes.page_size)
    return work.entry_slots(rows=case.rows(sizes.window), count=sizes.topk, pages=pages)


def _gather_hidden(case: Case, sizes: Sizes) -> Cost:
    return work.gather_rows(rows=case.rows(sizes.window), width=work.HALF * sizes.hidden)


def _gather_streams(case: Case, sizes: Sizes) -> Cost:
    return work.gather_rows(rows=case.rows(sizes.window), width=work.HALF * sizes.streams * sizes.hidden)


def _attend(case: Case, sizes: Sizes, **entries: int) -> Cost:
    return work.attend(
        rows=case.rows(sizes.window),
        heads=sizes.heads,
        dim=sizes.head_dim,
        window_pairs=case.window_pairs(sizes.window),
        window_rows=case.window_rows(sizes.window),
        **entries,
    )


def _attend_window(case: Case, sizes: Sizes) -> Cost:
    return _attend(case, sizes)


def _selected(case: Case, sizes: Sizes) -> int:
    return case.seen(sizes.window, lambda seen: min(seen, sizes.topk))


def _attend_both(case: Case, sizes: Sizes, entry_rows: int) -> Cost:
    return _attend(case, sizes, topk=sizes.topk, entry_pairs=_selected(case, sizes), entry_rows=entry_rows)


def _attend_apart(case: Case, sizes: Sizes) -> Cost:
    return _attend_both(case, sizes, _selected(case, sizes))


def _attend_reused(case: Case, sizes: Sizes) -> Cost:
    return _attend_both(case, sizes, min(_selected(case, sizes), sum(case.entries())))


def _pack_window(case: Case, sizes: Sizes) -> Cost:
    return work.pack(rows=case.rows(sizes.window), dim=sizes.head_dim, codec=WINDOW)


def _pack_main(case: Case, sizes: Sizes) -> Cost:
    return work.pack(rows=case.new_entries(), dim=sizes.head_dim, codec=MAIN)


def _pack_index(case: Case, sizes: Sizes) -> Cost:
    return work.pack(rows=case.new_entries(), dim=sizes.index_dim, codec=INDEX)


def _unpack_window(case: Case, sizes: Sizes) -> Cost:
    return work.unpack(rows=case.rows(sizes.window), dim=sizes.head_dim, codec=WINDOW)


def _unpack_main(case: Case, sizes: Sizes) -> Cost:
    return work.unpack(rows=_selected(case, sizes), dim=sizes.head_dim, codec=MAIN)


def _unpack_main_reused(case: Case, sizes: Sizes) -> Cost:
    rows = _selected(case, sizes)
    return work.unpack(rows=rows, dim=sizes.head_dim, codec=MAIN, pool_rows=min(rows, sum(case.entries())))


def _unpack_index(case: Case, sizes: Sizes) -> Cost:
    return work.unpack(rows=case.new_entries(), dim=sizes.index_dim, codec=INDEX)


def _scores(case: Case, sizes: Sizes, **keys: int) -> Cost:
    return work.index_scores(
        rows=case.rows(sizes.window),
        heads=sizes.index_heads,
        dim=sizes.index_dim,
        block=sizes.block,
        pages=case.entry_pages(sizes.page_size),
        **keys,
    )


def _index_scores(case: Case, sizes: Sizes) -> Cost:
    entries = case.entries()
    return _scores(case, sizes, pairs=case.seen(sizes.window), key_rows=sum(entries), columns=max(entries))


def _candidate_pairs(case: Case, sizes: Sizes) -> int:
    return case.seen(sizes.window, lambda seen: kept(seen, sizes))


def _rescore(case: Case, sizes: Sizes, key_rows: int) -> Cost:
    columns, pairs = sizes.blocks * sizes.block, _candidate_pairs(case, sizes)
    return _scores(case, sizes, pairs=pairs, key_rows=key_rows, columns=columns, candidates=sizes.blocks)


def _rescore_apart(case: Case, sizes: Sizes) -> Cost:
    return _rescore(case, sizes, _candidate_pairs(case, sizes))


def _rescore_reused(case: Case, sizes: Sizes) -> Cost:
    return _rescore(case, sizes, min(_candidate_pairs(case, sizes), sum(case.entries())))


def _candidate_blocks(case: Case, sizes: Sizes) -> Cost:
    blocks = -(-max(case.entries()) // sizes.block)
    return work.candidate_blocks(rows=case.rows(sizes.window), blocks=blocks, count=sizes.blocks)


def _top_entries(case: Case, sizes: Sizes) -> Cost:
    return work.top_entries(rows=case.rows(sizes.window), columns=max(case.entries()), count=sizes.topk)


def _top_candidates(case: Case, sizes: Sizes) -> Cost:
    return work.top_entries(
        rows=case.rows(sizes.window),
        columns=sizes.blocks * sizes.block,
        count=sizes.topk,
        candidates=sizes.blocks,
    )


def _pool_pairs(case: Case, sizes: Sizes) -> Cost:
    firsts = [length - extend for length, extend in zip(case.lengths, case.extends, strict=True)]
    return work.pool_pairs(
        tokens=sum(case.extends),
        entries=sum(length // 2 - first // 2 for length, first in zip(case.lengths, firsts, strict=True)),
        requests=len(case.extends),
        waiting=sum(first % 2 for first in firsts),
        dim=sizes.head_dim,
    )


OPERATIONS: Final = (
    Operation("tail_layout", _tail_layout),
    Operation("window_slots", _window_slots),
    Operation("entry_slots", _entry_slots),
    Operation("gather_rows, hidden", _gather_hidden, trimmed=True),
    Operation("gather_rows, streams", _gather_streams, trimmed=True),
    Operation("attend, window", _attend_window),
    Operation("attend, window and entries", _attend_apart, _attend_reused),
    Operation("pack, window", _pack_window),
    Operation("pack, main", _pack_main),
    Operation("pack, index", _pack_index),
    Operation("unpack, window", _unpack_window),
    Operation("unpack, main selected", _unpack_main, _unpack_main_reused),
    Operation("unpack, index", _unpack_index),
    Operation("index_scores", _index_scores),
    Operation("index_scores, candidates", _rescore_apart, _rescore_reused, late=True),
    Operation("candidate_blocks", _candidate_blocks, late=True),
    Operation("top_entries", _top_entries),
    Operation("top_entries, candidates", _top_candidates, late=True),
    Operation("pool_pairs", _pool_pairs),
)


def find(name: str) -> Operation:
    """One operation.

    Raises:
        KeyError: There is none of this name.
    """
    return {operation.name: operation for operation in OPERATIONS}[name]
