"""Prefixes that finished and running requests leave for others.

One radix tree over pages of full tokens: a node is one page, its edge the page's token ids, so nodes never split. Its
global page serves the layers of every ratio (see the package's docstring). Its window page may be evicted alone, which
leaves a tombstone: the global entries still count, but a hit that needs the window must end elsewhere.

Eviction is by least recent use. A request locks all nodes from the root to its own and returns them deepest first, so
the idle nodes stand in an order in which every child comes before its parent: the first one is always a leaf, and
eviction takes constant time. Source of the idea of separate lives of both parts: SGLang 0.5.23,
mem_cache/unified_radix_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epd_workers.reference.cache.node import Match, Node

if TYPE_CHECKING:
    from collections.abc import Hashable
    from collections.abc import Sequence as Values

    from epd_workers.reference.cache.paged_pool import KvPool
    from epd_workers.reference.cache.sequence import Sequence


@dataclass
class PrefixStats:
    """Counters since the start, and what is held now.

    Inserted = evicted + flushed + held, for both kinds of pages.

    Attributes:
        hits: Requests that began with cached tokens.
        misses: Requests that did not.
        hit_tokens: Tokens that they did not have to compute.
        deduplicated_pages: Pages computed twice, of which one was freed.
        inserted_pages: Global pages taken over.
        inserted_windows: Window pages taken over.
        evicted_pages: Global pages given up for room.
        evicted_windows: Window pages given up for room, with their global page or before it.
        flushed_pages: Global pages given up by `clear`.
        flushed_windows: Window pages given up by `clear`.
        held_pages: Global pages in the tree, those of running requests included.
        held_windows: Window pages in the tree, likewise.
    """

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    deduplicated_pages: int = 0
    inserted_pages: int = 0
    inserted_windows: int = 0
    evicted_pages: int = 0
    evicted_windows: int = 0
    flushed_pages: int = 0
    flushed_windows: int = 0
    held_pages: int = 0
    held_windows: int = 0


class PrefixLease:
    """What one sequence borrows: see `sequence.Lease`."""

    def __init__(self, tree: PrefixTree) -> None:
        self.nodes: list[Node] = []
        self.windows: set[int] = set()
        self._tree = tree

    @property
    def page_count(self) -> int:
        """See `sequence.Lease`."""
        return len(self.nodes)

    def belongs_to(self, tree: PrefixTree) -> bool:
        """Whether this tree lent it."""
        return tree is self._tree

    def has_window(self, index: int) -> bool:
        """See `sequence.Lease`."""
        return index in self.windows

    def drop_window(self, index: int) -> None:
        """See `sequence.Lease`."""
        self.windows.remove(index)
        self._tree.unlock_window(self.nodes[index])
        self._tree.enforce_caps()

    def release(self) -> None:
        """See `sequence.Lease`."""
        for index in sorted(self.windows):  # the last window is the one that the next request of this kind needs
            self._tree.unlock_window(self.nodes[index])
        for node in reversed(self.nodes):
            self._tree.unlock(node)
        self.nodes, self.windows = [], set()
        self._tree.enforce_caps()


class PrefixTree:
    """The tree, what of it may be evicted, and counters.

    A picture's tokens all have the placeholder's id: the caller puts ids derived from the picture's content into keys.

    Args:
        pool: Where the pages lie.
        page_cap: Most bytes of global pages to hold for requests to come; None is the whole pool.
        window_cap: The same of window pages.
    """

    def __init__(
        self,
        pool: KvPool,
        *,
        page_cap: int | None = None,
        window_cap: int | None = None,
    ) -> None:
        self._pool = pool
        geometry = pool.geometry
        self._size, self._window = geometry.page_size, geometry.window
        self._page_cap = pool.pages.count if page_cap is None else page_cap // geometry.page_bytes
        self._window_cap = pool.window_pages.count if window_cap is None else window_cap // geometry.window_page_bytes
        self._root = Node(None, None, -1)
        self._idle: dict[Node, None] = {}
        self._idle_windows: dict[Node, None] = {}
        self._stats = PrefixStats()

    @property
    def stats(self) -> PrefixStats:
        """A copy of the counters."""
        return replace(self._stats)

    def match(self, key: Values[int], salt: str = "") -> Match:
        """Find the longest cached prefix; changes nothing.

        Args:
            key: Names of the tokens.
            salt: What was inserted with another one is not found.
        """
        nodes: list[Node] = []
        node: Node | None = self._root
        for index in range(len(key) // self._size):
            assert node is not None
            node = node.children.get(self._name(key, index, salt))
            if node is None:
                break
            nodes.append(node)
        windows = tuple(node.window for node in nodes)
        behind = next((index + 1 for index in range(len(nodes) - 1, -1, -1) if windows[index] < 0), 0)
        pages = tuple(node.page for node in nodes)
        return Match(len(key), len(nodes) * self._size, pages, windows, behind * self._size, tuple(nodes))

    def usable(self, match: Match, *, need_window: bool = True, rerun: int = 1) -> int:
        """Tokens of a match that a request may skip, in whole pages.

        Args:
            match: Of the request's whole prompt.
            need_window: The window before the first row that runs must be there: the longest H whose windows of
                [max(0, H - window), H) all are. Not needed by encoder replay, which computes it again.
            rerun: Last tokens of the prompt that run in any case: 1 for its logits; the window with decoder replay,
                which leaves late layers' windows unwritten but for the last rows of an extend.
        """
        limit = min(match.tokens, max(0, match.key_tokens - rerun)) // self._size
        if not need_window:
            return limit * self._size
        longest = run = 0
        for count in range(1, limit + 1):
            run = run + 1 if match.window_pages[count - 1] >= 0 else 0
            if run >= count - self._first_window(count * self._size):
                longest = count
        return longest * self._size

    def acquire(
        self, sequence: Sequence, match: Match, tokens: int, *, windows: bool = True, restored: int = 0
    ) -> None:
        """Begin a sequence with the first tokens of a match and count the hit or, with 0 tokens, the miss.

        Args:
            sequence: An empty one.
            match: A match of its prompt, taken since the tree last changed.
            tokens: How many to take, in whole pages, as `usable` says.
            windows: Take the windows before `tokens` too; without them the caller reserves its own.
            restored: Tokens behind these that the caller has from elsewhere: they count as found.

        Raises:
            ValueError: The match does not hold that, or no longer; or the sequence is not empty.
        """
        count = self._count(match, tokens)
        nodes = match.nodes[:count]
        first = self._first_window(tokens) if windows else count
        if any(node.page < 0 or node.detached for node in nodes) or any(node.window < 0 for node in nodes[first:]):
            raise ValueError(f"the first {tokens} tokens of this match are not all there: match again")
        lease = PrefixLease(self)
        borrowed = [node.window if index >= first else -1 for index, node in enumerate(nodes)]
        sequence.adopt(lease, [node.page for node in nodes], borrowed)
        for index, node in enumerate(nodes):
            self._borrow(lease, node, window=index >= first)
            if not node.exact:
                sequence.approximate(index * self._size)
        hit = tokens + restored
        self._stats.hits += hit > 0
        self._stats.misses += hit == 0
        self._stats.hit_tokens += hit

    def insert(self, key: Values[int], sequence: Sequence, salt: str = "", *, windows: bool = True) -> tuple[int, ...]:
        """Hand the full pages of a sequence, which may run on, over to the tree.

        Where the tree has the same page already, the sequence goes on with the tree's and its own is freed. Window
        pages are not exchanged: with decoder replay two requests' windows of the same tokens may differ in which late
        layers' rows are written, so a running sequence keeps its own, and the tree takes one only where it has none.

        An exact page takes the place of one that approximates it and that nobody uses. While somebody uses that one
        nothing from there on is handed over: an exact sequence must not go on with an approximation.

        Args:
            key: Token ids of the sequence's beginning; those behind `sequence.length` are not looked at.
            sequence: Which one; it keeps using the pages, now borrowed, until it is released.
            salt: Only those who say the same find them.
            windows: Hand window pages over too.

        Returns:
            The global pages that were freed.

        Raises:
            ValueError: The sequence borrows from another tree.
        """
        lease = self._lease(sequence)
        if lease.nodes and lease.nodes[-1].detached:  # flushed: what was computed on top must not come back
            return ()
        pages, parent = [], lease.nodes[-1] if lease.nodes else self._root
        for index in range(len(lease.nodes), min(len(key), sequence.length) // self._size):
            name, exact = self._name(key, index, salt), sequence.has_exact_page(index)
            node = parent.children.get(name)
            if node is None:
                node = parent.children[name] = Node(name, parent, sequence.pages[index], exact=exact)
                self._stats.inserted_pages += 1
                self._stats.held_pages += 1
            elif exact and not node.exact:
                if node.locks:
                    break
                pages.append(self._correct(node, sequence.pages[index]))
            else:
                pages.append(sequence.replace_page(index, node.page))
            donated = windows and node.window < 0 <= sequence.window_pages[index]
            if donated:
                node.window = sequence.window_pages[index]
                self._stats.inserted_windows += 1
                self._stats.held_windows += 1
            self._borrow(lease, node, window=donated)
            parent = node
        for page in pages:
            self._pool.pages.free(page)
        self._stats.deduplicated_pages += len(pages)
        self.enforce_caps()
        return tuple(pages)

    def make_room(self, pages: int, window_pages: int) -> bool:
        """Evict until this many pages of both kinds are free in the pool; evict nothing if that is impossible."""
        need = pages - self._pool.pages.free_count
        need_windows = window_pages - self._pool.window_pages.free_count
        if need > len(self._idle) or need_windows > len(self._idle_windows):
            return False
        for _ in range(need):
            self._evict_page()
        while self._pool.window_pages.free_count < window_pages:
            self._evict_window()
        return True

    def enforce_caps(self) -> None:
        """Evict what is above the caps, as far as no running request uses it."""
        while self._stats.held_pages > self._page_cap and self._idle:
            self._evict_page()
        while self._stats.held_windows > self._window_cap and self._idle_windows:
            self._evict_window()

    def clear(self) -> None:
        """Forget everything. Pages in use are freed when their requests end, and found by no other."""
        stack, self._root = list(self._root.children.values()), Node(None, None, -1)
        while stack:
            node = stack.pop()
            stack += node.children.values()
            node.detached = True
            if not node.window_locks:
                self._flush_window(node)
            if not node.locks:
                self._flush_page(node)
        self._idle.clear()
        self._idle_windows.clear()

    def unlock(self, node: Node) -> None:
        """One request fewer uses a node's global page; its children have been unlocked before."""
        node.locks -= 1
        if node.locks:
            return
        if node.detached:
            self._flush_page(node)
        else:
            self._idle[node] = None

    def unlock_window(self, node: Node) -> None:
        """One request fewer uses a node's window page."""
        node.window_locks -= 1
        if node.window_locks:
            return
        if node.detached:
            self._flush_window(node)
        else:
            self._idle_windows[node] = None

    def _lease(self, sequence: Sequence) -> PrefixLease:
        if sequence.lease is None:
            sequence.lease = PrefixLease(self)
        if not isinstance(sequence.lease, PrefixLease) or not sequence.lease.belongs_to(self):
            raise ValueError("the sequence borrows from another tree: insert it there")
        return sequence.lease

    def _borrow(self, lease: PrefixLease, node: Node, *, window: bool) -> None:
        self._idle.pop(node, None)
        node.locks += 1
        if window:
            self._idle_windows.pop(node, None)
            node.window_locks += 1
            lease.windows.add(len(lease.nodes))
        lease.nodes.append(node)

    def _correct(self, node: Node, page: int) -> int:
        """Give an idle node the exact page; returns the one that it had. Its window goes, being no better."""
        if node.window >= 0:
            self._evict_window(node)
        corrected, node.page, node.exact = node.page, page, True
        return corrected

    def _evict_page(self) -> None:
        node = next(iter(self._idle))
        del self._idle[node]
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.name]
        if node.window >= 0:
            self._evict_window(node)
        self._free_page(node)
        self._stats.evicted_pages += 1

    def _evict_window(self, node: Node | None = None) -> None:
        node = node or next(iter(self._idle_windows))
        del self._idle_windows[node]
        self._free_window(node)
        self._stats.evicted_windows += 1

    def _flush_page(self, node: Node) -> None:
        self._free_page(node)
        self._stats.flushed_pages += 1

    def _flush_window(self, node: Node) -> None:
        if node.window >= 0:
            self._free_window(node)
            self._stats.flushed_windows += 1

    def _free_page(self, node: Node) -> None:
        self._pool.pages.free(node.page)
        node.page = -1
        self._stats.held_pages -= 1

    def _free_window(self, node: Node) -> None:
        self._pool.window_pages.free(node.window)
        node.window = -1
        self._stats.held_windows -= 1

    def _name(self, key: Values[int], index: int, salt: str) -> Hashable:
        page = tuple(key[index * self._size : (index + 1) * self._size])
        return page if index else (salt, page)

    def _first_window(self, tokens: int) -> int:
        """The first page that the window before `tokens` reaches into."""
        return max(0, tokens - self._window) // self._size

    def _count(self, match: Match, tokens: int) -> int:
        if tokens % self._size or not 0 <= tokens <= match.tokens:
            raise ValueError(f"tokens is {tokens}: must be a multiple of {self._size} from 0 to {match.tokens}")
        return tokens // self._size
