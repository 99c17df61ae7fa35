"""What one request holds of the pools, and its state beside the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from torch import Tensor

    from epd_workers.reference.cache.paged_pool import KvPool


class Lease(Protocol):
    """The leading pages that a sequence borrows from a prefix tree."""

    @property
    def page_count(self) -> int:
        """Pages borrowed: those from 0 on."""

    def has_window(self, index: int) -> bool:
        """Whether the window page at this place is borrowed too."""

    def drop_window(self, index: int) -> None:
        """Give back the window page at this place."""

    def release(self) -> None:
        """Give back everything."""


class Sequence:
    """One request's state.

    Attributes:
        pool: Where its pages lie.
        length: Tokens whose entries are complete.
        pages: Global page of each `page_size` tokens.
        window_pages: Window page of each, -1 where there is none (any more).
        pending: By owner layer of pairs, the float32 (value, gate) of an unpaired last token, each [head_dim].
        history: What Engram must know of the past.
        lease: What it borrows from a prefix tree.
        exact_tokens: How many tokens from the first one on have the very entries of a run that nothing interrupted;
            None if all have, those to come included.
    """

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self.length = 0
        self.pages: list[int] = []
        self.window_pages: list[int] = []
        self.pending: dict[int, tuple[Tensor, Tensor] | None] = {}
        self.history: object | None = None
        self.lease: Lease | None = None
        self.exact_tokens: int | None = None
        self._tables: tuple[Tensor, Tensor] | None = None
        self._first_window = 0
        self._clear_pending()

    @property
    def capacity(self) -> int:
        """Tokens that its pages can hold."""
        return len(self.pages) * self.pool.geometry.page_size

    @property
    def page_table(self) -> Tensor:
        """`pages` as [P] int32."""
        return self._table(0)

    @property
    def window_table(self) -> Tensor:
        """`window_pages` as [P] int32."""
        return self._table(1)

    @property
    def borrowed(self) -> int:
        """Leading pages that belong to a prefix tree: never written."""
        return self.lease.page_count if self.lease else 0

    @property
    def exact(self) -> bool:
        """Whether everything in it is what a run that nothing interrupted would have left."""
        return self.exact_tokens is None

    def has_exact_page(self, index: int) -> bool:
        """Whether the entries of the page at this place are."""
        return self.exact_tokens is None or (index + 1) * self.pool.geometry.page_size <= self.exact_tokens

    def approximate(self, start: int) -> None:
        """Note that what stands at `start` and behind only approximates an uninterrupted run."""
        self.exact_tokens = start if self.exact_tokens is None else min(start, self.exact_tokens)

    def reserve(self, tokens: int, windows_from: int = 0) -> None:
        """Make room for `tokens` tokens in all; a failure changes nothing.

        Args:
            tokens: Capacity wanted.
            windows_from: New pages that lie wholly before this position get no window page.

        Raises:
            OutOfPages: The pool has too few; see `PrefixTree.make_room`.
        """
        size = self.pool.geometry.page_size
        start, stop = len(self.pages), -(-tokens // size)
        if stop <= start:
            return
        first = min(max(start, windows_from // size), stop)
        self.pool.pages.require(stop - start)
        self.pool.window_pages.require(stop - first)
        self.pages += self.pool.pages.allocate(stop - start)
        self.window_pages += [-1] * (first - start) + self.pool.allocate_windows(stop - first)
        self._first_window = min(self._first_window, first)
        self._tables = None

    def reserve_windows(self, start: int) -> None:
        """Give every page from the one of position `start` on a window page of the sequence's own if it has none.

        For rows that run again over pages whose windows are gone.

        Raises:
            OutOfPages: The pool has too few; nothing is changed.
        """
        first = start // self.pool.geometry.page_size
        missing = [index for index in range(first, len(self.pages)) if self.window_pages[index] < 0]
        for index, page in zip(missing, self.pool.allocate_windows(len(missing)), strict=True):
            self.window_pages[index] = page
        self._first_window = min(self._first_window, first)
        self._tables = None

    def adopt(self, lease: Lease, pages: Values[int], window_pages: Values[int]) -> None:
        """Begin with a prefix out of a tree.

        Raises:
            ValueError: The sequence already has pages.
        """
        if self.pages:
            raise ValueError(f"the sequence has {len(self.pages)} pages: only an empty one can take over a prefix")
        self.lease = lease
        self.pages, self.window_pages = list(pages), list(window_pages)
        self.length = self.capacity
        self._tables = None

    def replace_page(self, index: int, page: int) -> int:
        """Use another page with the same content from now on; returns the one that was used."""
        replaced, self.pages[index] = self.pages[index], page
        self._tables = None
        return replaced

    def advance(self, tokens: int) -> None:
        """Count tokens whose rows have been written.

        Raises:
            ValueError: They were not reserved.
        """
        if tokens < 0 or self.length + tokens > self.capacity:
            raise ValueError(f"{tokens} tokens cannot follow {self.length}: the pages hold {self.capacity}")
        self.length += tokens

    def release_windows(self, below: int) -> None:
        """Give up the window pages that lie wholly below a position.

        Args:
            below: First position that may still be read: `length - window` keeps what a transfer sends.
        """
        stop = min(max(0, below) // self.pool.geometry.page_size, len(self.pages))
        for index in range(self._first_window, stop):
            self._drop_window(index)
        self._first_window = max(self._first_window, stop)

    def release(self) -> None:
        """Give up everything; the sequence is empty afterwards."""
        for page in self.pages[self.borrowed :]:
            self.pool.pages.free(page)
        for index in range(len(self.pages)):
            if not (self.lease and self.lease.has_window(index)):
                self._drop_window(index)
        if self.lease:
            self.lease.release()
        self.length = 0
        self.pages, self.window_pages = [], []
        self.history = self.lease = self._tables = self.exact_tokens = None
        self._first_window = 0
        self._clear_pending()

    def _clear_pending(self) -> None:
        self.pending = dict.fromkeys(owner.layer for owner in self.pool.geometry.paired_owners)

    def _drop_window(self, index: int) -> None:
        page = self.window_pages[index]
        if page < 0:
            return
        if self.lease and self.lease.has_window(index):
            self.lease.drop_window(index)
        else:
            self.pool.window_pages.free(page)
        self.window_pages[index] = -1
        self._tables = None

    def _table(self, kind: int) -> Tensor:
        if self._tables is None:
            self._tables = (
                torch.tensor(self.pages, dtype=torch.int32),
                torch.tensor(self.window_pages, dtype=torch.int32),
            )
        return self._tables[kind]
