"""What the pods report, asked from the pods one by one: `/server_info` of a prefill, else `/metrics`.

The tricky idea: this runs beside the membership loop and never inside it. An engine in the middle of a long step
answers late or not at all, and who is a member must not wait for that; so what is known here is as old as it may be,
and a pod that does not answer keeps what it said last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

from epd_workers.registrar import engine_metrics
from epd_workers.registrar.server_info import ServerInfo, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from epd_workers.registrar.engine_metrics import Plugin
    from epd_workers.registrar.metrics import Metrics
    from epd_workers.registrar.pod import Pod, PodSource

log = logging.getLogger(__name__)

TICK = 1.0
# Between two questions to one pod; its counters need not be fresher than the operator's look at rest.
PERIOD = 15.0
# After an answer without a report: an engine that has none does not learn it while the pod lives, but an image may.
ABSENT_PERIOD = 300.0
TIMEOUT = aiohttp.ClientTimeout(total=2, connect=1)
SIZE_LIMIT = 1 << 20
CONCURRENCY = 4


class Survey:
    """Asks every pod that is Ready, each at its own pace.

    SGLang's `/server_info` has nothing of ours and waits for the scheduler, so a pod whose page is bare is asked for
    its metrics instead; only prefills replay, but every role may run the plugin.

    Args:
        session: Shared HTTP session.
        source: The pods.
        metrics: Where to count.
        engine_port: Port of the engines' HTTP servers.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        source: PodSource,
        metrics: Metrics,
        *,
        engine_port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._source = source
        self._metrics = metrics
        self._engine_port = engine_port
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._due: dict[str, float] = {}
        self._known: dict[str, ServerInfo] = {}
        self._plugins: dict[str, Plugin] = {}
        self._bare: dict[str, float] = {}
        self._complained: set[str] = set()

    @property
    def known(self) -> Mapping[str, ServerInfo]:
        """Pod uid to what it said last; absent where it said nothing."""
        return self._known

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """Pod uid to the plugin that its engine runs; absent where it said nothing of one."""
        return self._plugins

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(TICK)

    async def look(self) -> None:
        """Ask every pod whose turn it is."""
        pods = self._source.pods or []
        self._forget({pod.uid for pod in pods})
        now = self._clock()
        turn = [pod for pod in pods if _answers(pod) and self._due.get(pod.uid, now) <= now]
        await asyncio.gather(*(self._ask(pod) for pod in turn))

    async def _ask(self, pod: Pod) -> None:
        self._due[pod.uid] = self._clock() + PERIOD
        try:
            async with self._slots:
                info = await self._report(pod)
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            # What it said last stands: a busy engine has not changed its mind.
            self._complain(pod, str(error) or repr(error))
            return
        if info.faults:
            self._complain(pod, "; ".join(info.faults))
        else:
            self._complained.discard(pod.uid)
        if info == ServerInfo():
            self._known.pop(pod.uid, None)
            if pod.uid not in self._plugins:
                self._due[pod.uid] = self._clock() + ABSENT_PERIOD
        else:
            self._known[pod.uid] = info

    async def _report(self, pod: Pod) -> ServerInfo:
        base = pod.url(self._engine_port)
        if pod.role == "prefill" and self._bare.get(pod.uid, 0.0) <= self._clock():
            page = await self._get(f"{base}/server_info")
            info = ServerInfo() if page is None else parse(json.loads(page))
            if info != ServerInfo():
                return info
            self._bare[pod.uid] = self._clock() + ABSENT_PERIOD
        page = await self._get(f"{base}/metrics")
        metrics = engine_metrics.parse((page or b"").decode())
        if metrics.plugin is None:
            self._plugins.pop(pod.uid, None)
        else:
            self._plugins[pod.uid] = metrics.plugin
        return ServerInfo(replay=metrics.replay if pod.role == "prefill" else None)

    async def _get(self, url: str) -> bytes | None:
        """A page, None where the engine has none."""
        async with self._session.get(url, timeout=TIMEOUT, allow_redirects=False) as response:
            if HTTPStatus.BAD_REQUEST <= response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return None  # an engine without that page, or one that wants a key for it, reports nothing
            response.raise_for_status()
            raw = await response.content.read(SIZE_LIMIT + 1)
            while len(raw) <= SIZE_LIMIT and (more := await response.content.read(SIZE_LIMIT)):
                raw += more
        if len(raw) > SIZE_LIMIT:
            raise ValueError(f"the answer is longer than {SIZE_LIMIT} bytes")
        return raw

    def _complain(self, pod: Pod, why: str) -> None:
        self._metrics.error("engine")
        if pod.uid not in self._complained:
            self._complained.add(pod.uid)
            log.warning("%s does not tell all of itself: %s; asking on", pod.name, why)

    def _forget(self, uids: Collection[str]) -> None:
        for uid in self._due.keys() - uids:
            del self._due[uid]
            self._known.pop(uid, None)
            self._plugins.pop(uid, None)
            self._bare.pop(uid, None)
            self._complained.discard(uid)


def _answers(pod: Pod) -> bool:
    return pod.ready and not pod.deleting and bool(pod.ip)
