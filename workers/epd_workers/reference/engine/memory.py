"""The pages of all requests, and what earlier ones left for later ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.prefix import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.cache.prefix import PrefixStats
    from epd_workers.reference.cache.sequence import Sequence
    from epd_workers.reference.engine.prefetch import Prefetched
    from epd_workers.reference.engine.request import Limits


@dataclass(frozen=True)
class Start:
    """Where a prompt begins to run.

    Attributes:
        hit: Tokens that need not run.
        replayed: Rows before the hit's end that run again.
        least: Rows that the first step behind the hit runs at least. Decoder replay may have left the late layers'
            windows before the hit unwritten; this many rows reach back no further than themselves.
        windows_from: First position whose windows are complete.
        stored: Pages of the hit that come from a store: the last ones.
        adopted: Whether the window before the hit's end comes from a pool.
        avoided: Rows that a replay would have run besides.
    """

    hit: int = 0
    replayed: int = 0
    least: int = 1
    windows_from: int = 0
    stored: int = 0
    adopted: bool = False
    avoided: int = 0


class Memory:
    """One pool and one prefix tree. The scheduler's lock guards all of it but the bytes of a sequence's own pages.

    A request takes pages as it grows. They are there, because admission has counted all that it can ever need, and
    what the tree holds beyond the running requests' own gives way.

    Args:
        geometry: Of the model that will use them.
        limits: How many requests and tokens they must hold.
        windows_shared: Windows are handed in to a pool, and adopted from there.

    Attributes:
        geometry: Sizes of everything.
        pool: The pages.
        rerun: Last tokens of a prompt that run in any case, unless a replay brings their windows back: the window with
            decoder replay, else one.

    Raises:
        ValueError: This machine has too little memory.
    """

    def __init__(self, geometry: Geometry, limits: Limits, *, windows_shared: bool = False) -> None:
        size, window = geometry.page_size, geometry.window
        self.geometry = geometry
        self._cache, self._encoder_replay = limits.prefix_cache, limits.encoder_replay
        self.rerun = window if limits.replay else 1
        # Windows that no later prompt can ask for need not be kept until this prompt's end.
        self._kept = self.rerun if windows_shared or not limits.encoder_replay else 1
        pages = limits.max_total_tokens // size
        # `recede` keeps the window before a page boundary up to `_kept` rows back, which may not begin at a page.
        rows = max(limits.chunked_prefill_size, self._kept) + self._kept - 1
        each = min(geometry.window_pages_per_request(rows) + (window % size > 0), pages)
        kept = -(-limits.window_cache_tokens // size) if self._cache and not self._encoder_replay else 0
        windows = limits.max_running_requests * each + kept
        try:
            self.pool = KvPool(geometry, pages, windows)
        except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
            size = pages * geometry.page_bytes + windows * geometry.window_page_bytes
            raise ValueError(
                f"the caches would take {size / 2**30:,.0f} GiB, more than this machine has: "
                "lower max_total_tokens, window_cache_tokens or max_running_requests"
            ) from error
        self._tree = PrefixTree(self.pool, window_cap=kept * geometry.window_page_bytes)

    @property
    def stats(self) -> PrefixStats:
        """The prefix tree's counters."""
        return self._tree.stats

    def matched(self, key: Values[int], salt: str) -> int:
        """Tokens whose pages are here."""
        return self._tree.match(key, salt).tokens if self._cache else 0

    def begin(self, sequence: Sequence, key: Values[int], salt: str, prefetched: Prefetched) -> Start:
        """Begin an empty sequence with what there is of its prompt; at least one token is left to run.

        Without encoder replay that ends where the tree has the windows too, and with decoder replay a window before the
        prompt's end at the latest. With encoder replay windows are never kept here: it ends where a pool had the
        window, or at the last page, and the rows before run again.

        Args:
            sequence: The prompt's.
            key: Names of its tokens.
            salt: Only prompts with the same one share.
            prefetched: What others had left; the caller writes it into the pages that are reserved here.
        """
        if not self._cache:
            return Start()
        match = self._tree.match(key, salt)
        if not self._encoder_replay:
            tokens = self._tree.usable(match, rerun=self.rerun)
            self._tree.acquire(sequence, match, tokens)
            return Start(tokens, least=self.rerun)
        start = self._start(len(key), match.tokens, prefetched)
        stored = start.stored * self.geometry.page_size
        self._tree.acquire(sequence, match, start.hit - stored, windows=False, restored=stored)
        lowest = start.windows_from if start.adopted else None
        windows_from = start.hit if lowest is None else lowest
        self.reserve(sequence, start.hit, windows_from=windows_from, again_from=lowest)
        sequence.advance(stored)
        return start

    def _start(self, tokens: int, matched: int, prefetched: Prefetched) -> Start:
        """Decide: adopt the window, or run the rows before the last page again.

        A window that was asked for long ago may end far before the pages that have come since: running all behind it
        would cost more than the replay.

        Args:
            tokens: Length of the prompt.
            matched: Tokens whose pages are here.
            prefetched: What others had left.
        """
        size, window = self.geometry.page_size, self.geometry.window
        stored = (prefetched.first + len(prefetched.pages)) * size if prefetched.first * size <= matched else 0
        reach = max(matched, stored)
        hit = self._floor(min(reach, tokens - 1))
        replayed = min(hit, window)
        least, most = max(size, self._floor(hit - replayed)), min(reach, tokens - self.rerun)
        if prefetched.window is None or not least <= prefetched.position <= most:
            return Start(hit, replayed, windows_from=hit - replayed, stored=max(0, hit - matched) // size)
        adopted, kept = prefetched.position, min(prefetched.position, window)
        return Start(
            adopted,
            least=self.rerun,
            windows_from=adopted - kept,
            stored=max(0, adopted - matched) // size,
            adopted=True,
            avoided=max(0, adopted + replayed - hit),
        )

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
        sequence.release_windows(self._floor(sequence.length - self._kept + 1) - self.geometry.window)

    def boundaries(self, length: int) -> range:
        """The page boundaries that a longer text than this many tokens may come back to."""
        size = self.geometry.page_size
        return range(max(size, self._floor(length + 1 - self.rerun)), self._floor(length) + 1, size)

    def keep(self, sequence: Sequence, key: Values[int], salt: str, windows_from: int) -> None:
        """Share the full pages of a sequence with later requests.

        Args:
            sequence: Which one; it may run on.
            key: Of its tokens, as far as known.
            salt: Only prompts with the same one share.
            windows_from: First position whose windows are complete; for a sequence that ends if above 0, as the
                windows before are given up.
        """
        if not self._cache:
            return
        sequence.release_windows(-self._floor(-windows_from))
        self._tree.insert(key, sequence, salt, windows=not self._encoder_replay)

    def clear(self) -> None:
        """Forget all prefixes."""
        self._tree.clear()

    def _floor(self, position: int) -> int:
        """The page boundary at or before a position."""
        return position // self.geometry.page_size * self.geometry.page_size
