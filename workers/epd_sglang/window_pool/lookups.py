"""Asks for the windows of prefix hits while their requests wait, and decides which hits need no replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from epd_sglang.window_pool.request import length, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_sglang.window_pool.request import Chains, Request
    from epd_workers.swapool.header import Window
    from epd_workers.swapool.lookup import Lookup

HELD: Final = 64
"""Requests that may be asked for while they wait: windows that have come stay in memory, 1.4 MB each."""


class Store(Protocol):
    """What is used of `epd_workers.swapool.connection.Connection` for looking up."""

    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> Lookup | None:
        """Start a lookup and return at once; None if there is no pool now."""


@dataclass(frozen=True)
class Verdict:
    """What is known of a request's window; the same on all ranks.

    Attributes:
        position: The window's end; 0 if none was asked for.
        rows: Its rows; none if it did not come in time.
        replayed: Whether they came from a bounded replay.
    """

    position: int = 0
    rows: bytes | None = None
    replayed: bool = False


class Lookups:
    """One lookup a request, by one rank.

    The request goes on when the answer has come or the deadline has passed, counted from the question. So a request
    that has waited in the queue for longer waits for nothing more, and requests that were asked for together wait
    together.

    Args:
        store: The pool; none on the ranks that are told.
        chains: Names of pages.
        share: Gives every rank what the asking rank has decided.
        least: Rows that must follow a hit that takes its window from the pool.
        held: Requests that may be asked for before their turn.
    """

    def __init__(
        self,
        store: Store | None,
        chains: Chains,
        share: Callable[[Verdict], Verdict],
        *,
        least: int,
        held: int = HELD,
    ) -> None:
        self._store = store
        self._chains = chains
        self._share = share
        self._least = least
        self._held = held
        self._asked: WeakKeyDictionary[Request, tuple[int, Lookup]] = WeakKeyDictionary()
        self._decided: WeakKeyDictionary[Request, Verdict] = WeakKeyDictionary()

    def ask(self, request: Request, prefix: int) -> None:
        """Ask before the request's turn, unless so much has been asked for that it has to wait for its turn.

        Args:
            request: Just queued.
            prefix: Tokens that it finds cached at this moment.
        """
        self._decided.pop(request, None)
        self._asked.pop(request, None)
        if self._may_adopt(request, prefix) and len(self._asked) + len(self._decided) < self._held:
            self._begin(request, prefix)

    def spares(self, request: Request, prefix: int) -> bool:
        """Whether the window at a hit's end is here, so that none of its rows need to run again.

        Waits for the answer, no longer than the deadline. Every rank must call it for the same requests in the same
        order.
        """
        if not self._may_adopt(request, prefix):
            return False
        if request not in self._decided:
            self._decided[request] = self._share(self._wait(request, prefix))
        verdict = self._decided[request]
        return verdict.rows is not None and verdict.position == prefix

    def take(self, request: Request, prefix: int, rows: int) -> Verdict | None:
        """The window of a hit, given up by this; none if its rows must run again.

        Args:
            request: It begins with this step.
            prefix: Tokens of the hit.
            rows: Rows behind it in this step.
        """
        verdict = self._decided.pop(request, None)
        self._asked.pop(request, None)
        if verdict is None or verdict.rows is None or verdict.position != prefix or rows < self._least:
            return None
        return verdict

    def _may_adopt(self, request: Request, prefix: int) -> bool:
        return prefix > 0 and named(request) and length(request) - prefix >= self._least

    def _begin(self, request: Request, prefix: int) -> None:
        if self._store is None:
            return
        lookup = self._store.begin(self._chains.page_at(request, prefix), prefix, _nothing)
        if lookup is not None:
            self._asked[request] = (prefix, lookup)

    def _wait(self, request: Request, prefix: int) -> Verdict:
        if request not in self._asked:
            self._begin(request, prefix)
        asked = self._asked.pop(request, None)
        if asked is None:
            return Verdict()
        position, lookup = asked
        window: Window | None = lookup.wait() if position == prefix else lookup.take()
        return Verdict(position, window.data, window.replayed) if window else Verdict(position)


def _nothing() -> None:
    """A lookup that is settled concerns nobody before the request's turn."""
