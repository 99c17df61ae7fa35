"""What the registrar learns of replay and window pools, from engines that answer well, badly, late and not at all."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from epd_workers.registrar import survey
from epd_workers.registrar.engine_metrics import parse
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.probe import Probe
from epd_workers.registrar.server import Server
from epd_workers.registrar.state import View
from epd_workers.registrar.survey import ABSENT_PERIOD, PERIOD, SIZE_LIMIT, Survey
from tests.support.engine import next_host
from tests.support.ports import free_port
from tests.support.registrar_values import PAGE, POOL, SHOWN, WHOLE, changed, pod, shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from epd_workers.registrar.pod import Pod

BOTH = {"replay": SHOWN, "swa_pool": POOL}


class Info:
    """`GET /server_info` of one pod."""

    def __init__(self) -> None:
        self.host = next_host()
        self.answer: Callable[[], Any] = lambda: WHOLE
        self.status = 200
        self.delay = 0.0
        self.asked = 0
        self.page: str | None = None
        self.scraped = 0
        self.news = asyncio.Event()

    async def serve(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.news.set()
        await asyncio.sleep(self.delay)
        actual = self.answer()
        if isinstance(actual, bytes):
            return web.Response(body=actual, status=self.status)
        return web.json_response(actual, status=self.status)

    async def scrape(self, _: web.Request) -> web.Response:
        self.scraped += 1
        return web.Response(text=self.page or "", status=404 if self.page is None else 200)


class Bench:
    """A watch whose clock a test moves, on pods that a test names."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.port = port
        self.pods: list[Pod] | None = None
        self.now = 0.0
        self.metrics = Metrics()
        self.survey_session = session
        self.survey = Survey(session, self, self.metrics, engine_port=port, clock=lambda: self.now)

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.survey.look()

    def errors(self) -> float:
        line = next(x for x in self.metrics.text().decode().splitlines() if 'errors_total{target="engine"}' in x)
        return float(line.split()[-1])


@pytest.fixture
async def bench(session: aiohttp.ClientSession) -> Bench:
    return Bench(session, free_port())


@pytest.fixture
async def info(bench: Bench) -> AsyncIterator[Info]:
    actual = Info()
    app = web.Application()
    app.router.add_get("/server_info", actual.serve)
    app.router.add_get("/metrics", actual.scrape)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, actual.host, bench.port).start()
    bench.pods = [pod("p", ip=actual.host)]
    yield actual
    await runner.cleanup()


def known(bench: Bench) -> list[dict[str, Any]]:
    return [shown(entry) for entry in bench.survey.known.values()]


async def test_a_pod_is_asked_at_most_every_period(bench: Bench, info: Info) -> None:
    await bench.after(0)
    assert known(bench) == [BOTH]
    for _ in range(14):
        await bench.after(1)
    assert info.asked == 1
    info.answer = lambda: {"replay": changed("decoder", rows_run=6000)}
    await bench.after(PERIOD - 14)
    assert info.asked == 2
    assert known(bench)[0]["replay"]["decoder"]["rowsRun"] == 6000


async def test_only_prefill_pods_that_are_ready_are_asked(bench: Bench, info: Info) -> None:
    ready = pod("p", ip=info.host)
    bench.pods = [
        replace(ready, ready=False),
        replace(ready, deleting=True),
        replace(ready, ip=""),
        replace(ready, role="decode"),
    ]
    await bench.after(0)
    bench.pods = None
    await bench.after(PERIOD)
    assert (info.asked, known(bench)) == (0, [])


async def test_a_pod_that_is_gone_is_forgotten(bench: Bench, info: Info) -> None:
    await bench.after(0)
    bench.pods = [replace(pod("p", ip=info.host), uid="its-successor")]
    await bench.after(1)
    assert list(bench.survey.known) == ["its-successor"]
    assert info.asked == 2, "a new pod is asked at once"


async def test_an_engine_without_a_report_is_asked_rarely(bench: Bench, info: Info) -> None:
    await bench.after(0)
    info.answer = dict
    await bench.after(PERIOD)
    assert known(bench) == []
    await bench.after(ABSENT_PERIOD - 1)
    assert info.asked == 2
    await bench.after(1)
    assert (info.asked, bench.errors()) == (3, 0)


@pytest.mark.parametrize("status", [401, 404])
async def test_a_page_that_is_not_there_is_no_report(bench: Bench, info: Info, status: int) -> None:
    info.status = status
    await bench.after(0)
    assert (known(bench), bench.errors()) == ([], 0)


async def test_a_wrong_part_counts_as_none_and_is_told_once(
    bench: Bench, info: Info, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, survey.__name__)
    await bench.after(0)
    info.answer = lambda: {"replay": changed("decoder", active="yes"), "swa_pool": POOL}
    for _ in range(3):
        await bench.after(PERIOD)
    assert known(bench) == [{"swa_pool": POOL}]
    assert [record.getMessage() for record in caplog.records] == [
        "p does not tell all of itself: replay.decoder.active must be true or false; asking on"
    ]
    assert bench.errors() == 3
    info.answer = lambda: WHOLE
    await bench.after(PERIOD)
    assert known(bench) == [BOTH]


HUGE = b'{"a": "' + b"x" * SIZE_LIMIT + b'"}'


@pytest.mark.parametrize("body", [b"{", HUGE, b"[" * 200_000, b"\xff"], ids=["cut", "huge", "deep", "binary"])
async def test_an_answer_that_is_no_document_changes_nothing(bench: Bench, info: Info, body: bytes) -> None:
    await bench.after(0)
    info.answer = lambda: body
    await bench.after(PERIOD)
    assert (known(bench), bench.errors()) == ([BOTH], 1)


async def test_a_busy_or_failing_pod_keeps_what_it_said(
    bench: Bench, info: Info, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.after(0)
    info.status = 500
    await bench.after(PERIOD)
    monkeypatch.setattr(survey, "TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    info.status, info.delay = 200, 0.5
    await bench.after(PERIOD)
    assert (known(bench), bench.errors()) == ([BOTH], 2)


async def test_one_mute_pod_holds_nobody_back(bench: Bench, info: Info) -> None:
    bench.pods = [pod("gone", ip=next_host()), pod("p", ip=info.host)]
    await bench.after(0)
    assert (known(bench), bench.errors()) == ([BOTH], 1)


async def test_it_goes_on_until_it_is_cancelled(bench: Bench, info: Info, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "TICK", 0.01)
    task = asyncio.create_task(bench.survey.run())
    async with asyncio.timeout(5):
        await info.news.wait()
        info.news.clear()
        bench.now += PERIOD
        await info.news.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_engine_that_reports_in_its_metrics_only(bench: Bench, info: Info) -> None:
    info.answer, info.page = (lambda: {"version": "0.5.23"}), PAGE
    await bench.after(0)
    await bench.after(PERIOD)
    assert (info.asked, info.scraped) == (1, 2), "SGLang's /server_info waits for the scheduler: it is asked rarely"
    assert [report.replay for report in bench.survey.known.values()] == [parse(PAGE).replay]
    assert [plugin.version for plugin in bench.survey.plugins.values()] == ["0.5.23.1"]
    info.page = ""
    await bench.after(PERIOD)
    assert (dict(bench.survey.known), dict(bench.survey.plugins)) == ({}, {})


async def test_a_decode_tells_its_plugin_and_is_never_asked_for_replay(bench: Bench, info: Info) -> None:
    bench.pods, info.page = [pod("d", role="decode", ip=info.host)], PAGE
    await bench.after(0)
    assert (info.asked, info.scraped, dict(bench.survey.known)) == (0, 1, {})
    assert list(bench.survey.plugins) == ["uid-d"]


class Still:
    """A membership loop at rest."""

    ready = True

    def __init__(self, bench: Bench) -> None:
        self.view = View(pods=tuple(bench.pods or ()), router_ready=True)

    async def fresh(self) -> View:
        return self.view


async def test_the_state_that_is_served_has_what_the_pods_said(bench: Bench, info: Info) -> None:
    loop: Any = Still(bench)
    probe = Probe(bench.survey_session, bench, bench.metrics, engine_port=bench.port, changed=lambda: None)
    server = Server(loop, bench.survey, probe, bench.metrics, pod="r", version="smg", engine_port=bench.port)
    async with TestClient(TestServer(server.application())) as client:
        before = await (await client.get("/state")).json()
        await bench.after(0)
        after = await (await client.get("/state")).json()
    reported = [(worker["replay"], worker["swaPool"]) for worker in before["workers"] + after["workers"]]
    assert reported == [(None, None), (SHOWN, POOL)]
