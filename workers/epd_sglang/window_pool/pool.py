"""What the pool does in one scheduler process, point by point of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from epd_sglang.window_pool import outbox, rows
from epd_sglang.window_pool.extent import WINDOW, Extent, windows
from epd_sglang.window_pool.request import length, named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_sglang.window_pool.exactness import ExactPages
    from epd_sglang.window_pool.lookups import Lookups, Verdict
    from epd_sglang.window_pool.outbox import Outbox
    from epd_sglang.window_pool.request import Chains, Request
    from epd_sglang.window_pool.rows import Capture, Ring

Replays = list[tuple[int, int, int]]
"""Number of a request in the batch, first position that runs again, and the hit's end."""


class Batch(Protocol):
    """What is used of the engine's `ScheduleBatch`.

    Source: SGLang 0.5.23, srt/managers/schedule_batch.py:2543 and 2912.
    """

    @property
    def reqs(self) -> Sequence[Request]:
        """Its requests."""

    @property
    def prefix_lens(self) -> Sequence[int]:
        """Tokens of each that have run before."""

    @property
    def extend_lens(self) -> Sequence[int]:
        """Rows of each."""

    @property
    def encoder_swa_reset(self) -> Sequence[bool]:
        """Whether each begins with this step."""

    @property
    def req_pool_indices_cpu(self) -> Any:
        """The slot of each."""


class Counts(Protocol):
    """Where rows are counted that ran again, or did not have to."""

    @property
    def active(self) -> bool:
        """Whether there is a pool at this moment."""

    def replayed(self, tokens: int) -> None:
        """Count tokens that ran again for want of a window."""

    def avoided(self, tokens: int) -> None:
        """Count tokens that need not run again thanks to a window."""


@dataclass(frozen=True)
class Publishing:
    """What the one rank needs that publishes.

    Attributes:
        counts: The pool.
        outbox: The way to it.
        exact: Pages of this engine that are exact.
        stream: Beside the steps' on a GPU; none elsewhere.
    """

    counts: Counts
    outbox: Outbox
    exact: ExactPages
    stream: Any = None


class EnginePool:
    """The pool as one rank's scheduler and forward pass meet it.

    Args:
        lookups: Which hits take their window from the pool.
        chains: Names of pages.
        layers: Layers of a window, from the first on: those that run on all rows.
        page_size: Tokens of a page.
        publishing: Of the one rank that publishes; the rows of latents are the same on all.
    """

    def __init__(
        self, lookups: Lookups, chains: Chains, *, layers: int, page_size: int, publishing: Publishing | None
    ) -> None:
        self.lookups = lookups
        self._chains = chains
        self._layers = layers
        self._page_size = page_size
        self._publishing = publishing
        self._inexact: WeakSet[Request] = WeakSet()
        self._captures: list[tuple[Request, int, Capture]] = []

    def begin(self) -> None:
        """A step begins, of whatever kind: what was to be captured of the last one is over."""
        self._captures = []

    def fill(self, batch: Batch, ring: Ring, replays: Replays) -> Replays:
        """Give hits their windows, before their rows are put in front of the step.

        Args:
            batch: The step, as it was scheduled.
            ring: Empty where a request begins.
            replays: Hits that the engine would replay.

        Returns:
            Those that it must.
        """
        adopted: dict[int, Verdict] = {}
        left = []
        for number, start, end in replays:
            verdict = self.lookups.take(batch.reqs[number], end, batch.extend_lens[number])
            if verdict is None or verdict.rows is None:
                left.append((number, start, end))
                continue
            rows.adopt(ring, int(batch.req_pool_indices_cpu[number]), end, verdict.rows, self._layers)
            adopted[number] = verdict
        self._prepare(batch, left, adopted)
        return left

    def committed(self, ring: Ring, layer: int) -> None:
        """A layer is about to give up the rows of its step."""
        if not self._captures or layer >= self._layers:
            return
        for _, _, capture in self._captures:
            capture.take(ring, layer)
        if layer == self._layers - 1:
            self._publish()

    def _prepare(self, batch: Batch, replays: Replays, adopted: Mapping[int, Verdict]) -> None:
        """Settle which windows of the step are to be published."""
        publishing = self._publishing
        if publishing is None:
            return
        again = {number: end - start for number, start, end in replays}
        publishing.counts.replayed(sum(again.values()))
        publishing.counts.avoided(len(adopted) * WINDOW)
        extents = []
        for number, request in enumerate(batch.reqs):
            extent = Extent(batch.prefix_lens[number], batch.extend_lens[number], again.get(number, 0), length(request))
            extents.append(extent)
            if batch.encoder_swa_reset[number]:
                self._judge(request, extent, adopted.get(number))
            self._note(request, extent)
        if not publishing.counts.active:
            return
        for number, end, first in windows(extents, self._page_size):
            request = batch.reqs[number]
            if named(request) and request not in self._inexact:
                self._captures.append((request, end, rows.Capture(first, self._layers)))

    def _judge(self, request: Request, extent: Extent, window: Verdict | None) -> None:
        """Settle whether what a request is about to run is exact: so are its window and all pages before."""
        assert self._publishing is not None
        prefix = self._chains.pages(request)[: extent.prefix // self._page_size] if named(request) else ()
        exact = window is not None and not window.replayed and self._publishing.exact.holds(prefix)
        if extent.prefix and not exact:
            self._inexact.add(request)
        else:
            self._inexact.discard(request)

    def _note(self, request: Request, extent: Extent) -> None:
        """Remember which pages of this step are exact."""
        assert self._publishing is not None
        if not named(request):
            return
        first, last = (end // self._page_size for end in (extent.prefix, extent.prefix + extent.rows))
        pages = self._chains.pages(request)[first:last]
        if request in self._inexact:
            self._publishing.exact.discard(pages)
        else:
            self._publishing.exact.add(pages)

    def _publish(self) -> None:
        assert self._publishing is not None
        for request, end, capture in self._captures:
            departure = capture.depart(self._publishing.stream)
            chain = self._chains.page_at(request, end)
            self._publishing.outbox.post(outbox.Parcel(chain, end, departure))
        self._captures = []
