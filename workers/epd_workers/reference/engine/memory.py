"""The pages of all requests, and what earlier ones left for later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers.reference.cache.pool import KvPool
from epd_workers.reference.cache.prefix import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.cache.prefix import PrefixStats
    from epd_workers.reference.cache.sequence import Sequence
    from epd_workers.reference.engine.request import Limits


class Memory:
    """One pool and one prefix tree. The scheduler's lock guards all of it but the bytes of a sequence's own pages.

    A request takes pages as it grows. They are there, because admission has counted all that it can ever need, and
    what the tree holds beyond the running requests' own gives way.

    Attributes:
        geometry: Sizes of everything.
        pool: The pages.
        least_after_hit: Rows that the first step behind a prefix hit runs at least. Decoder replay may have left the
            late layers' windows before the hit unwritten; this many rows reach back no further than themselves.
    """

    def __init__(self, geometry: Geometry, limits: Limits) -> None:
        """Make the pools.

        Args:
            geometry: Of the model that will use them.
            limits: How many requests and tokens they must hold.

        Raises:
            ValueError: There is not so much memory.
        """
        size, window = geometry.page_size, geometry.window
        self.geometry = geometry
        self._cache, self._encoder_replay = limits.prefix_cache, limits.encoder_replay
        self._rerun = window if limits.replay and not limits.encoder_replay else 1
        self.least_after_hit = self._rerun
        pages = limits.max_total_tokens // size
        # `recede` keeps the window before a page boundary up to `_rerun` rows back, which may not begin at a page.
        rows = max(limits.chunked_prefill_size, self.least_after_hit) + self._rerun - 1
        each = min(geometry.window_pages_per_request(rows) + (window % size > 0), pages)
        kept = -(-limits.window_cache_tokens // size) if self._cache and not self._encoder_replay else 0
        windows = limits.max_running_requests * each + kept
        try:
            self.pool = KvPool(geometry, pages, windows)
        except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
            size = pages * geometry.page_bytes + windows * geometry.window_page_bytes
            raise ValueError(
                f"the caches would take {size / 2**30:,.0f} GiB, which this machine does not give: "
                "lower max_total_tokens, window_cache_tokens or max_running_requests"
            ) from error
        self._tree = PrefixTree(self.pool, window_cap=kept * geometry.window_page_bytes)

    @property
    def stats(self) -> PrefixStats:
        """The prefix tree's counters."""
        return self._tree.stats

    def begin(self, sequence: Sequence, key: Values[int]) -> int:
        """Begin an empty sequence with the longest cached prefix of its prompt; at least one token is left to run.

        With decoder replay the window's rows at the prompt's end are left too. With encoder replay windows are never
        kept: the rows before the hit's end run again instead.

        Returns:
            How many rows before the hit's end must run again.
        """
        if not self._cache:
            return 0
        match = self._tree.match(key)
        tokens = self._tree.usable(match, need_window=not self._encoder_replay, rerun=self._rerun)
        self._tree.acquire(sequence, match, tokens, windows=not self._encoder_replay)
        return min(tokens, self.geometry.window) if self._encoder_replay else 0

    def reserve(self, sequence: Sequence, tokens: int, *, windows_from: int = 0, again_from: int | None = None) -> None:
        """Give a sequence room for `tokens` tokens in all.

        Args:
            sequence: Which one.
            tokens: Capacity wanted.
            windows_from: New pages that lie wholly before this position get no window page.
            again_from: First row that runs again and needs its window page again.

        Raises:
            OutOfPages: More than admission has counted; nothing is changed.
        """
        size, held = self.geometry.page_size, len(sequence.pages)
        pages = max(held, -(-tokens // size))
        first = held if again_from is None else again_from // size
        lost = sum(page < 0 for page in sequence.window_pages[first:])
        self._tree.make_room(pages - held, lost + max(0, pages - max(held, windows_from // size)))
        sequence.reserve(tokens, windows_from)
        if again_from is not None:
            sequence.reserve_windows(again_from)

    def recede(self, sequence: Sequence) -> None:
        """Give up the windows that neither a later row nor the longest hit of the same tokens can need."""
        hit = self._floor(sequence.length - self._rerun + 1)
        sequence.release_windows(hit - self.geometry.window)

    def keep(self, sequence: Sequence, key: Values[int], windows_from: int) -> None:
        """Share the full pages of a sequence with later requests.

        Args:
            sequence: Which one; it may run on.
            key: Of its tokens, as far as known.
            windows_from: First position whose windows are complete; for a sequence that ends if above 0, as the
                windows before are given up.
        """
        if not self._cache:
            return
        sequence.release_windows(-self._floor(-windows_from))
        self._tree.insert(key, sequence, windows=not self._encoder_replay)

    def clear(self) -> None:
        """Forget all prefixes."""
        self._tree.clear()

    def _floor(self, position: int) -> int:
        """The page boundary at or before a position."""
        return position // self.geometry.page_size * self.geometry.page_size
