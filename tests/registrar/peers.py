"""Stand-ins for the engine side, small enough to read: what the router asks of a worker, and a prefill's directory.

Every stand-in pod gets an address of its own in 127.0.0.0/8, so pods differ by IP and share ports as in a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.support.ports import free_port

_hosts = itertools.count(2)


def next_host() -> str:
    """The next unused loopback address."""
    number = next(_hosts)
    return f"127.0.{1 + number // 250}.{1 + number % 250}"


@dataclass
class Ports:
    """The ports that all pods of one test share."""

    engine: int = field(default_factory=free_port)
    encoder: int = field(default_factory=free_port)
    bootstrap: int = field(default_factory=free_port)


class Engine:
    """One worker: answers the router's probes and both legs of a chat; a prefill also keeps an encoder directory."""

    def __init__(self, role: str, ports: Ports, host: str | None = None, model: str = "dsv41") -> None:
        self.role = role
        self.host = host or next_host()
        self.ports = ports
        self.model = model
        self.healthy = True
        self.status = 200
        self.directory_status = 200
        self.image_status = 200
        self.token_delay = 0.0
        self.tokens = 4
        self.encoders: list[str] = []
        self.encoders_at_first_probe: list[str] | None = None
        self.directory_calls: list[tuple[str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self._runners: list[web.AppRunner] = []

    @property
    def url(self) -> str:
        """Where the router reaches this engine."""
        return f"http://{self.host}:{self.ports.engine}"

    async def __aenter__(self) -> Self:
        """Listen."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop at once."""
        await self.stop()

    async def start(self) -> None:
        """Listen on the engine port, and on the directory port if this is a prefill."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/model_info", self._server_info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_post("/v1/chat/completions", self._chat)
        await self._listen(app, self.ports.engine)
        if self.role == "prefill":
            directory = web.Application()
            directory.router.add_get("/list_encoder_urls", self._list_encoders)
            directory.router.add_post("/register_encoder_url", self._register_encoder)
            directory.router.add_delete("/unregister_encoder_url", self._unregister_encoder)
            await self._listen(directory, self.ports.encoder)
            await self._listen(web.Application(), self.ports.bootstrap)

    async def _listen(self, app: web.Application, port: int) -> None:
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self.host, port, reuse_address=True).start()
        self._runners.append(runner)

    async def stop(self) -> None:
        """Drop every connection, as a killed pod does, and forget what was registered."""
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()
        self.encoders.clear()

    async def _health(self, _: web.Request) -> web.Response:
        if self.encoders_at_first_probe is None:
            self.encoders_at_first_probe = list(self.encoders)
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "sglang"}]}
        )

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response({"served_model_name": self.model, "model_path": self.model, "is_generation": True})

    async def _loads(self, _: web.Request) -> web.Response:
        load = {"dp_rank": 0, "num_running_reqs": self.running, "num_waiting_reqs": 0, "num_total_reqs": self.running}
        return web.json_response({"version": "0", "dp_rank_count": 1, "loads": [load]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        status = self.image_status if self.status == 200 and "image_url" in json.dumps(body) else self.status
        if status != 200:
            return web.json_response({"error": {"message": "told to fail", "code": status}}, status=status)
        self.running += 1
        try:
            if body.get("stream") and self.role == "decode":
                return await self._stream(request)
            await asyncio.sleep(self.token_delay * self.tokens if self.role == "decode" else 0)
            choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            return web.json_response({"id": "1", "object": "chat.completion", "model": self.model, "choices": [choice]})
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        chunk = {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "t"}}]}
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            for _ in range(self.tokens):
                await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
                await asyncio.sleep(self.token_delay)
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _list_encoders(self, _: web.Request) -> web.Response:
        return web.json_response({"encoder_urls": self.encoders}, status=self.directory_status)

    async def _register_encoder(self, request: web.Request) -> web.Response:
        url = (await request.json())["url"]
        self.directory_calls.append(("register", url))
        if url not in self.encoders:
            self.encoders.append(url)
        return web.Response(text="OK")

    async def _unregister_encoder(self, request: web.Request) -> web.Response:
        url = (await request.json())["url"]
        self.directory_calls.append(("unregister", url))
        if url in self.encoders:
            self.encoders.remove(url)
        return web.Response(text="OK")
