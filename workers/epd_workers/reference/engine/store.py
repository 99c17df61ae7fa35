"""What the engine needs of a pool of windows and of a tier of pages, however they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epd_workers.reference.cache.disk.page import StoredPage
    from epd_workers.reference.engine.request import Limits
    from epd_workers.swapool.header import Window


class WindowLookup(Protocol):
    """A window that was asked for.

    Attributes:
        deadline: Monotonic seconds after which nobody waits for it any more.
    """

    deadline: float

    @property
    def ready(self) -> bool:
        """Whether it is there, or certain not to come."""

    def take(self) -> Window | None:
        """Return the window if it is here now; if it is not, it never will be. Does not wait."""


class WindowStore(Protocol):
    """Windows under the digest of all tokens before them. Nothing of it raises or waits."""

    @property
    def active(self) -> bool:
        """Whether there is a pool at this moment."""

    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> WindowLookup | None:
        """Ask for a window; None without a pool.

        Args:
            chain: Digest of everything before `position`.
            position: The window's end, a page boundary.
            done: Called once when the lookup is settled, by any thread, possibly before this returns.
        """

    def put(self, chain: bytes, position: int, data: bytes, *, replayed: bool) -> None:
        """Hand in a window.

        Args:
            chain: Digest of everything before `position`.
            position: The window's end, a page boundary.
            data: Its rows, layer after layer, positions rising.
            replayed: Whether they only approximate those of an uninterrupted run.
        """

    def replayed(self, tokens: int) -> None:
        """Count tokens that ran again for want of a window."""

    def avoided(self, tokens: int) -> None:
        """Count tokens that did not have to, thanks to a window."""


class PageFetch(Protocol):
    """Pages that were asked for."""

    @property
    def ready(self) -> bool:
        """Whether nothing more will come."""

    @property
    def pages(self) -> Sequence[StoredPage]:
        """Those that were found, from the first one on without a gap; nothing comes once they have been asked for."""


class PageStore(Protocol):
    """Pages under the digest of all tokens up to their end. Nothing of it raises or waits."""

    def fetch(self, chains: Sequence[bytes], done: Callable[[], None]) -> PageFetch:
        """Ask for consecutive pages.

        Args:
            chains: Digest of everything up to the end of each.
            done: Called once when nothing more will come, by any thread, possibly before this returns.
        """

    def put(self, chain: bytes, data: bytes, *, replayed: bool) -> bool:
        """Hand in a page; False if it is dropped at once.

        Args:
            chain: Digest of everything up to its end.
            data: Its global entries.
            replayed: Whether they only approximate those of an uninterrupted run.
        """


@dataclass(frozen=True)
class Stores:
    """What an engine shares with others beside its own memory.

    Attributes:
        windows: Spares a returning prompt the rows that encoder replay would run again.
        pages: Spares it the rows that no longer have their entries here.
        approximate: Hand in the windows of approximate runs, too; a run that goes on from one is approximate as well.
    """

    windows: WindowStore | None = None
    pages: PageStore | None = None
    approximate: bool = False

    def used_with(self, limits: Limits) -> bool:
        """Whether prompts take part in them: windows of the pool replace what encoder replay would bring back."""
        return (self.windows is not None or self.pages is not None) and limits.encoder_replay and limits.prefix_cache


ALONE: Final = Stores()
