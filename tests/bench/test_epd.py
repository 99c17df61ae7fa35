from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from bench.epd import figure, fleet, table
from bench.epd.__main__ import COUNT, QUICK_COUNT, main, parse
from bench.epd.fleet import Member, NotStarted
from bench.epd.load import Request, Sample, ask, drive, requests
from bench.epd.table import Result
from tests.support.reference import checkpoints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GAP = 0.1


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = fleet.free_ports(1)
    await web.TCPSite(runner, fleet.HOST, port).start()
    async with aiohttp.ClientSession() as session:
        yield session, f"http://{fleet.HOST}:{port}"
    await runner.cleanup()


def event(tokens: int = 0, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": {}, "logprobs": {"content": [{}] * tokens} if tokens else None}]
    return b"data: " + json.dumps({"choices": choices, "usage": None} | more).encode() + b"\n\n"


async def answer(request: web.Request, *events: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for data in events:
        await asyncio.sleep(GAP)
        await response.write(data)
    return response


def wanted(tokens: int, at: float = 0.0) -> Request:
    return Request("text", at, {"max_tokens": tokens})


def test_requests_depend_on_the_seed_alone() -> None:
    made = requests(40, 2.0, 16, seed=1)
    assert made == requests(40, 2.0, 16, seed=1)
    assert made != requests(40, 2.0, 16, seed=2)
    assert sum(request.kind == "image" for request in made) == 20
    assert all(a.at < b.at for a, b in pairwise(made))
    assert 10 < made[-1].at < 40
    bodies = {json.dumps(request.body) for request in made}
    assert len(bodies) == 40
    pictures = [request for request in made if "image_url" in json.dumps(request.body)]
    assert {request.kind for request in pictures} == {"image"}


async def test_tokens_are_timed_from_when_the_request_was_due() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        usage = event(usage={"prompt_tokens": 7})
        return await answer(request, event(), event(1), event(1), event(2), usage, b"data: [DONE]\n\n")

    async with serving(handler) as (session, url):
        start = time.perf_counter()
        sample = await ask(session, url, wanted(4), start - 1)
        took = time.perf_counter() - start
    assert sample.fault == ""
    assert sample.prompt_tokens == 7
    assert 1 + 2 * GAP <= sample.first < 1 + took
    assert len(sample.gaps) == 3
    assert sample.gaps[2] == 0
    # Two pauses of the server, less what a busy client read late.
    assert GAP <= sum(sample.gaps) < took - sample.first + 1


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([event(1), event(error="lost")], "lost"),
        ([event(1), b"data: [DONE]\n\n"], "1 tokens: 2 were asked for"),
    ],
)
async def test_half_an_answer_is_a_fault(events: list[bytes], fault: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await answer(request, *events)

    async with serving(handler) as (session, url):
        assert (await ask(session, url, wanted(2), 0.0)).fault == fault


async def test_refusals_and_lost_connections_are_faults() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503, text="busy")

    async with serving(refuse) as (session, url):
        assert (await ask(session, url, wanted(2), 0.0)).fault == "status 503: busy"
        (port,) = fleet.free_ports(1)
        gone = await ask(session, f"http://{fleet.HOST}:{port}", wanted(2), 0.0)
    assert "ClientConnectorError" in gone.fault


async def test_requests_leave_on_time_and_wait_for_their_turn() -> None:
    running, most = 0, 0

    async def slow(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3)
        running -= 1
        return await answer(request, event(1))

    async with serving(slow) as (session, url):
        finished: list[int] = []
        load = [wanted(1, 0.05 * number) for number in range(4)]
        samples = await drive(session, url, load, 2, finished.append)
    assert most == 2
    assert finished == [1, 2, 3, 4]
    # The third and the fourth wait for the first two: their time runs from when they were due.
    assert min(sample.first for sample in samples[:2]) >= 0.3
    assert min(sample.first for sample in samples[2:]) >= 0.45


async def test_a_process_that_ends_shows_its_log(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as exits:
        words = [sys.executable, "-c", "print('no such checkpoint'); raise SystemExit(3)"]
        member = await fleet._spawn(exits, "decode", tmp_path, words)
        with pytest.raises(NotStarted, match=r"decode ended with status 3(.|\n)*no such checkpoint"):
            await member.until(never)


async def test_a_process_that_hangs_is_given_up_and_ended(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as exits:
        member = await fleet._spawn(exits, "encode", tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"])
        with pytest.raises(NotStarted, match=r"encode was not ready within 0\.3 s"):
            await member.until(never, 0.3)
        assert member.process.returncode is None
    assert member.process.returncode is not None


async def never() -> bool:
    return False


async def test_cpu_seconds_are_those_of_the_process(tmp_path: Path) -> None:
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
    async with contextlib.AsyncExitStack() as exits:
        member: Member = await fleet._spawn(exits, "busy", tmp_path, [sys.executable, "-c", code])

        async def printed() -> bool:
            return bool(member.log.read_bytes())

        await member.until(printed)
        assert 0.45 <= member.cpu_seconds < 2


def results() -> list[Result]:
    def sample(kind: Any, number: int) -> Sample:
        return Sample(kind, 0.1 * number, (0.01, 0.02, 0.03), 50)

    good = [sample(kind, number) for kind in ("text", "image") for number in range(1, 12)]
    bad = Sample("image", fault="status 503: busy")
    return [Result("aggregated", tuple(good), 11.0, 30.0), Result("P/D", (sample("text", 1), bad), 1.0, 30.0)]


def test_percentiles() -> None:
    whole, broken = results()
    first, gap = whole.first("text"), whole.gap("image")
    assert first is not None
    assert gap is not None
    assert list(vars(first).values()) == pytest.approx([0.6, 1.0, 1.09])
    assert list(vars(gap).values()) == pytest.approx([0.02, 0.03, 0.03])
    assert whole.cpu_per_request == 0.5
    assert broken.first("image") is None
    assert broken.faults == ["status 503: busy"]


def test_the_table_and_the_document() -> None:
    lines = table.table(results(), "sixty requests").splitlines()
    assert lines[0] == "sixty requests"
    assert " ".join(lines[3].split()) == "aggregated text 11 of 11 600.0 1000.0 1090.0 20.0 30.0 30.0 0.50"
    assert " ".join(lines[6].split()) == "P/D image 0 of 1 - - - - - - 0.50"
    assert lines[7] == "P/D: status 503: busy"
    assert "cannot be\nfaster here" in "\n".join(lines)
    reported = json.loads(json.dumps(table.document(results(), {"rate_per_s": 1})))
    first = reported["topologies"][0]["kinds"]["text"]["time_to_first_token"]
    assert first == {"median_ms": 600, "p90_ms": 1000, "p99_ms": 1090}
    assert reported["topologies"][1]["kinds"]["image"]["inter_token_latency"] is None


def test_the_plot_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    paths = [tmp_path / name / "epd.svg" for name in ("a", "b")]
    for path in paths:
        figure.draw(results(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b"time to first token" in paths[0].read_bytes()


def test_options() -> None:
    assert parse([]).requests == COUNT
    assert parse(["--quick"]).requests == QUICK_COUNT
    assert parse(["--quick"]).plot is None
    assert parse(["--model-path", "x"]).flags == ("--model-path", "x")
    assert parse(["--topologies", "P/D", "aggregated"]).topologies == ("P/D", "aggregated")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "0"], "above 0"),
        (["--rate", "nan"], "above 0"),
        (["--requests", "-1"], "whole number"),
        (["--topologies", "E"], "invalid choice"),
        (["--plot", "x.pdf"], ".svg or .png"),
    ],
)
def test_bad_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = checkpoints.write(tmp_path / "checkpoint")
    words = ["--requests", "6", "--rate", "4", "--tokens", "4", "--model-path", str(checkpoint), "--json"]
    assert main([*words, "--plot", str(tmp_path / "epd.svg")]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert [run["topology"] for run in captured["topologies"]] == ["aggregated", "P/D", "E/P/D"]
    for run in captured["topologies"]:
        assert run["faults"] == []
        assert [run["kinds"][kind]["answered"] for kind in ("text", "image")] == [3, 3]
        assert run["cpu_seconds_per_request"] > 0
    same = [[run["kinds"][kind]["prompt_tokens"] for kind in ("text", "image")] for run in captured["topologies"]]
    assert same[0] == same[1] == same[2]
    assert (tmp_path / "epd.svg").stat().st_size > 0


@pytest.mark.nightly
def test_a_checkpoint_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--requests", "1", "--topologies", "aggregated", "--model-path", str(tmp_path / "none")]
    assert main([*words, "--plot", str(tmp_path / "epd.svg")]) == 1
    assert "there is no such directory" in capsys.readouterr().err
    assert not (tmp_path / "epd.svg").exists()
