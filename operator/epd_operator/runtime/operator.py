"""The operator process: stand by, lead, and leave in an orderly way.

The order of leaving matters. On SIGTERM: no more keys, the workers finish, the lease is given back, and only then are
the watches torn down; so the other replica starts at once and never beside a writer. When the lease is *lost* the
process ends on the spot, in the middle of its work.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from epd_operator import __version__
from epd_operator.kube import (
    ApiError,
    Connection,
    Credential,
    CredentialError,
    HttpCluster,
    LeadershipLost,
    NotFound,
    load_configuration,
)
from epd_operator.kube.kind import LEASE
from epd_operator.plan import Event, Settings
from epd_operator.runtime import record
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.intake import Intake
from epd_operator.runtime.kopf_watch import KopfWatches, registry
from epd_operator.runtime.leadership import Leadership
from epd_operator.runtime.liveness import STANDBY_BOUND, Liveness
from epd_operator.runtime.metric import CONTROLLER, Metrics
from epd_operator.runtime.optional import OptionalWatch
from epd_operator.runtime.probe import Server
from epd_operator.runtime.queue import Closed, WorkQueue
from epd_operator.runtime.reconciler import Reconciler
from epd_operator.runtime.registrar import Poller, fetch
from epd_operator.runtime.sync import Sync
from epd_operator.runtime.watch_scope import CUSTOM, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from epd_operator.runtime.config import Config

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 10.0
KOPF_SECONDS: Final = 5.0
LAG_SECONDS: Final = 0.5
CRD_SECONDS: Final = 2.0
LOST: Final = 3
"""Exit status after losing the lease."""


class Operator:
    """Everything wired together.

    Args:
        config: Settings of this process.
        load: Reads the cluster configuration, see `kube.load_configuration`.
        die: Ends the process at once when the lease is lost.
    """

    def __init__(
        self, config: Config, load: Callable[[], Any] = load_configuration, die: Callable[[int], Any] = os._exit
    ) -> None:
        self._config = config
        self._die = die
        self.metrics = Metrics()
        self.cache = Cache()
        self._queue: WorkQueue[Key] = WorkQueue(self.metrics.queue)
        self._liveness = Liveness()
        self._connection = Connection(
            Credential(load),
            user_agent=config.user_agent,
            may_write=self._may_write,
            observe=self._observe,
            foreign=self._foreign,
        )
        self._cluster = HttpCluster(self._connection)
        self._intake = Intake(self.cache, self._queue)
        self._sync = Sync(self._cluster, self._intake, self._liveness, config.scope, config.resync_seconds)
        self._optional = OptionalWatch(self._cluster, self._intake, self._liveness, config.scope)
        self._leadership = Leadership(
            config,
            load,
            observe=self._observe,
            changed=lambda leads: self.metrics.leader.labels(config.lease).set(leads),
            lost=self._lose,
        )
        self._kopf = KopfWatches(
            registry(self._connection, self._intake, self._sync.event_handled),
            config.scope,
            self._liveness.handler_failed,
        )
        self._leads = False
        self._stop = asyncio.Event()
        self.metrics.leader.labels(config.lease).set(0)
        self.metrics.watch_ages(self._liveness.ages)
        self.metrics.conditions(self.cache.custom)

    async def run(self) -> int:
        """Run until it is asked to stop; returns the exit status."""
        self._signals()
        probes, scrape = Server(self._config.probes_port), Server(self._config.metrics_port)
        probes.check("/healthz", self._ill)
        probes.check("/readyz", self._unready)
        scrape.metrics(self.metrics.registry)
        ports = await probes.start(), await scrape.start()
        log.info(
            "started",
            extra={
                "version": __version__,
                "identity": self._config.identity,
                "namespaces": ",".join(self._config.scope.namespaces) or "all",
                "probes": ports[0],
                "metrics": ports[1],
            },
        )
        lag = asyncio.create_task(self._lag(), name="event loop lag")
        try:
            return await self._stand_by()
        except CredentialError as error:
            log.error(str(error))  # noqa: TRY400 - the message says it all
            return 2
        finally:
            lag.cancel()
            await probes.stop()
            await scrape.stop()
            await self._connection.close()
            await self._leadership.close()

    async def _stand_by(self) -> int:
        acquire = asyncio.ensure_future(self._leadership.acquire())
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({acquire, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not acquire.done():
                log.info("stopped while standing by")
                return 0
            acquire.result()
            log.info("leading", extra={"identity": self._config.identity})
            return await self._lead(stop)
        finally:
            acquire.cancel()
            stop.cancel()

    async def _lead(self, stop: asyncio.Task[Any]) -> int:
        self._leads = True
        pod_session = aiohttp.ClientSession()  # never the API server's session: that one carries our token
        poller = Poller(self.cache, self._queue.add, functools.partial(fetch, pod_session), self._config.registrar_port)
        work = asyncio.create_task(self._work(poller), name="work")
        try:
            done, _ = await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stop in done:
                log.info("stopping")
            elif work in done:
                log.error("stopping: a part of the operator ended", exc_info=work.exception())
            return 0 if stop in done else 1
        finally:
            await self._leave(work, poller)
            await pod_session.close()

    async def _leave(self, work: asyncio.Task[None], poller: Poller) -> None:
        self._queue.close()
        if not await self._queue.drain(DRAIN_SECONDS):
            log.warning("a reconciliation was cut off")
        work.cancel()
        await asyncio.wait({work})
        await self._leadership.release()
        poller.close()
        await self._kopf.stop(KOPF_SECONDS)
        log.info("stopped")

    def _lose(self) -> None:
        log.error("lease lost: ending at once")
        self._die(LOST)

    async def _work(self, poller: Poller) -> None:
        """Everything that only the leader does; ends only by failing."""
        settings = Settings(
            router_image=self._config.router_image,
            worker_image=self._config.worker_image,
            version=__version__,
            operator_namespace=self._config.namespace,
            rdma_resource=self._config.rdma_resource,
            advisories=self._config.advisories,
        )
        reconciler = Reconciler(
            self._cluster,
            self.cache,
            poller,
            settings,
            applied=lambda kind, outcome: self.metrics.applies.labels(kind, outcome).inc(),
            record=self._post,
        )
        await self._wait_for_crd()
        self._liveness.expect([*self._sync.streams(), *self._optional.streams(), LEASE.resource])
        kopf_run = await self._kopf.start()
        self._signals()  # kopf has installed its own
        parts: list[Coroutine[Any, Any, None]] = [
            self._until(kopf_run),
            self._sync.run(),
            self._sync.resync(),
            self._optional.run(),
            self._watch_lease(),
            *(self._worker(reconciler) for _ in range(self._config.workers)),
        ]
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)

    async def _until(self, kopf_run: asyncio.Task[None]) -> None:
        await asyncio.wait({kopf_run})
        if not self._stop.is_set() and not kopf_run.cancelled():
            raise RuntimeError("the watches ended") from kopf_run.exception()

    async def _worker(self, reconciler: Reconciler) -> None:
        await self._sync.ready.wait()
        await self._optional.ready.wait()
        while True:
            try:
                key = await self._queue.get()
            except Closed:
                return
            started = time.perf_counter()
            active = self.metrics.workers.labels(CONTROLLER)
            active.inc()
            try:
                result = await self._reconcile(reconciler, key)
            finally:
                active.dec()
                self._queue.done(key)
            self.metrics.reconciles.labels(CONTROLLER, result).inc()
            self.metrics.reconcile_seconds.labels(CONTROLLER).observe(time.perf_counter() - started)

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> str:
        """One reconciliation and what follows from it for the queue; never raises but on cancellation."""
        try:
            outcome = await reconciler.reconcile(key)
        except (ApiError, LeadershipLost) as error:
            seconds = self._failed(key)
            log.warning("not reconciled", extra={"key": key.text, "error": str(error), "retry": f"{seconds:.1f}s"})
            return "error"
        except Exception:
            seconds = self._failed(key)
            log.exception("not reconciled", extra={"key": key.text, "retry": f"{seconds:.1f}s"})
            return "error"
        if outcome.result == "error":
            self._failed(key)
        else:
            self._queue.forget(key)
            if outcome.result == "requeue":
                self._queue.add(key)
            elif outcome.after is not None:
                self._queue.add_after(key, outcome.after)
        return outcome.result

    def _failed(self, key: Key) -> float:
        self.metrics.reconcile_errors.labels(CONTROLLER).inc()
        return self._queue.retry(key)

    async def _post(self, custom: Mapping[str, Any], events: tuple[Event, ...]) -> None:
        await record.post(self._cluster, custom, events, self._config.identity)

    async def _wait_for_crd(self) -> None:
        warned = False
        while True:
            try:
                await self._cluster.list(CUSTOM, self._config.scope.lists[0])
            except NotFound:
                if not warned:
                    log.warning("waiting for the CRD", extra={"crd": CUSTOM.resource})
                warned = True
            except ApiError as error:
                log.warning("custom resources cannot be listed", extra={"error": str(error)})
            else:
                return
            await asyncio.sleep(CRD_SECONDS)

    async def _watch_lease(self) -> None:
        """See our own renewals come back through a watch: the proof of life behind `/healthz`."""
        fields = f"metadata.name={self._config.lease}"
        while True:
            try:
                _, version = await self._cluster.list(LEASE, self._config.namespace, fields=fields)
                async for _ in self._cluster.watch(
                    LEASE, self._config.namespace, fields=fields, version=version, silence=self._config.timing.duration
                ):
                    self._liveness.seen(LEASE.resource)
            except ApiError as error:
                log.warning("watch on the lease ended", extra={"error": str(error)})
            await asyncio.sleep(self._config.timing.retry)

    async def _lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.metrics.loop_lag.set(max(0.0, loop.time() - due))

    def _ill(self) -> list[str]:
        if self._leads:
            return self._liveness.faults(LEASE.resource)
        silence = time.monotonic() - self._leadership.polled
        return [f"the lease could not be read for {silence:.0f} s"] if silence > STANDBY_BOUND else []

    def _unready(self) -> list[str]:
        if self._leads:
            return [] if self._sync.ready.is_set() else ["the first lists are not complete"]
        silence = time.monotonic() - self._leadership.polled
        bound = self._config.timing.duration
        return [f"the lease could not be read for {silence:.0f} s"] if silence > bound else []

    def _observe(self, method: str, _path: str, status: int, seconds: float) -> None:
        code = str(status) if status else "<error>"
        self.metrics.requests.labels(code, method, "kubernetes").inc()
        self.metrics.request_seconds.labels(method, "kubernetes").observe(seconds)

    def _may_write(self) -> bool:
        return self._leadership.holds()

    def _foreign(self, path: str, watch: bool) -> None:
        self._sync.answered(path, watch)

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)


async def run(config: Config, load: Callable[[], Any] = load_configuration) -> int:
    """Run one operator process; returns its exit status."""
    return await Operator(config, load).run()
