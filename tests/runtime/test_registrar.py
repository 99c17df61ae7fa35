from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from epd_operator.kube.kind import POD
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.registrar import MISSES, MOVING_SECONDS, RESTING_SECONDS, SIZE_LIMIT, Poller, fetch
from epd_operator.runtime.watch_scope import Key

if TYPE_CHECKING:
    from tests.support.virtual_time import Virtual

KEY = Key("ns", "demo")


def pod(name: str, address: str = "10.0.0.1", component: str = "router", phase: str = "Running") -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": component}
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, "podIP": address}}


class Net:
    """Answers by address; an Exception is raised."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[float, str]] = []

    async def __call__(self, url: str) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), url))
        answer = self.answers.get(url)
        if answer is None:
            raise OSError("refused")
        return answer


def document(name: str = "r", **more: Any) -> dict[str, Any]:
    return {"schema": 1, "pod": name, "workers": [{"pod": "w", "inFlight": 0}], **more}


def counted(number: int, *, active: bool = True, fault: str = "") -> dict[str, Any]:
    decoder = {"active": active, "reason": "", "preset": "0.5.23", "rowsRun": number, "rowsSkipped": number}
    encoder = {"active": False, "reason": "TurnedOff", "rowsReplayed": number}
    pool: dict[str, Any] = {"engine": "valkey", "fault": fault}
    pool |= dict.fromkeys(("hits", "misses", "stored", "dropped"), number)
    return {"pod": "w", "inFlight": number, "replay": {"decoder": decoder, "encoder": encoder}, "swaPool": pool}


def setup() -> tuple[Poller, Net, Cache, list[Key]]:
    cache, net, woken = Cache(), Net(), list[Key]()
    cache.put(POD, pod("r"))
    return Poller(cache, woken.append, net, 8081), net, cache, woken


URL = "http://10.0.0.1:8081/state"


def test_polls_fast_while_moving_and_slowly_at_rest(virtual: Virtual) -> None:
    async def main() -> None:
        poller, net, _, _ = setup()
        net.answers[URL] = document()
        poller.follow(KEY, moving=True)
        await asyncio.sleep(20.5)
        times = [at for at, _ in net.asked]
        assert times == [MOVING_SECONDS * step for step in range(len(times))]
        poller.follow(KEY, moving=False)
        net.asked.clear()
        await asyncio.sleep(60)
        assert len(net.asked) <= 60 / RESTING_SECONDS + 1
        net.asked.clear()
        poller.follow(KEY, moving=True)
        await asyncio.sleep(0.1)
        assert len(net.asked) == 1
        poller.close()

    virtual(main())


def test_only_a_change_that_matters_wakes_the_resource(virtual: Virtual) -> None:
    async def main() -> None:
        poller, net, _, woken = setup()
        net.answers[URL] = document(workers=[counted(1)])
        poller.follow(KEY, moving=True)
        await asyncio.sleep(5)
        assert woken == [KEY]
        assert poller.documents(KEY) == [document(workers=[counted(1)])]
        net.answers[URL] = document(workers=[counted(9)])
        await asyncio.sleep(5)
        assert woken == [KEY]
        net.answers[URL] = document(workers=[counted(9, active=False)])
        await asyncio.sleep(5)
        assert woken == [KEY, KEY]
        net.answers[URL] = document(workers=[counted(9, active=False, fault="Full")])
        await asyncio.sleep(5)
        assert woken == [KEY, KEY, KEY]
        poller.close()

    virtual(main())


def test_one_lost_answer_flaps_nothing_but_silence_counts(virtual: Virtual) -> None:
    async def main() -> None:
        poller, net, _, woken = setup()
        net.answers[URL] = document()
        poller.follow(KEY, moving=True)
        await asyncio.sleep(1)
        del net.answers[URL]
        await asyncio.sleep(MOVING_SECONDS * (MISSES - 1))
        assert poller.documents(KEY) == [document()]
        await asyncio.sleep(MOVING_SECONDS)
        assert poller.documents(KEY) == []
        assert woken == [KEY, KEY]
        poller.close()

    virtual(main())


@pytest.mark.parametrize("answer", [{"schema": 2, "pod": "r"}, document("somebody-else"), ["no object"], "text"])
def test_an_answer_of_something_else_does_not_count(virtual: Virtual, answer: Any) -> None:
    async def main() -> None:
        poller, net, _, woken = setup()
        net.answers[URL] = answer
        poller.follow(KEY, moving=True)
        await asyncio.sleep(5)
        assert poller.documents(KEY) == []
        assert woken == []
        poller.close()

    virtual(main())


def test_only_running_router_pods_are_asked_and_gone_ones_forgotten(virtual: Virtual) -> None:
    async def main() -> None:
        poller, net, cache, _ = setup()
        cache.put(POD, pod("d", "10.0.0.2", component="decode"))
        cache.put(POD, pod("starting", "10.0.0.3", phase="Pending"))
        cache.put(POD, pod("six", "fd00::1"))
        net.answers = {URL: document(), "http://[fd00::1]:8081/state": document("six")}
        poller.follow(KEY, moving=True)
        await asyncio.sleep(1)
        assert [item["pod"] for item in poller.documents(KEY)] == ["r", "six"]
        assert {url for _, url in net.asked} == set(net.answers)
        gone = pod("six", "fd00::1")
        gone["metadata"]["resourceVersion"] = "9"
        cache.remove(POD, gone)
        await asyncio.sleep(MOVING_SECONDS)
        assert [item["pod"] for item in poller.documents(KEY)] == ["r"]
        poller.drop(KEY)
        net.asked.clear()
        await asyncio.sleep(60)
        assert net.asked == []
        assert poller.documents(KEY) == []

    virtual(main())


async def test_a_document_is_fetched_within_bounds() -> None:
    bodies = {"/ok": json.dumps(document()).encode(), "/huge": b"[" + b"1," * SIZE_LIMIT, "/bad": b"{"}

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/away":
            raise web.HTTPFound("/ok")
        return web.Response(body=bodies[request.path])

    app = web.Application()
    app.router.add_get("/{path}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        assert await fetch(session, f"{base}/ok") == document()
        for path in ("/huge", "/bad", "/away"):
            with pytest.raises(ValueError, match=r"."):
                await fetch(session, base + path)
    await runner.cleanup()
