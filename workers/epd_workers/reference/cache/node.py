"""A page in the prefix tree, and the pages that a lookup finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


@dataclass(eq=False, slots=True)
class Node:
    """A page of tokens behind its parent's.

    Attributes:
        name: The edge that leads here.
        parent: The page before; None for the root.
        page: Global page; -1 once evicted.
        window: Window page; -1 is a tombstone.
        children: The pages that follow.
        locks: Requests that use the global page.
        window_locks: Requests that use the window page.
        detached: No longer to be found; freed with the last lock.
        exact: Whether the entries are those of a run that nothing interrupted, rather than an approximation of them.
    """

    name: Hashable
    parent: Node | None
    page: int
    window: int = -1
    children: dict[Hashable, Node] = field(default_factory=dict)
    locks: int = 0
    window_locks: int = 0
    detached: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Match:
    """The longest cached prefix of a key.

    Attributes:
        key_tokens: Tokens in the key.
        tokens: Tokens found, in whole pages.
        pages: Their global pages.
        window_pages: Their window pages, -1 for tombstones.
        window_tokens_from: First token from which on all windows up to `tokens` are there; `tokens` if the last
            page's is not.
        nodes: Where they stand in the tree.
    """

    key_tokens: int
    tokens: int
    pages: tuple[int, ...]
    window_pages: tuple[int, ...]
    window_tokens_from: int
    nodes: tuple[Node, ...] = field(repr=False)
