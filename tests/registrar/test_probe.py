"""Which pods the registrar says do not compute, from engines that answer, refuse, hang and come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from epd_workers.registrar import probe as module
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.probe import PAGE, PERIOD, RETRY_PERIOD, Probe
from tests.support.engine import next_host
from tests.support.ports import free_port
from tests.support.registrar_values import pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epd_workers.registrar.pod import Pod


class Bench:
    """One engine, and a probe whose clock a test moves."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.port, self.host = free_port(), next_host()
        self.pods: list[Pod] | None = [pod("e", role="encode", ip=self.host)]
        self.now = 0.0
        self.changes = 0
        self.status = 200
        self.asked = 0
        self.open = 0
        self.most_open = 0
        self.came = asyncio.Event()
        self.hung = asyncio.Event()
        self.hangs = False
        self.probe = Probe(
            session, self, Metrics(), engine_port=self.port, changed=self._change, clock=lambda: self.now
        )

    def _change(self) -> None:
        self.changes += 1

    async def serve(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.came.set()
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if self.hangs:
                await self.hung.wait()
        finally:
            self.open -= 1
        return web.Response(status=self.status)

    async def after(self, seconds: float) -> None:
        self.now += seconds
        self.probe.begin()
        await self.probe.settle()


@pytest.fixture
async def bench(session: aiohttp.ClientSession) -> AsyncIterator[Bench]:
    bench = Bench(session)
    app = web.Application()
    app.router.add_get(PAGE, bench.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, bench.host, bench.port).start()
    yield bench
    bench.hung.set()
    await runner.cleanup()


@pytest.mark.parametrize("role", ["encode", "prefill", "decode"])
async def test_an_engine_that_computes_is_asked_once_a_period(bench: Bench, role: str) -> None:
    bench.pods = [pod("e", role=role, ip=bench.host)]
    for _ in range(int(PERIOD)):
        await bench.after(1)
    assert (bench.asked, dict(bench.probe.failing)) == (1, {})
    await bench.after(1)
    assert bench.asked == 2


async def test_two_failures_in_a_row_name_the_pod_and_one_answer_clears_it(bench: Bench) -> None:
    bench.status = 503
    await bench.after(0)
    assert (dict(bench.probe.failing), bench.changes) == ({}, 0)
    await bench.after(RETRY_PERIOD)
    assert dict(bench.probe.failing) == {"uid-e": f"the engine does not compute: GET {PAGE}: answered 503"}
    await bench.after(RETRY_PERIOD)
    assert bench.changes == 1
    bench.status = 200
    await bench.after(RETRY_PERIOD)
    assert (dict(bench.probe.failing), bench.changes) == ({}, 2)


async def test_a_hung_engine_is_never_asked_twice_at_once(bench: Bench) -> None:
    bench.hangs = True
    for _ in range(5):
        bench.now += PERIOD
        bench.probe.begin()
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await bench.came.wait()
    bench.hung.set()
    await bench.probe.settle()
    assert (bench.asked, bench.most_open) == (1, 1)


async def test_a_question_without_an_answer_is_a_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    bench.hangs = True
    await bench.after(0)
    await bench.after(RETRY_PERIOD)
    assert "no answer within 0.1 s" in bench.probe.failing["uid-e"]


async def test_a_dead_engine_is_named(bench: Bench) -> None:
    bench.pods = [pod("gone", ip=next_host())]
    await bench.after(0)
    await bench.after(RETRY_PERIOD)
    assert list(bench.probe.failing) == ["uid-gone"]


@pytest.mark.parametrize("status", [401, 404])
async def test_an_engine_without_that_page_gets_no_verdict(bench: Bench, status: int) -> None:
    bench.status = status
    await bench.after(0)
    await bench.after(PERIOD)
    assert dict(bench.probe.failing) == {}


async def test_only_pods_that_are_ready_are_asked_and_others_are_forgotten(bench: Bench) -> None:
    bench.status = 503
    await bench.after(0)
    await bench.after(RETRY_PERIOD)
    ready = pod("e", role="encode", ip=bench.host)
    bench.pods = [replace(ready, ready=False)]
    await bench.after(PERIOD)
    assert (bench.asked, dict(bench.probe.failing)) == (2, {})
    bench.pods = None
    await bench.after(PERIOD)
    assert bench.asked == 2
