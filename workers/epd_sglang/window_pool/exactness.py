"""Which pages of this engine hold what an uninterrupted run would have computed. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExactPages:
    """Pages that were computed in front of exact rows only, by the digest of all tokens up to their end.

    What is not known counts as inexact: pages whose rows ran in decode steps, came from another tier, or have not been
    used for so long that they are forgotten here. That costs windows that could have been published, and never
    publishes one that is not exact.

    Args:
        capacity: Pages to remember; those used last stay.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pages: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, pages: Iterable[bytes]) -> None:
        """Remember pages."""
        for page in pages:
            self._pages[page] = None
            self._pages.move_to_end(page)
        while len(self._pages) > self._capacity:
            self._pages.popitem(last=False)

    def discard(self, pages: Iterable[bytes]) -> None:
        """Forget pages."""
        for page in pages:
            self._pages.pop(page, None)

    def holds(self, pages: Iterable[bytes]) -> bool:
        """Whether all of these are exact; they count as used."""
        for page in pages:
            if page not in self._pages:
                return False
            self._pages.move_to_end(page)
        return True
