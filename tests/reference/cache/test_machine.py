"""The prefix tree and the pools against the ledger, while requests begin, run, finish and are aborted in any order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.prefix import PrefixLease, PrefixTree
from epd_workers.reference.cache.sequence import Sequence
from tests.reference.cache.ledger import Ledger, Loan
from tests.support.reference.rows import check_entries, check_windows, geometry, write_rows

if TYPE_CHECKING:
    from epd_workers.reference.cache.node import Node

PAGE = 4
WINDOW = 6  # reaches into the middle of a page
# Prompts leave one long text at a page or within one, and go on with one of three letters: prefixes meet and part.
TEXT = tuple(range(10, 34))
salts = st.sampled_from(["", "", "", "other"])
prompts = st.builds(
    lambda kept, letter, more: (*TEXT[:kept], *(letter,) * more),
    st.sampled_from([0, 4, 8, 8, 12, 14, 16, 20, 24]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4, 5, 8]),
)


@dataclass(eq=False)
class Running:
    key: tuple[int, ...]
    sequence: Sequence
    loan: Loan
    reach: int  # first position whose window row it may read
    salt: str


class PrefixMachine(RuleBasedStateMachine):
    @initialize(
        pages=st.integers(9, 40),
        windows=st.integers(9, 40),
        page_cap=st.integers(0, 40),
        window_cap=st.integers(0, 40),
    )
    def start(self, pages: int, windows: int, page_cap: int, window_cap: int) -> None:
        sizes = geometry(PAGE, window=WINDOW)
        self.pool = KvPool(sizes, pages, windows)
        self.tree = PrefixTree(
            self.pool, page_cap=page_cap * sizes.page_bytes, window_cap=window_cap * sizes.window_page_bytes
        )
        self.ledger = Ledger(PAGE, WINDOW, page_cap, window_cap)
        self.running: list[Running] = []

    @rule(key=prompts, salt=salts, need_window=st.booleans(), rerun=st.sampled_from([0, 1, WINDOW]))
    def begin(self, key: tuple[int, ...], salt: str, need_window: bool, rerun: int) -> None:
        self._begin(key, salt, need_window=need_window, rerun=rerun)

    @rule(key=prompts, salt=salts, need_window=st.booleans(), keep=st.booleans())
    def serve(self, key: tuple[int, ...], salt: str, need_window: bool, keep: bool) -> None:
        """A whole request at once, so that the tree fills."""
        run = self._begin(key, salt, need_window=need_window, rerun=1)
        if run is None:
            return
        if self._extend(run, len(key), release=False):
            self._insert(run, windows=True)
        if not keep:
            self._end(run)

    def _begin(self, key: tuple[int, ...], salt: str, *, need_window: bool, rerun: int) -> Running | None:
        match = self.tree.match(key, salt)
        tokens = self.tree.usable(match, need_window=need_window, rerun=rerun)
        assert tokens == self.ledger.usable(key, salt, rerun, need_window=need_window)
        replayed = max(0, tokens - WINDOW)
        replay = 0 if need_window else (tokens - replayed // PAGE * PAGE) // PAGE
        if not self._make_room(0, replay):
            return None
        match = self.tree.match(key, salt)
        tokens = self.tree.usable(match, need_window=need_window, rerun=rerun)
        sequence = Sequence(self.pool)
        self.tree.acquire(sequence, match, tokens, windows=need_window)
        loan = self.ledger.acquire(key, salt, tokens, windows=need_window)
        marks = [entry.exact for entry in loan.entries]
        assert sequence.exact_tokens == (None if all(marks) else marks.index(False) * PAGE)
        replayed = max(0, tokens - WINDOW)
        if not need_window:
            sequence.reserve_windows(replayed)
            write_rows(sequence, key, replayed, tokens, entries=False)
            if replayed:
                sequence.approximate(tokens)
        run = Running(key, sequence, loan, replayed, salt)
        self.running.append(run)
        return run

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.sampled_from([1, 3, 4, 9, 16, 32]), release=st.booleans())
    def extend(self, data: st.DataObject, tokens: int, release: bool) -> None:
        self._extend(data.draw(st.sampled_from(self.running)), tokens, release=release)

    def _extend(self, run: Running, tokens: int, *, release: bool) -> bool:
        sequence = run.sequence
        stop = min(len(run.key), sequence.length + tokens)
        pages = -(-stop // PAGE) - len(sequence.pages)
        if not self._make_room(pages, pages):
            return False
        sequence.reserve(stop)
        start = max(run.reach, sequence.length - WINDOW)
        check_windows(self.pool, run.key, sequence.window_pages, start, sequence.length)
        check_entries(self.pool, run.key, sequence.pages, sequence.length)
        write_rows(sequence, run.key, sequence.length, stop)
        sequence.advance(stop - sequence.length)
        if release:
            self._release_windows(run)
        return True

    @precondition(lambda self: self.running)
    @rule(data=st.data(), windows=st.booleans())
    def insert(self, data: st.DataObject, windows: bool) -> None:
        self._insert(data.draw(st.sampled_from(self.running)), windows=windows)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), windows=st.booleans())
    def finish(self, data: st.DataObject, windows: bool) -> None:
        run = data.draw(st.sampled_from(self.running))
        self._insert(run, windows=windows)
        self._end(run)

    @precondition(lambda self: len(self.running) > 2)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self.running)))

    @rule(pages=st.integers(0, 6), windows=st.integers(0, 6))
    def make_room(self, pages: int, windows: int) -> None:
        self._make_room(pages, windows)

    @precondition(lambda self: self.ledger.held_pages > 9)
    @rule()
    def flush(self) -> None:
        self.tree.clear()
        self.ledger.clear()

    @rule(key=prompts, salt=salts)
    def match(self, key: tuple[int, ...], salt: str) -> None:
        actual, expected = self.tree.match(key, salt), self.ledger.match(key, salt)
        assert (actual.key_tokens, actual.tokens) == (len(key), PAGE * len(expected))
        assert [page >= 0 for page in actual.window_pages] == [entry.window for entry in expected]
        check_entries(self.pool, key, actual.pages, actual.tokens)
        for index, page in enumerate(actual.window_pages):
            if page >= 0:
                check_windows(self.pool, key, actual.window_pages, index * PAGE, (index + 1) * PAGE)
        reach = actual.window_tokens_from // PAGE
        assert all(page >= 0 for page in actual.window_pages[reach:])
        assert not reach or actual.window_pages[reach - 1] < 0

    @invariant()
    def every_page_has_one_owner(self) -> None:
        nodes = self._nodes()
        owned = [page for run in self.running for page in run.sequence.pages[run.sequence.borrowed :]]
        pages = owned + [node.page for node in nodes]
        own_windows = [
            page
            for run in self.running
            for index, page in enumerate(run.sequence.window_pages)
            if page >= 0 and index not in run.loan.windows
        ]
        windows = own_windows + [node.window for node in nodes if node.window >= 0]
        for held, allocator in ((pages, self.pool.pages), (windows, self.pool.window_pages)):
            assert len(set(held)) == len(held)
            assert all(0 <= page < allocator.count for page in held)
            assert len(held) + allocator.free_count == allocator.count

    @invariant()
    def tree_equals_ledger(self) -> None:
        expected = [*self.ledger.entries.values(), *self.ledger.flushed]
        assert sorted((entry.window, entry.locks, entry.window_locks, entry.exact) for entry in expected) == sorted(
            (node.window >= 0, node.locks, node.window_locks, node.exact) for node in self._nodes()
        )
        for run in self.running:
            lease = run.sequence.lease
            nodes = lease.nodes if isinstance(lease, PrefixLease) else []
            assert run.sequence.pages[: len(nodes)] == [node.page for node in nodes]
            assert all(run.sequence.window_pages[index] == nodes[index].window for index in run.loan.windows)
            assert [node.locks for node in nodes] == [entry.locks for entry in run.loan.entries]

    @invariant()
    def tables_follow_the_pages(self) -> None:
        for run in self.running:
            assert run.sequence.page_table.tolist() == run.sequence.pages
            assert run.sequence.window_table.tolist() == run.sequence.window_pages

    @invariant()
    def counters_add_up(self) -> None:
        stats = self.tree.stats
        assert stats.inserted_pages == stats.evicted_pages + stats.flushed_pages + stats.held_pages
        assert stats.inserted_windows == stats.evicted_windows + stats.flushed_windows + stats.held_windows
        held = {"held_pages": self.ledger.held_pages, "held_windows": self.ledger.held_windows}
        assert asdict(stats) == {**dict.fromkeys(asdict(stats), 0), **self.ledger.counts, **held}

    @invariant()
    def caps_hold(self) -> None:
        stats, sizes = self.tree.stats, self.pool.geometry
        assert stats.held_pages * sizes.page_bytes <= self.ledger.page_cap * sizes.page_bytes or not self.ledger.idle()
        assert stats.held_windows <= self.ledger.window_cap or not self.ledger.idle_windows()

    @override
    def teardown(self) -> None:
        for run in list(getattr(self, "running", [])):
            self._end(run)
        if hasattr(self, "tree"):
            self.tree.clear()
            assert self.pool.pages.free_count == self.pool.pages.count
            assert self.pool.window_pages.free_count == self.pool.window_pages.count

    def _make_room(self, pages: int, windows: int) -> bool:
        """Both make room; what the ledger may not evict, the tree must not either."""
        free, free_windows = self.pool.pages.free_count, self.pool.window_pages.free_count
        possible = pages - free <= len(self.ledger.idle()) and windows - free_windows <= len(self.ledger.idle_windows())
        assert self.tree.make_room(pages, windows) == possible
        if not possible:
            assert (free, free_windows) == (self.pool.pages.free_count, self.pool.window_pages.free_count)
            return False
        held = self.ledger.held_windows
        for _ in range(pages - free):
            self.ledger.evict_page()
        while free_windows + held - self.ledger.held_windows < windows:
            self.ledger.evict_window()
        assert self.pool.pages.free_count == max(pages, free)
        assert self.pool.window_pages.free_count >= windows
        return True

    def _insert(self, run: Running, *, windows: bool) -> None:
        sequence = run.sequence
        has = [windows and sequence.window_pages[index] >= 0 for index in range(sequence.length // PAGE)]
        exact = [sequence.has_exact_page(index) for index in range(len(has))]
        before, free = list(sequence.pages), self.pool.pages.free_count
        evicted = self.tree.stats.evicted_pages
        freed = self.tree.insert(run.key, sequence, run.salt, windows=windows)
        assert len(freed) == self.ledger.insert(run.loan, run.key, run.salt, has, exact)
        assert set(before) - set(sequence.pages) <= set(freed)
        assert self.pool.pages.free_count == free + len(freed) + self.tree.stats.evicted_pages - evicted

    def _release_windows(self, run: Running) -> None:
        below = run.sequence.length - WINDOW
        for index in sorted(run.loan.windows):
            if (index + 1) * PAGE <= below:
                self.ledger.drop_window(run.loan, index)
        run.sequence.release_windows(below)

    def _end(self, run: Running) -> None:
        run.sequence.release()
        self.ledger.release(run.loan)
        self.running.remove(run)

    def _nodes(self) -> set[Node]:
        leases = [run.sequence.lease for run in self.running]
        nodes = {node for lease in leases if isinstance(lease, PrefixLease) for node in lease.nodes}
        stack = list(self.tree._root.children.values())
        while stack:
            node = stack.pop()
            nodes.add(node)
            stack += node.children.values()
        return nodes


PrefixMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)
TestPrefixMachine = PrefixMachine.TestCase
