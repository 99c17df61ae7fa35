"""What the registrar learns of bounded replay, from engines that answer well, badly, late and not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.registrar import replay
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.replay import ABSENT_PERIOD, PERIOD, SIZE_LIMIT, ReplayError, ReplayWatch, parse
from epd_workers.registrar.server import Server
from epd_workers.registrar.state import View
from tests.registrar.peers import free_port, next_host
from tests.registrar.test_membership import pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from epd_workers.registrar.pod import Pod

RUNNING: dict[str, Any] = {
    "decoder": {"active": True, "reason": "", "preset": "0.5.23", "rows_run": 5120, "rows_skipped": 3072},
    "encoder": {"active": False, "reason": "TurnedOff", "rows_replayed": 0},
}
SHOWN = {
    "decoder": {"active": True, "reason": "", "preset": "0.5.23", "rowsRun": 5120, "rowsSkipped": 3072},
    "encoder": {"active": False, "reason": "TurnedOff", "rowsReplayed": 0},
}


def changed(half: str, **values: Any) -> dict[str, Any]:
    return {**RUNNING, half: {**RUNNING[half], **values}}


def test_a_report_is_read_and_shown() -> None:
    found = parse({"replay": changed("decoder", extra="left out"), "version": "0.1"})
    assert found is not None
    assert found.document() == SHOWN


@pytest.mark.parametrize("info", [{}, {"replay": None}, [], "text", None, 3])
def test_no_report_is_none(info: object) -> None:
    assert parse(info) is None


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (True, "replay.decoder"),
        ({}, "replay.decoder"),
        ({"decoder": RUNNING["decoder"]}, "replay.encoder"),
        (changed("decoder", active=1), "replay.decoder.active"),
        (changed("decoder", reason=None), "replay.decoder.reason"),
        (changed("decoder", reason="no such word"), "replay.decoder.reason"),
        (changed("decoder", reason="A" * 65), "replay.decoder.reason"),
        (changed("decoder", preset="\n"), "replay.decoder.preset"),
        (changed("decoder", rows_run=-1), "replay.decoder.rows_run"),
        (changed("decoder", rows_skipped=1.5), "replay.decoder.rows_skipped"),
        (changed("encoder", rows_replayed=True), "replay.encoder.rows_replayed"),
        (changed("encoder", rows_replayed=2**63), "replay.encoder.rows_replayed"),
    ],
)
def test_a_report_that_is_wrong_names_the_part(report: object, names: str) -> None:
    with pytest.raises(ReplayError, match=f"^{names.replace('.', '[.]')} must "):
        parse({"replay": report})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*RUNNING, *SHOWN["decoder"]]), inner),
    max_leaves=8,
)


@given(report=JSON, half=st.sampled_from(["decoder", "encoder"]), name=st.sampled_from(list(RUNNING["decoder"])))
def test_whatever_comes_is_a_report_or_an_error(report: Any, half: str, name: str) -> None:
    for tried in (report, changed(half, **{name: report})):
        with contextlib.suppress(ReplayError):
            found = parse({"replay": tried})
            assert found is None or isinstance(found.document(), dict)


class Info:
    """`GET /server_info` of one pod."""

    def __init__(self) -> None:
        self.host = next_host()
        self.answer: Callable[[], Any] = lambda: {"replay": RUNNING}
        self.status = 200
        self.delay = 0.0
        self.asked = 0
        self.news = asyncio.Event()

    async def serve(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.news.set()
        await asyncio.sleep(self.delay)
        found = self.answer()
        if isinstance(found, bytes):
            return web.Response(body=found, status=self.status)
        return web.json_response(found, status=self.status)


class Bench:
    """A watch whose clock a test moves, on pods that a test names."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.port = port
        self.pods: list[Pod] | None = None
        self.now = 0.0
        self.metrics = Metrics()
        self.watch = ReplayWatch(session, self, self.metrics, engine_port=port, clock=lambda: self.now)

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.watch.look()

    def errors(self) -> float:
        line = next(x for x in self.metrics.text().decode().splitlines() if 'errors_total{target="engine"}' in x)
        return float(line.split()[-1])


@pytest.fixture
async def bench(session: aiohttp.ClientSession) -> Bench:
    return Bench(session, free_port())


@pytest.fixture
async def info(bench: Bench) -> AsyncIterator[Info]:
    found = Info()
    app = web.Application()
    app.router.add_get("/server_info", found.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, found.host, bench.port).start()
    bench.pods = [pod("p", ip=found.host)]
    yield found
    await runner.cleanup()


def known(bench: Bench) -> list[dict[str, Any]]:
    return [found.document() for found in bench.watch.known.values()]


async def test_a_pod_is_asked_at_most_every_period(bench: Bench, info: Info) -> None:
    await bench.after(0)
    assert known(bench) == [SHOWN]
    for _ in range(14):
        await bench.after(1)
    assert info.asked == 1
    info.answer = lambda: {"replay": changed("decoder", rows_run=6000)}
    await bench.after(PERIOD - 14)
    assert info.asked == 2
    assert known(bench)[0]["decoder"]["rowsRun"] == 6000


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
    assert list(bench.watch.known) == ["its-successor"]
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


async def test_a_wrong_report_counts_as_none_and_is_told_once(
    bench: Bench, info: Info, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, replay.__name__)
    await bench.after(0)
    info.answer = lambda: {"replay": changed("decoder", active="yes")}
    for _ in range(3):
        await bench.after(PERIOD)
    assert known(bench) == []
    assert [record.getMessage() for record in caplog.records] == [
        "replay of p is not known: GET /server_info: replay.decoder.active must be true or false; asking on"
    ]
    assert bench.errors() == 3
    info.answer = lambda: {"replay": RUNNING}
    await bench.after(PERIOD)
    assert known(bench) == [SHOWN]


HUGE = b'{"a": "' + b"x" * SIZE_LIMIT + b'"}'


@pytest.mark.parametrize("body", [b"{", HUGE, b"[" * 200_000, b"\xff"], ids=["cut", "huge", "deep", "binary"])
async def test_an_answer_that_is_no_document_changes_nothing(bench: Bench, info: Info, body: bytes) -> None:
    await bench.after(0)
    info.answer = lambda: body
    await bench.after(PERIOD)
    assert (known(bench), bench.errors()) == ([SHOWN], 1)


async def test_a_busy_or_failing_pod_keeps_what_it_said(
    bench: Bench, info: Info, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.after(0)
    info.status = 500
    await bench.after(PERIOD)
    monkeypatch.setattr(replay, "TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    info.status, info.delay = 200, 0.5
    await bench.after(PERIOD)
    assert (known(bench), bench.errors()) == ([SHOWN], 2)


async def test_one_mute_pod_holds_nobody_back(bench: Bench, info: Info) -> None:
    bench.pods = [pod("gone", ip=next_host()), pod("p", ip=info.host)]
    await bench.after(0)
    assert (known(bench), bench.errors()) == ([SHOWN], 1)


async def test_it_goes_on_until_it_is_cancelled(bench: Bench, info: Info, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TICK", 0.01)
    task = asyncio.create_task(bench.watch.run())
    async with asyncio.timeout(5):
        await info.news.wait()
        info.news.clear()
        bench.now += PERIOD
        await info.news.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Still:
    """A membership loop at rest."""

    ready = True

    def __init__(self, bench: Bench) -> None:
        self.view = View(pods=tuple(bench.pods or ()), router_ready=True)

    async def fresh(self) -> View:
        return self.view


async def test_the_state_that_is_served_has_what_the_pods_said(bench: Bench, info: Info) -> None:
    loop: Any = Still(bench)
    server = Server(loop, bench.watch, bench.metrics, pod="r", version="smg", engine_port=bench.port)
    async with TestClient(TestServer(server.application())) as client:
        before = await (await client.get("/state")).json()
        await bench.after(0)
        after = await (await client.get("/state")).json()
    assert [worker["replay"] for worker in before["workers"] + after["workers"]] == [None, SHOWN]
