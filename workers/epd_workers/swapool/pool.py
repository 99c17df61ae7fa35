"""The client: looks windows up and hands them in; never raises, never waits past its deadline."""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from epd_workers.swapool.breaker import Breaker
from epd_workers.swapool.header import SIZE
from epd_workers.swapool.history import History
from epd_workers.swapool.job import Reading, Writing
from epd_workers.swapool.lookup import Lookup, Verdict
from epd_workers.swapool.metrics import Metrics
from epd_workers.swapool.worker import workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.swapool.engine import Engine, Session
    from epd_workers.swapool.key import Key
    from epd_workers.swapool.metrics import Put
    from epd_workers.swapool.worker import Job
    from epd_workers.worker_threads import WorkerThreads

log = logging.getLogger(__name__)
READERS: Final = 4
WRITERS: Final = 2
DEPTH: Final = 16
LONGEST_WAIT: Final = 60.0
# A thread that waits wakes up a little after it asked to; the caller was promised not to wait longer than it said.
MARGIN: Final = 0.001


class WindowPool:
    """Windows under their keys, in the server that the engine speaks to.

    Losing the server, some of its contents or every answer costs hits, nothing else. Memory is bounded by
    `readers + writers` buffers and `depth` windows that wait to be stored; so is the number of threads.

    Args:
        engine: The server; closed with the pool.
        size: Bytes of the largest window.
        readers: Lookups at the same time.
        writers: Windows stored at the same time.
        depth: Further lookups, and further windows, that may wait for one of these.
        metrics: Where to count.
        history: Where to remember what became of everything.
        breakers: Makes the two breakers, given their names.
        clock: Unix seconds.
    """

    def __init__(
        self,
        engine: Engine,
        size: int,
        *,
        readers: int = READERS,
        writers: int = WRITERS,
        depth: int = DEPTH,
        metrics: Metrics | None = None,
        history: History | None = None,
        breakers: Callable[[str], Breaker] = Breaker,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._history = history or History()
        self._engine = engine
        self._size = size
        self._clock = clock
        self._closed = False
        self._reading = breakers(f"window pool ({engine.name}), lookups")
        self._writing = breakers(f"window pool ({engine.name}), puts")
        self._direct: Session | None = None
        self._workers: tuple[WorkerThreads[Job], ...] = ()
        if engine.local:
            self._direct = engine.sessions(1, SIZE + size)[0]
        else:
            sessions = engine.sessions(readers + writers, SIZE + size)
            self._workers = (
                workers("swapool-get", sessions[:readers], depth),
                workers("swapool-put", sessions[readers:], depth),
            )
        self.metrics.watch(
            {"get": lambda: float(self._reading.open), "put": lambda: float(self._writing.open)},
            lambda: float(sum(each.busy for each in self._workers)),
        )

    @property
    def fault(self) -> str:
        """What is wrong with the server, in words; empty while it answers."""
        return self._reading.reason or self._writing.reason

    def get(self, key: Key, deadline: float) -> bytes | None:
        """Return a window's rows, or None: it is not there, or not within `deadline` seconds from now, or not fit."""
        window = self.begin(key, deadline).wait()
        return None if window is None else window.data

    def begin(self, key: Key, deadline: float, done: Callable[[], None] | None = None) -> Lookup:
        """Start a lookup and return at once.

        Args:
            key: The window.
            deadline: Seconds from now; an answer after that counts for nothing.
            done: Called once when the verdict is reached, by the thread that reached it, which may be this one before
                this returns. Must neither raise nor wait.
        """
        begun = time.monotonic()
        # What never waits needs no deadline: a pause of this process would be taken for a fault of the server.
        patience = LONGEST_WAIT if self._direct is not None else min(deadline, LONGEST_WAIT) - MARGIN
        useless = not deadline > (0 if self._direct is not None else MARGIN)
        ticket = None if self._closed or useless else self._reading.admit()
        lookup = Lookup(begun + max(0.0, patience), partial(self._settled, begun, ticket), done)
        reading = Reading(key, lookup, self._clock, self._late)
        if ticket is None:
            lookup.settle(Verdict("timeout" if useless else "breaker"))
        elif self._direct is not None:
            reading.run(self._direct)
        elif not self._workers[0].submit(reading):
            lookup.settle(Verdict("busy"))
        return lookup

    def put(self, key: Key, data: bytes, ttl: float, *, replayed: bool = False) -> None:
        """Hand in a window and return at once; it is stored soon, or dropped.

        Args:
            key: Its name.
            data: Its rows, `key.size` bytes.
            ttl: Seconds it may be used for.
            replayed: Whether the rows came from a bounded replay.
        """
        if len(data) != key.size or key.size > self._size or not 0 < ttl < math.inf:
            log.error("a window of %d bytes for %s, to be kept for %s s: dropped", len(data), key.text, ttl)
            self._dropped("error")
            return
        ticket = None if self._closed else self._writing.admit()
        if ticket is None:
            self._dropped("breaker")
            return
        done = partial(self._stored, ticket, key.size)
        writing = Writing(key, bytes(data), ttl, self._clock(), replayed, done)
        if self._direct is not None:
            writing.run(self._direct)
        elif not self._workers[1].submit(writing):
            self._dropped("busy")

    def drain(self, timeout: float) -> bool:
        """Wait until all that was handed in is stored or dropped; False if that took longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        return all(each.drain(max(0.0, deadline - time.monotonic())) for each in self._workers)

    def close(self, timeout: float = 1.0) -> bool:
        """Stop; False if a call of the server was still under way after `timeout` seconds and had to be left."""
        self._closed = True
        deadline = time.monotonic() + timeout
        ended = [each.close(deadline) for each in self._workers]
        self._engine.close()
        return all(ended)

    def _settled(self, begun: float, ticket: int | None, verdict: Verdict) -> None:
        self.metrics.got(verdict.result, time.monotonic() - begun)
        self._history.got(verdict)
        if verdict.window is not None:
            self.metrics.hit(len(verdict.window.data), verdict.window.age)
        if ticket is None or verdict.result == "busy":
            return
        if verdict.fault:
            self._reading.failed(ticket, verdict.fault)
        elif verdict.result != "timeout":
            self._reading.succeeded(ticket)

    def _late(self, verdict: Verdict) -> None:
        if verdict.fault:
            self._reading.explain(verdict.fault)
        else:
            self.metrics.late()

    def _dropped(self, result: Put) -> None:
        self.metrics.put(result)
        self._history.put(result)

    def _stored(self, ticket: int, size: int, result: Put, fault: str) -> None:
        self._history.put(result, failed=bool(fault))
        self.metrics.put(result, size if result == "stored" else 0)
        if fault:
            self._writing.failed(ticket, fault)
        else:
            self._writing.succeeded(ticket)
