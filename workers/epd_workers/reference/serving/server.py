"""Puts a role together from its parts, listens, and takes everything down again in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import zmq.asyncio
from aiohttp import web
from PIL import Image

from epd_workers.reference.engine.engine import Engine
from epd_workers.reference.engine.request import Limits, Sampling
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.serving.admission import Admission, State
from epd_workers.reference.serving.decode import DecodeRunner
from epd_workers.reference.serving.encode import EncodeService
from epd_workers.reference.serving.errors import error_middleware, explain
from epd_workers.reference.serving.generation import Generation
from epd_workers.reference.serving.media import MediaLimits, media_session
from epd_workers.reference.serving.metrics import Metrics
from epd_workers.reference.serving.options import ANY_HOSTS, Options
from epd_workers.reference.serving.prefill import PrefillRunner
from epd_workers.reference.serving.record import Leg, Record, RecordBook
from epd_workers.reference.serving.runner import AggregatedRunner, Assignment, Queues, Runner
from epd_workers.reference.serving.status import Status
from epd_workers.reference.serving.text import deltas
from epd_workers.reference.serving.vision import LocalVision, Prompts, RemoteVision, Vision
from epd_workers.reference.serving.work import FAKE_HOST, Job, PromptParts, Rendezvous, Rules, Work
from epd_workers.reference.transfer.bootstrap import BootstrapTable, Rank, Shape
from epd_workers.reference.transfer.encoders import EncoderPool
from epd_workers.reference.transfer.layout import Layout
from epd_workers.reference.transfer.receiver import Receiver
from epd_workers.reference.transfer.registry import EncoderRegistry, ProbePolicy
from epd_workers.reference.transfer.route import base_url, register
from epd_workers.reference.transfer.sender import PageServer
from epd_workers.reference.transfer.timeouts import Timeouts

if TYPE_CHECKING:
    from epd_workers.reference.model.interface import Model

log = logging.getLogger(__name__)

# Above any router's or load balancer's idle time: the side that may send a request must be the one that closes.
KEEP_ALIVE_SECONDS = 75.0
CLOSE_SECONDS = 0.5
LONGEST_HEARTBEAT_SECONDS = 3.0
PROBE_TEXT = "health"


@dataclass(frozen=True)
class Ports:
    """The ports that a server listens on; 0 where its role has none."""

    http: int
    bootstrap: int = 0
    encoders: int = 0
    pages: int = 0


class Server:
    """One ``epd-reference`` process."""

    def __init__(self, options: Options, model: Model) -> None:
        self._options = options
        self._model = model
        self._tokenizer = Tokenizer()
        limits = Limits(
            page_size=options.page_size,
            max_total_tokens=options.max_total_tokens,
            max_running_requests=options.max_running_requests,
            max_queued_requests=max(1, options.max_queued_requests),
            chunked_prefill_size=options.chunked_prefill_size,
        )
        self._engine = Engine(model, self._tokenizer, limits)
        self.layout = layout_of(model, options)
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
        """Listen on all ports, register with the own bootstrap table, and take requests once a probe went well."""
        try:
            await self._start()
        except BaseException:
            await self._exits.aclose()
            raise

    async def _start(self) -> None:
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
            status = self._status(Queues(), records, lambda: self._probe_encoder(local))
            app.add_routes(EncodeService(self._options.pod, local, context, self.admission, records).routes())
        else:
            runner = await self._runner(session)
            status = self._status(runner.queues, records, lambda: self._probe_runner(runner))
            vision = await self._vision(local, session, context)
            app.add_routes(self._generation(runner, vision, status).routes())
        app.add_routes(status.routes())
        http = await self._listen(app, self._options.port)
        self.ports = Ports(http, self._bootstrap_port, self._encoders_port, self._pages_port)
        if self._pages is not None:
            await register(session, base_url(self._own_host(), self._bootstrap_port), self._rank(http))
        await status.probe()
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
            return DecodeRunner(self._engine, self._model, receiver, session, options.bootstrap_port)
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

    def _status(self, queues: Queues, records: RecordBook, probe: Any) -> Status:
        return Status(
            options=self._options,
            layout=self.layout,
            engine=self._engine,
            admission=self.admission,
            queues=queues,
            early_peers=lambda: self._pages.waiting_peers if self._pages else 0,
            complete=lambda: self._pages is None or self._table.complete,
            probe=probe,
            records=records,
            metrics=Metrics(self._options.served_model_name),
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

    async def _probe_runner(self, runner: Runner) -> None:
        """Generate a token, and on a decode server a second one: the first would come from the missing peer."""
        tokens = 2 if self._options.role == "decode" else 1
        meeting = Rendezvous(FAKE_HOST, None, 0) if self._options.disaggregated else None
        sampling = Sampling(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
        job = Job(0, 0, sampling, meeting)
        prompts = Prompts(Work((PromptParts((PROBE_TEXT,)),), (job,)), None, self._tokenizer, "probe")
        record = Record("probe", (), "probe")
        assignment = Assignment(job, prompts, record, Leg(self._options.role, self._options.pod), uuid.uuid4().hex)
        try:
            async with contextlib.aclosing(deltas(runner, assignment)) as steps:
                async for _delta in steps:
                    pass
        finally:
            await prompts.close()

    async def _probe_encoder(self, _vision: LocalVision) -> None:
        await self._engine.encode(Image.new("RGB", (32, 32)))


def layout_of(model: Model, options: Options) -> Layout:
    """Return the shape of this server's pages; two different layout keys make two different layouts."""
    config = model.config
    key = f"/{options.layout_key}" if options.layout_key else ""
    dtype = config.layout.split("/")[1]
    return Layout(
        options.page_size, model.new_cache(options.page_size).page_bytes, dtype, f"{config.layout}{key}"[:256]
    )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
