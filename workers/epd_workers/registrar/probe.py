"""Whether the engines still compute, asked with real work from every Ready pod.

The tricky idea: an HTTP server answers long after the process behind it stopped. SGLang 0.5.23 keeps HTTP, tokenizer
and encoder directory in one process and the scheduler in another; ``/server_info`` waits for a hung scheduler without
end (``managers/tokenizer_control_mixin.py:967``), ``/ready`` repeats the last verdict, and ``/health`` can be set to
say 200 always. ``GET /health_generate`` puts the question itself: on prefill and decode one token with a transfer that
needs no peer, or any output of a busy scheduler (``entrypoints/http_server.py:721``); on an encoder the encoding of a
picture of 32x32 (``disaggregation/encoder/http_server.py``). An engine without that page gets no verdict.

What it cannot see: an encoder that holds unfinished requests answers 200 unasked (``has_pending_embeddings``), and
under attention DP one rank's output speaks for all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from epd_workers.registrar.metrics import Metrics
    from epd_workers.registrar.pod import Pod, PodSource

log = logging.getLogger(__name__)

PAGE = "/health_generate"
TICK = 1.0
# Between two questions to one pod. Each costs an idle engine one token or one tiny picture.
PERIOD = 30.0
# After a miss: soon enough to be sure, late enough to let an engine restart.
RETRY_PERIOD = 5.0
# Failures in a row after which a pod is named: one lost connection is no verdict.
MISSES = 2
# Longer than the 20 s that an engine gives itself before it answers 503.
TIMEOUT = aiohttp.ClientTimeout(total=25, connect=2)
CONCURRENCY = 16


class Probe:
    """Asks every pod that is Ready, each at its own pace and never twice at once.

    Args:
        session: Shared HTTP session.
        source: The pods.
        metrics: Where to count.
        engine_port: Port of the engines' HTTP servers.
        changed: Called when a verdict changes.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        source: PodSource,
        metrics: Metrics,
        *,
        engine_port: int,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._source = source
        self._metrics = metrics
        self._engine_port = engine_port
        self._changed = changed
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._due: dict[str, float] = {}
        self._misses: dict[str, int] = {}
        self._failing: dict[str, str] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Pod uid to why it does not compute; absent where it does or where nothing is known."""
        return self._failing

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self.begin()
                await asyncio.sleep(TICK)
        finally:
            for task in self._asking.values():
                task.cancel()

    def begin(self) -> None:
        """Ask every pod whose turn it is. Does not wait: a hung engine must not delay the question to the others."""
        pods = [pod for pod in self._source.pods or [] if pod.ready and not pod.deleting and pod.ip]
        self._forget({pod.uid for pod in pods})
        for pod in pods:
            if pod.uid not in self._asking and self._due.get(pod.uid, 0.0) <= self._clock():
                self._due[pod.uid] = self._clock() + PERIOD
                self._asking[pod.uid] = asyncio.create_task(self._ask(pod), name=f"probe of {pod.name}")

    async def settle(self) -> None:
        """Wait for the questions that are under way."""
        await asyncio.gather(*self._asking.values())

    async def _ask(self, pod: Pod) -> None:
        try:
            async with self._slots:
                fault = await self._fault(f"{pod.url(self._engine_port)}{PAGE}")
            self._judge(pod, fault)
        finally:
            if self._asking.get(pod.uid) is asyncio.current_task():
                del self._asking[pod.uid]

    async def _fault(self, url: str) -> str:
        """What is wrong; empty when the engine computed, or has no such page."""
        try:
            async with self._session.get(url, timeout=TIMEOUT, allow_redirects=False) as response:
                if response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return ""
                return f"answered {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or f"no answer within {TIMEOUT.total:g} s"

    def _judge(self, pod: Pod, fault: str) -> None:
        if not fault:
            self._misses.pop(pod.uid, None)
            if self._failing.pop(pod.uid, None) is not None:
                log.info("%s computes again", pod.name)
                self._changed()
            return
        self._metrics.error("probe")
        self._due[pod.uid] = self._clock() + RETRY_PERIOD
        self._misses[pod.uid] = self._misses.get(pod.uid, 0) + 1
        if self._misses[pod.uid] < MISSES:
            return
        reason = f"the engine does not compute: GET {PAGE}: {fault}"
        if pod.uid not in self._failing:
            log.warning("%s: %s; asking on", pod.name, reason)
            self._changed()
        self._failing[pod.uid] = reason

    def _forget(self, uids: Collection[str]) -> None:
        for uid in self._asking.keys() - uids:
            self._asking.pop(uid).cancel()
        for known in (self._due, self._misses, self._failing):
            for uid in known.keys() - uids:
                del known[uid]
