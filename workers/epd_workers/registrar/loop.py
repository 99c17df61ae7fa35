"""The level-triggered loop: look at pods, router and directories, send what differs, look again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING

from epd_workers.registrar.backoff import Backoff
from epd_workers.registrar.directory import Directory, DirectoryError
from epd_workers.registrar.membership import Add, Remove, Worker, difference, directory_difference, standings
from epd_workers.registrar.router import Router, RouterError
from epd_workers.registrar.state import View

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from epd_workers.registrar.metrics import Metrics
    from epd_workers.registrar.pod import Pod, PodSource

log = logging.getLogger(__name__)

CONCURRENCY = 8
# Between passes while something is under way: the router registers and drains in the background without a notice.
HASTE = 0.5
# Lets a burst of pod events become one pass.
COALESCE = 0.05
# A list that was empty and is wanted so: a prefill probes encoders that it evicted for 600 s and lists them again by
# itself, and by then the address may be another pod's.
BARE_SECONDS = 60.0
# A worker that cannot be registered must not keep the router pod out of service for ever.
FIRST_SYNC_LIMIT = 15.0


class Loop:
    """Keeps the membership true.

    Args:
        source: The pods.
        router: The router beside us.
        directory: Client of the prefills' encoder directories.
        metrics: Where to count.
        wake: Set to ask for a pass soon.
        engine_port: Port of the engines' HTTP servers.
        resync: Seconds between passes at rest.
        failing: Uids of the pods whose engine does not compute. Such an encoder stays where it is listed, but is not
            registered anew: a prefill that dropped it after failed probes of its own would get it back in every pass.
            It is not unregistered either, so that the registrars of several router pods never undo each other's work.
    """

    def __init__(
        self,
        source: PodSource,
        router: Router,
        directory: Directory,
        metrics: Metrics,
        wake: asyncio.Event,
        *,
        engine_port: int,
        resync: float,
        failing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._source = source
        self._router = router
        self._directory = directory
        self._metrics = metrics
        self._engine_port = engine_port
        self._resync = resync
        self._wake = wake
        self._passed = asyncio.Condition()
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._asked = Backoff(first=2, ceiling=15)
        self._sick = Backoff(first=1, ceiling=15)
        self._failing = failing
        self._bare: dict[str, float] = {}
        self._first_answer: float | None = None
        self._complained = False
        self._last_pass = 0.0
        self._moving = True
        self._settled = False
        self.view = View()

    @property
    def ready(self) -> bool:
        """The router knows what it needs to know, and answers."""
        return self._settled and self.view.router_ready

    async def run(self) -> None:
        """Pass after pass until cancelled."""
        while True:
            pause = HASTE if self._moving else self._resync * random.uniform(0.9, 1.1)  # noqa: S311
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
                await asyncio.sleep(COALESCE)
            self._wake.clear()
            with self._metrics.sync.time():
                await self.sync()
            async with self._passed:
                self._last_pass = time.monotonic()
                self._passed.notify_all()

    async def fresh(self, age: float = 1.0, limit: float = 2.0) -> View:
        """The view, from a new pass if the last is older than ``age`` seconds and a new one ends within ``limit``."""
        if time.monotonic() - self._last_pass > age:
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit), self._passed:
                    await self._passed.wait()
        return self.view

    async def sync(self) -> None:
        """One pass. Expected failures of a peer are counted, logged and left to the next pass."""
        pods = self._source.pods
        workers = await self._workers()
        if pods is None:
            self.view = View(router_ready=workers is not None)
            return
        listed = workers or []
        waiting = {url for pod in pods if self._asked.waiting(url := pod.url(self._engine_port))}
        actions = difference(pods, listed, self._engine_port, waiting) if workers is not None else ()
        # Removals first: a request sent to a dead pod is lost. Encoders before additions: a prefill that takes requests
        # should know where to send the images.
        await asyncio.gather(*(self._remove(action) for action in actions if isinstance(action, Remove)))
        directories = await self._directories(pods)
        await asyncio.gather(*(self._add(action) for action in actions if isinstance(action, Add)))
        self.view = View(pods, listed, directories, router_ready=workers is not None)
        self._judge(pods, listed, acted=bool(actions))

    async def _workers(self) -> list[Worker] | None:
        try:
            workers = await self._router.workers()
        except RouterError as error:
            self._metrics.error("router")
            if not self._complained:
                log.warning("router: %s; trying on", error)
            self._complained = True
            return None
        self._complained = False
        if self._first_answer is None:
            self._first_answer = time.monotonic()
        if not self.view.router_ready:
            log.info("router answers with %d workers", len(workers))
        return workers

    def _judge(self, pods: Collection[Pod], workers: Collection[Worker], *, acted: bool) -> None:
        """Decide how soon to look again, and whether the first sync is over."""
        urls = {pod.url(self._engine_port) for pod in pods}
        for worker in workers:
            if not worker.draining:
                self._asked.succeeded(worker.url)
        self._asked.keep(urls)
        self._sick.keep({self._base(pod) for pod in pods})
        uids = {pod.uid for pod in pods}
        self._bare = {uid: until for uid, until in self._bare.items() if uid in uids}
        outstanding = difference(pods, workers, self._engine_port)
        self._moving = acted or bool(outstanding) or any(worker.draining for worker in workers)
        if not self._settled and self.view.router_ready and self._first_answer is not None:
            late = time.monotonic() - self._first_answer > FIRST_SYNC_LIMIT
            self._settled = late or not (outstanding or acted)

    async def _remove(self, action: Remove) -> None:
        async with self._slots:
            await self._write("remove", action.worker.url, self._router.remove(action.worker), action.reason)

    async def _add(self, action: Add) -> None:
        url = action.pod.url(self._engine_port)
        self._asked.failed(url)  # not a failure yet, but not to be asked again before the router had time
        async with self._slots:
            await self._write("add", url, self._router.add(action.pod), f"{action.pod.role} {action.pod.name}")

    async def _write(self, action: str, url: str, call: Awaitable[None], why: str) -> None:
        try:
            await call
        except RouterError as error:
            self._metrics.error("router")
            log.warning("%s %s failed: %s", action, url, error)
        else:
            self._metrics.wrote(action)
            log.info("%s %s: %s", action, url, why)

    async def _directories(self, pods: Collection[Pod]) -> Mapping[str, Collection[str]]:
        """Bring every eligible prefill's encoder directory up to date.

        Returns:
            Prefill uid -> what it lists now; absent where it did not answer.
        """
        judged = standings(pods)
        encoders: dict[str, set[str]] = {}
        failing = self._failing()
        mute = {pod.url(self._engine_port) for pod in pods if pod.uid in failing}
        for pod in pods:
            if pod.role == "encode" and judged[pod.uid].eligible:
                encoders.setdefault(pod.key, set()).add(pod.url(self._engine_port))
        prefills = [pod for pod in pods if pod.role == "prefill" and judged[pod.uid].eligible]
        lists = await asyncio.gather(*(self._tell(pod, encoders.get(pod.key, set()), mute) for pod in prefills))
        return {pod.uid: listed for pod, listed in zip(prefills, lists, strict=True) if listed is not None}

    async def _tell(self, prefill: Pod, wanted: Collection[str], mute: Collection[str]) -> Collection[str] | None:
        base = self._base(prefill)
        # A prefill without encoders may have no directory at all: one empty (or refused) answer is enough for a while.
        bare = self._bare.get(prefill.uid, 0.0) > time.monotonic()
        if (not wanted and bare) or self._sick.waiting(base):
            return None
        try:
            async with self._slots:
                listed = await self._directory.encoders(base)
                register, unregister = directory_difference(wanted, listed, mute)
                await self._change("register", base, register, self._directory.register)
                await self._change("unregister", base, unregister, self._directory.unregister)
        except DirectoryError as error:
            if wanted:
                self._metrics.error("directory")
                log.warning("encoders of %s: %s; next attempt in %.1f s", prefill.name, error, self._sick.failed(base))
            else:
                self._bare[prefill.uid] = time.monotonic() + BARE_SECONDS
            return None
        self._sick.succeeded(base)
        if wanted:
            self._bare.pop(prefill.uid, None)
        else:
            self._bare[prefill.uid] = time.monotonic() + BARE_SECONDS
        return set(wanted) & ({url.rstrip("/") for url in listed} | set(register))

    async def _change(
        self, action: str, base: str, urls: Collection[str], call: Callable[[str, str], Awaitable[None]]
    ) -> None:
        for url in urls:
            await call(base, url)
            self._metrics.wrote(action)
            log.info("%s encoder %s at %s", action, url, base)

    def _base(self, pod: Pod) -> str:
        return pod.url(self._directory.port)
