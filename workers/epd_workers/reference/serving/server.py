"""Puts a role together from its parts, listens, and takes everything down again in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import zmq.asyncio
from aiohttp import web

from epd_workers.reference.engine.engine import Engine
from epd_workers.reference.serving.admission import Admission, State
from epd_workers.reference.serving.decode import DecodeRunner
from epd_workers.reference.serving.encode import EncodeService
from epd_workers.reference.serving.errors import error_middleware, explain
from epd_workers.reference.serving.generation import Generation
from epd_workers.reference.serving.media import MediaLimits, media_session
from epd_workers.reference.serving.metrics import Metrics
from epd_workers.reference.serving.options import ANY_HOSTS, Options
from epd_workers.reference.serving.prefill import PrefillRunner
from epd_workers.reference.serving.probe import EncoderProbe, Probe, Question, RunnerProbe
from epd_workers.reference.serving.record import RecordBook
from epd_workers.reference.serving.runner import AggregatedRunner, Queues, Runner
from epd_workers.reference.serving.setup import checkpoint_of, layout_of, limits_of
from epd_workers.reference.serving.status import Status
from epd_workers.reference.serving.tiers import Tiers
from epd_workers.reference.serving.vision import LocalVision, RemoteVision, Vision
from epd_workers.reference.serving.work import Rules
from epd_workers.reference.transfer.bootstrap import BootstrapTable, Rank, Shape
from epd_workers.reference.transfer.encoders import EncoderPool
from epd_workers.reference.transfer.receiver import Receiver
from epd_workers.reference.transfer.registry import EncoderRegistry, ProbePolicy
from epd_workers.reference.transfer.route import base_url, register
from epd_workers.reference.transfer.sender import PageServer
from epd_workers.reference.transfer.timeouts import Timeouts

if TYPE_CHECKING:
    from epd_workers.reference.model.loaded import LoadedModel

log = logging.getLogger(__name__)

# Above any router's or load balancer's idle time: the side that may send a request must be the one that closes.
KEEP_ALIVE_SECONDS = 75.0
CLOSE_SECONDS = 0.5
LONGEST_HEARTBEAT_SECONDS = 3.0


@dataclass(frozen=True)
class Ports:
    """The ports that a server listens on; 0 where its role has none."""

    http: int
    bootstrap: int = 0
    encoders: int = 0
    pages: int = 0


class Server:
    """One ``epd-reference`` process."""

    def __init__(self, options: Options, model: LoadedModel) -> None:
        self._options = options
        self._model = model
        self._tokenizer = model.tokenizer
        limits = limits_of(options)
        self._metrics = Metrics(options.served_model_name)
        self._tiers = Tiers(options, model, limits, self._metrics.registry)
        try:
            self._engine = Engine(model, limits, self._tiers.stores)
        except BaseException:
            self._tiers.close()
            raise
        self._geometry = model.geometry(limits.page_size, limits.cache_type)
        self.layout = layout_of(self._engine, options)
        silence = options.silence_timeout
        heartbeat = min(silence / 4, LONGEST_HEARTBEAT_SECONDS)
        self._timeouts = Timeouts(options.handshake_timeout, silence=silence, heartbeat=heartbeat)
        self._exits = contextlib.AsyncExitStack()
        self._table = BootstrapTable()
        self._bootstrap_port = 0
        self._pages: PageServer | None = None
        self._pages_port = 0
        self._encoders_port = 0
        self.admission = Admission(options.max_running_requests + options.max_queued_requests)
        self.ports = Ports(0)

    async def start(self) -> None:
        """Listen on all ports, register with the own bootstrap table, and take requests once a probe went well.

        Raises:
            OSError: A port cannot be had.
            TransferError: The bootstrap table refuses this server.
            WrongAnswer: The model fails the checkpoint's own question.
            NoRoom: The question does not fit into this server's limits.
            EngineFailed: The model cannot run.
        """
        try:
            await self._start()
        except BaseException:
            await self._exits.aclose()
            raise

    async def _start(self) -> None:
        self._exits.push_async_callback(asyncio.to_thread, self._tiers.close)
        await self._engine.start()
        self._exits.push_async_callback(self._engine.stop)
        session = await self._exits.enter_async_context(aiohttp.ClientSession())
        context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._exits.callback(context.destroy, linger=0)
        # A server that only this machine reaches may fetch from it; a pod may not.
        loopback = self._options.host not in ANY_HOSTS
        media = await self._exits.enter_async_context(media_session(loopback=loopback))
        records = RecordBook()
        local = LocalVision(
            self._engine,
            media,
            MediaLimits(self._options.max_image_bytes, self._options.image_timeout, loopback),
            self._options.pod,
        )
        app = web.Application(middlewares=[error_middleware], client_max_size=self._options.max_body_bytes)
        if self._options.role == "encode":
            status = self._status(Queues(), records, EncoderProbe(self._engine))
            app.add_routes(EncodeService(self._options.pod, local, context, self.admission, records).routes())
        else:
            runner = await self._runner(session)
            question = Question.of(checkpoint_of(self._options))
            status = self._status(runner.queues, records, RunnerProbe(self._options, runner, self._tokenizer, question))
            vision = await self._vision(local, session, context)
            app.add_routes(self._generation(runner, vision, status).routes())
        app.add_routes(status.routes())
        http = await self._listen(app, self._options.port)
        self.ports = Ports(http, self._bootstrap_port, self._encoders_port, self._pages_port)
        if self._pages is not None:
            await register(session, base_url(self._own_host(), self._bootstrap_port), self._rank(http))
        await status.probe(semantic=True)
        self.admission.state = State.READY
        log.info("%s server %s is ready on port %d", self._options.role, self._options.pod, http)

    async def stop(self, seconds: float) -> bool:
        """Refuse new requests, wait for the others up to ``seconds``, close everything; False when some were cut."""
        drained = await self.admission.drain(seconds)
        await self._exits.aclose()
        return drained

    async def _runner(self, session: aiohttp.ClientSession) -> Runner:
        options = self._options
        if options.role == "aggregated":
            return AggregatedRunner(self._engine)
        if options.role == "decode":
            pages = -(-min(options.context_length, options.max_total_tokens) // options.page_size)
            receiver = Receiver(self.layout, pages, options.pod, self._timeouts)
            return DecodeRunner(self._engine, self._geometry, receiver, session, options.bootstrap_port)
        self._pages = PageServer(self.layout, self._timeouts, explain)
        self._pages_port = await self._pages.start(options.host, options.transfer_port)
        self._exits.push_async_callback(self._pages.close)
        self._bootstrap_port = await self._listen(self._table.application(), options.bootstrap_port)
        return PrefillRunner(self._engine, self._pages, options.handshake_timeout)

    async def _vision(
        self, local: LocalVision, session: aiohttp.ClientSession, context: zmq.asyncio.Context
    ) -> Vision | None:
        options = self._options
        if options.vision == "local" and options.role != "decode":
            return local
        if options.vision != "remote" or options.role != "prefill":
            return None
        registry = EncoderRegistry(ProbePolicy(interval=options.encoder_probe_interval))
        self._encoders_port = await self._listen(registry.application(), options.encoder_bootstrap_port)
        watch = asyncio.create_task(registry.watch(session))
        self._exits.push_async_callback(_cancel, watch)
        pool = EncoderPool(
            registry,
            session,
            context,
            bind_host=options.host,
            advertised_host=options.advertise_host,
            hidden=self._model.config.hidden_size,
            seconds=options.encode_timeout,
        )
        return RemoteVision(pool)

    def _status(self, queues: Queues, records: RecordBook, probe: Probe) -> Status:
        return Status(
            options=self._options,
            layout=self.layout,
            model=self._model,
            geometry=self._geometry,
            engine=self._engine,
            admission=self.admission,
            queues=queues,
            early_peers=lambda: self._pages.waiting_peers if self._pages else 0,
            complete=lambda: self._pages is None or self._table.complete,
            probe=probe,
            records=records,
            metrics=self._metrics,
            tiers=self._tiers,
        )

    def _generation(self, runner: Runner, vision: Vision | None, status: Status) -> Generation:
        options = self._options
        rules = Rules(
            tokenizer=self._tokenizer,
            model=options.served_model_name,
            needs_room=options.disaggregated,
            vision=options.vision != "off",
            max_images=options.max_images,
        )
        return Generation(
            role=options.role,
            pod=options.pod,
            rules=rules,
            runner=runner,
            vision=vision,
            admission=self.admission,
            records=status.records,
            metrics=status.metrics,
        )

    def _rank(self, http_port: int) -> Rank:
        shape = Shape(
            sizes=(1, 1, 1, 1),
            page_size=self.layout.page_size,
            kv_cache_dtype=self.layout.kv_cache_dtype,
            kv_layout=self.layout.kv_layout,
            page_bytes=self.layout.page_bytes,
            window_page_bytes=self.layout.window_page_bytes,
            state_bytes=self.layout.state_bytes,
            load_balance_method="follow_bootstrap_room",
            prefill_http_port=http_port,
        )
        return Rank((0, 0, 0, 0), self._options.advertise_host, self._pages_port, shape)

    async def _listen(self, app: web.Application, port: int) -> int:
        # A handler ends with its connection: a client that leaves frees what its request holds.
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            shutdown_timeout=CLOSE_SECONDS,
            access_log=None,
        )
        await runner.setup()
        self._exits.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, self._options.host, port)
        await site.start()
        bound: int = runner.addresses[0][1]
        return bound

    def _own_host(self) -> str:
        return "127.0.0.1" if self._options.host in ANY_HOSTS else self._options.host


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
