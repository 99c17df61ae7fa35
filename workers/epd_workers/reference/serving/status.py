"""The routes that report what this server is and how busy it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from epd_workers import __version__
from epd_workers.reference.model.config import ARCHITECTURE, MODEL_TYPE
from epd_workers.reference.serving.admission import State
from epd_workers.reference.serving.cache_report import CacheReport
from epd_workers.reference.serving.errors import ApiError, busy, invalid
from epd_workers.reference.serving.metrics import Throughput
from epd_workers.reference.serving.options import PROMPTED
from epd_workers.reference.serving.probe import WrongAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.reference.serving.admission import Admission
    from epd_workers.reference.serving.metrics import Metrics
    from epd_workers.reference.serving.options import Options
    from epd_workers.reference.serving.probe import Probe
    from epd_workers.reference.serving.record import RecordBook
    from epd_workers.reference.serving.runner import Queues
    from epd_workers.reference.serving.tiers import Tiers
    from epd_workers.reference.transfer.layout import Layout

MODES = {"prefill": "prefill", "decode": "decode"}
SECTIONS = {"core", "memory", "spec", "lora", "disagg", "queues", "all"}
RECENT = 50
MAX_DIGITS = 9


@dataclass(frozen=True)
class Status:
    """Everything that the status routes report.

    Attributes:
        options: How this server was started.
        layout: The shape of what it hands over.
        model: What it serves.
        geometry: Sizes of its caches.
        engine: Whose load is reported.
        admission: Whether requests are taken.
        queues: Jobs at each point of a transfer.
        early_peers: Counts decode servers that wait for a request which has not come.
        complete: Whether decode servers can find this one (always true where none look).
        probe: Proves that this server works.
        records: The last requests.
        metrics: Counters.
        tiers: What is kept outside the engine.
        throughput: Tokens per second.
    """

    options: Options
    layout: Layout
    model: LoadedModel
    geometry: Geometry
    engine: Engine
    admission: Admission
    queues: Queues
    early_peers: Callable[[], int]
    complete: Callable[[], bool]
    probe: Probe
    records: RecordBook
    metrics: Metrics
    tiers: Tiers
    throughput: Throughput = field(default_factory=Throughput)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes; the older names of SGLang are kept for older routers."""
        return [
            web.get("/health", self._health),
            web.get("/health_generate", self._health_generate),
            web.get("/ready", self._ready),
            web.get("/server_info", self._server_info),
            web.get("/get_server_info", self._server_info),
            web.get("/model_info", self._model_info),
            web.get("/get_model_info", self._model_info),
            web.get("/v1/models", self._models),
            web.get("/v1/loads", self._loads),
            web.get("/v1/requests", self._recent),
            web.get("/v1/requests/{id}", self._request),
            web.get("/metrics", self._metrics),
            web.post("/flush_cache", self._flush),
        ]

    def gauges(self) -> dict[str, float]:
        """Return SGLang's gauges as they are now."""
        load = self.engine.load()
        return {
            "num_running_reqs": load.running,
            "num_queue_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            "max_total_num_tokens": load.max_total_tokens,
            "token_usage": load.used_tokens / load.max_total_tokens,
            "gen_throughput": self.throughput.read(load.generated_tokens),
            "cache_hit_rate": self.report().hit_rate,
            **{f"num_{name}": value for name, value in self._pd_queues().items()},
        }

    def report(self) -> CacheReport:
        """Return what caches and replay did until now."""
        state, split = self.engine.replay(), self.model.weights.config.text.split
        if self.options.role not in PROMPTED:
            # A decode server's replay flags describe what its prefill servers do.
            state = replace(state, decoder_reason="TurnedOff", preset="")
        return CacheReport(state, self.engine.load(), self.geometry, split)

    def _pd_queues(self) -> dict[str, int]:
        return {
            "prefill_bootstrap_queue_reqs": self.queues["bootstrap"] + self.early_peers(),
            "prefill_inflight_queue_reqs": self.queues["inflight"],
            "decode_prealloc_queue_reqs": self.queues["prealloc"],
            "decode_transfer_queue_reqs": self.queues["transfer"],
        }

    async def _health(self, _request: web.Request) -> web.Response:
        self._require_up()
        return web.Response(text="OK")

    async def _health_generate(self, request: web.Request) -> web.Response:
        self._require_up()
        semantic = request.query.get("semantic", "false")
        if semantic not in {"true", "false"}:
            raise invalid(f"semantic is {semantic[:20]!r}: must be true or false", "semantic")
        load = self.engine.load()
        # A busy engine proves itself by its work; one more request would only wait behind it.
        if semantic == "false" and (load.running or load.encoding):
            return web.Response(text="OK")
        try:
            asked = await self.probe(semantic=semantic == "true")
        except WrongAnswer as error:
            raise ApiError(503, str(error), code="wrong_answer") from error
        return web.Response(text="OK" if asked or semantic == "false" else "OK, but there was no question to ask here")

    async def _ready(self, _request: web.Request) -> web.Response:
        self._require_up()
        if not self.complete():
            raise busy(
                "no decode server can find this prefill server: its bootstrap table is not complete", "not_ready"
            )
        return web.Response(text="OK")

    def _require_up(self) -> None:
        if self.admission.state is not State.READY:
            raise busy(f"this server is {self.admission.state}", str(self.admission.state))
        if not self.engine.alive:
            raise ApiError(503, "the engine has failed", code="engine_failed")

    async def _server_info(self, _request: web.Request) -> web.Response:
        options, load, report = self.options, self.engine.load(), self.report()
        info = self._identity() | {
            "status": str(self.admission.state),
            "role": options.role,
            "pod": options.pod,
            "max_total_num_tokens": load.max_total_tokens,
            "max_queued_requests": options.max_queued_requests,
            "chunked_prefill_size": options.chunked_prefill_size,
            "disaggregation_bootstrap_port": options.bootstrap_port,
            "encoder_only": options.role == "encode",
            "language_only": options.role == "prefill" and options.vision == "remote",
            "kv_layout": self.layout.kv_layout,
            "replay": report.replay(),
            "cache": report.cache(),
            **self.tiers.state(),
        }
        return web.json_response(info)

    async def _model_info(self, _request: web.Request) -> web.Response:
        return web.json_response(self._identity())

    def _identity(self) -> dict[str, Any]:
        options = self.options
        return {
            "version": __version__,
            "model_path": options.model_path or options.served_model_name,
            "tokenizer_path": "",
            "served_model_name": options.served_model_name,
            "is_generation": options.role != "encode",
            "has_image_understanding": options.vision != "off",
            "has_audio_understanding": False,
            "model_type": MODEL_TYPE,
            "architectures": [ARCHITECTURE],
            "disaggregation_mode": MODES.get(options.role, "null"),
            "tp_size": 1,
            "dp_size": 1,
            "context_length": options.context_length,
            "max_model_len": options.context_length,
            "max_running_requests": options.max_running_requests,
            "page_size": self.layout.page_size,
            "kv_cache_dtype": self.layout.kv_cache_dtype,
        }

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self.options.served_model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.options.served_model_name,
            "parent": None,
            "max_model_len": self.options.context_length,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _loads(self, request: web.Request) -> web.Response:
        asked = {part.strip() for part in request.query.get("include", "all").split(",")}
        if not asked <= SECTIONS:
            wrong = ", ".join(sorted(asked - SECTIONS))
            raise invalid(f"include names {wrong}: must be of {', '.join(sorted(SECTIONS))}", "include")
        answer = {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": __version__,
            "accelerator": "cpu",
            "num_accelerators": 1,
            "loads": [self._load(SECTIONS if "all" in asked else asked)],
        }
        return web.json_response(answer)

    def _load(self, sections: set[str]) -> dict[str, Any]:
        load = self.engine.load()
        state: dict[str, Any] = {
            "dp_rank": 0,
            "num_running_reqs": load.running + load.encoding,
            "num_waiting_reqs": load.waiting,
            "num_total_reqs": self.admission.active,
            "num_used_tokens": load.used_tokens,
            "num_total_tokens": load.used_tokens,
            "max_total_num_tokens": load.max_total_tokens,
            "max_running_requests": load.max_running_requests,
            "token_usage": load.used_tokens / load.max_total_tokens,
            "gen_throughput": round(self.throughput.read(load.generated_tokens), 3),
            "utilization": load.running / load.max_running_requests,
        }
        if "memory" in sections:
            gigabytes = load.max_total_tokens * self.geometry.bytes_per_token / 1e9
            state["memory"] = {
                "kv_cache_gb": round(float(gigabytes), 6),
                "token_capacity": load.max_total_tokens,
            }
        if "disagg" in sections:
            mode = MODES.get(self.options.role, "null")
            state["disaggregation"] = {"mode": mode, **self._pd_queues(), "decode_retracted_queue_reqs": 0}
        if "queues" in sections:
            state["queues"] = {"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0}
        return state

    async def _recent(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", str(RECENT))
        if not limit.isdecimal() or len(limit) > MAX_DIGITS:
            raise invalid(f"limit is {limit[:20]!r}: must be a number of at most {MAX_DIGITS} digits", "limit")
        return web.json_response({"requests": [record.state() for record in self.records.recent(int(limit))]})

    async def _request(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        records = self.records.find(name)
        if not records:
            message = f"request {name[:256]!r} is not among the last requests of this server"
            raise ApiError(404, message, code="request_not_found", param="id")
        return web.json_response({"id": name, "requests": [record.state() for record in records]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        families = self.report().families(self.options.served_model_name)
        text = self.metrics.exposition(self.gauges(), families)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _flush(self, _request: web.Request) -> web.Response:
        if not self.engine.flush_cache():
            raise invalid("the cache cannot be flushed while requests run", code="busy")
        return web.Response(text="Cache flushed.\n")
