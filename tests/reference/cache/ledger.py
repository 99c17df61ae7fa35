"""The prefix tree as a dictionary from prefixes to entries, with every search done by looking at all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

Prefix = tuple[object, tuple[int, ...]]


@dataclass(eq=False)
class Entry:
    prefix: Prefix
    window: bool = False
    locks: int = 0
    window_locks: int = 0
    used: int = 0
    window_used: int = 0
    flushed: bool = False
    exact: bool = True


@dataclass(eq=False)
class Loan:
    """What one request holds of the ledger."""

    entries: list[Entry] = field(default_factory=list)
    windows: set[int] = field(default_factory=set)


class Ledger:
    def __init__(self, page_size: int, window: int, page_cap: int, window_cap: int) -> None:
        self.page_size, self.window = page_size, window
        self.page_cap, self.window_cap = page_cap, window_cap
        self.entries: dict[Prefix, Entry] = {}
        self.flushed: set[Entry] = set()
        self.counts: Counter[str] = Counter()
        self._clock = 0

    def match(self, key: Values[int], salt: str) -> list[Entry]:
        actual: list[Entry] = []
        for pages in range(1, len(key) // self.page_size + 1):
            entry = self.entries.get((salt, tuple(key[: pages * self.page_size])))
            if entry is None:
                break
            actual.append(entry)
        return actual

    def usable(self, key: Values[int], salt: str, rerun: int, *, need_window: bool) -> int:
        match = self.match(key, salt)
        for count in range(len(match), 0, -1):
            tokens = count * self.page_size
            needed = [i for i in range(count) if (i + 1) * self.page_size > tokens - self.window]
            if tokens <= len(key) - rerun and (not need_window or all(match[i].window for i in needed)):
                return tokens
        return 0

    def acquire(self, key: Values[int], salt: str, tokens: int, *, windows: bool) -> Loan:
        loan = Loan()
        for index, entry in enumerate(self.match(key, salt)[: tokens // self.page_size]):
            self._lend(loan, entry, window=windows and (index + 1) * self.page_size > tokens - self.window)
        self.counts["hits" if tokens else "misses"] += 1
        self.counts["hit_tokens"] += tokens
        return loan

    def insert(self, loan: Loan, key: Values[int], salt: str, windows: Values[bool], exact: Values[bool]) -> int:
        """For each page: whether the request has a window page, and whether its page is exact.

        Returns:
            How many pages were double.
        """
        if loan.entries and loan.entries[-1].flushed:
            return 0
        double = 0
        for index in range(len(loan.entries), len(windows)):
            prefix = (salt, tuple(key[: (index + 1) * self.page_size]))
            entry = self.entries.get(prefix)
            if entry is not None and exact[index] and not entry.exact:
                if entry.locks:
                    break
                if entry.window:
                    self._evict_window(entry)
                entry.exact = True
            double += entry is not None
            if entry is None:
                entry = self.entries[prefix] = Entry(prefix, exact=exact[index])
                self.counts["inserted_pages"] += 1
            donated = windows[index] and not entry.window
            entry.window |= donated
            self.counts["inserted_windows"] += donated
            self._lend(loan, entry, window=donated)
        self.counts["deduplicated_pages"] += double
        self.enforce()
        return double

    def drop_window(self, loan: Loan, index: int) -> None:
        loan.windows.remove(index)
        self._return_window(loan.entries[index])
        self.enforce()

    def release(self, loan: Loan) -> None:
        for index in sorted(loan.windows):
            self._return_window(loan.entries[index])
        for entry in reversed(loan.entries):
            entry.locks -= 1
            entry.used = self._tick()
            if entry.flushed and not entry.locks:
                self.flushed.remove(entry)
                self.counts["flushed_pages"] += 1
        self.enforce()

    def idle(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if not entry.locks]

    def idle_windows(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.window and not entry.window_locks]

    def evict_page(self) -> None:
        parents = {(salt, tokens[: -self.page_size]) for salt, tokens in self.entries}
        leaves = [entry for entry in self.idle() if entry.prefix not in parents]
        oldest = min(leaves, key=lambda entry: entry.used)
        if oldest.window:
            self._evict_window(oldest)
        del self.entries[oldest.prefix]
        self.counts["evicted_pages"] += 1

    def evict_window(self) -> None:
        self._evict_window(min(self.idle_windows(), key=lambda entry: entry.window_used))

    def enforce(self) -> None:
        while self.held_pages > self.page_cap and self.idle():
            self.evict_page()
        while self.held_windows > self.window_cap and self.idle_windows():
            self.evict_window()

    def clear(self) -> None:
        for entry in self.entries.values():
            entry.flushed = True
            if not entry.window_locks and entry.window:
                entry.window = False
                self.counts["flushed_windows"] += 1
            if entry.locks:
                self.flushed.add(entry)
            else:
                self.counts["flushed_pages"] += 1
        self.entries = {}

    @property
    def held_pages(self) -> int:
        return len(self.entries) + len(self.flushed)

    @property
    def held_windows(self) -> int:
        return sum(entry.window for entry in (*self.entries.values(), *self.flushed))

    def _lend(self, loan: Loan, entry: Entry, *, window: bool) -> None:
        entry.locks += 1
        if window:
            entry.window_locks += 1
            loan.windows.add(len(loan.entries))
        loan.entries.append(entry)

    def _return_window(self, entry: Entry) -> None:
        entry.window_locks -= 1
        entry.window_used = self._tick()
        if entry.flushed and not entry.window_locks:
            entry.window = False
            self.counts["flushed_windows"] += 1

    def _evict_window(self, entry: Entry) -> None:
        entry.window = False
        self.counts["evicted_windows"] += 1

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
