"""The registrar as a process of its own, with a real router and a real API server; only the engines are stand-ins.

The pods are never scheduled: the test writes their status, as a kubelet would, so that every state and every order of
events can be had at will. The registrar holds the service account token and the Role that the plan gives it.
"""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import pytest

from e2e.tests.world import Link, Pods, Registrar, World, registrar_token, write_kubeconfig
from epd_operator.api.names import LABEL_INSTANCE, LABEL_ROLE
from tests.support.engine import Ports
from tests.support.smg import Smg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from e2e.kube import Kube


@pytest.fixture(scope="module")
def namespace(new_namespace: Callable[[str], str]) -> str:
    """Where the pods of all tests of this file are."""
    return new_namespace("e2e-registrar")


@pytest.fixture(scope="module")
def token(kube: Kube, namespace: str) -> str:
    """The registrar's rights in that namespace."""
    return registrar_token(kube, namespace)


@pytest.fixture
async def world(kube: Kube, namespace: str, token: str, tmp_path: Path) -> AsyncIterator[World]:
    """Everything running, without a pod."""
    ports = Ports()
    settings = kube.api.configuration
    server = urlsplit(settings.host)
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    link = Link(str(server.hostname), server.port or 443, tls)
    write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{link.port}", token)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        smg = Smg(tmp_path, session)
        registrar = Registrar(smg, tmp_path / "kubeconfig", namespace, ports, tmp_path / "registrar.log")
        world = World(smg, registrar, Pods(kube, namespace, ports), link)
        try:
            await link.start()
            await smg.start()
            await registrar.start()
            yield world
        finally:
            if registrar.process is not None:
                await registrar.stop(signal.SIGKILL)
            if smg.process is not None:
                await smg.stop()
            for engine in world.engines:
                await engine.stop()
            await link.stop()
            await world.pods.finish_all()


async def test_a_pod_lives_and_dies(world: World) -> None:
    prefill, decode = await world.pair()
    assert (await world.registrar.get("/readyz"))[0] == 200
    state = await world.registrar.state()
    assert (state["pod"], state["router"]) == ("demo-router-0", {"ready": True, "version": "smg 1.13.0"})
    assert state["compatKeys"] == {"k1": {"prefill": 1, "decode": 1, "routable": True}}
    assert (await world.smg.chat())[0] == 200
    assert decode.requests[-1]["bootstrap_host"] == prefill.host
    await world.pods.delete("decode-0")
    await world.registrar.until_states(prefill_0="ready", decode_0="draining")
    assert (await world.smg.chat())[0] == 503, "the pod is still there, but on its way out"
    await world.pods.finish("decode-0")
    await world.registrar.until_states(prefill_0="ready")


async def test_ways_out_of_service_that_keep_the_pod(world: World) -> None:
    """The engines still answer their probes in every one of these."""
    pods = world.pods
    engines = [(await world.pair())[1]]
    for number in range(1, 5):
        engines.append(await world.engine("decode"))
        await pods.create(f"decode-{number}", engines[number])
    all_ready = {"prefill_0": "ready"} | {f"decode_{number}": "ready" for number in range(5)}
    await world.registrar.until_states(**all_ready)
    await pods.label("decode-0", LABEL_ROLE, None)
    await pods.label("decode-1", LABEL_INSTANCE, "another")
    await pods.status("decode-2", engines[2], ready=False)
    await pods.write_status("decode-3", podIP=None, podIPs=None)
    await pods.write_status("decode-4", phase="Failed")

    async def gone() -> bool:
        return not [w for w in await world.workers() if w["worker_type"] == "decode" and w["status"] != "draining"]

    await world.registrar.until(gone)
    assert (await world.smg.chat())[0] == 503
    await pods.label("decode-0", LABEL_ROLE, "decode")
    await pods.label("decode-1", LABEL_INSTANCE, "demo")
    for number in (2, 3):
        await pods.status(f"decode-{number}", engines[number], ready=True)
    await world.registrar.until_states(**all_ready | {"decode_4": "draining"})


async def test_an_address_is_reused_by_another_pod(world: World) -> None:
    _, decode = await world.pair()
    await world.pods.delete("decode-0")
    await world.pods.finish("decode-0")
    await decode.stop()
    second = await world.engine("prefill", decode.host)
    await world.pods.create("prefill-1", second, key="k2")
    await world.registrar.until_states(prefill_0="ready", prefill_1="ready")
    actual = {w["url"]: (w["worker_type"], w["pairing_protocol"]) for w in await world.workers()}
    assert actual[second.url] == ("prefill", "k2")


async def test_restarts_of_registrar_and_router_need_no_help(world: World) -> None:
    await world.pair()
    before = {w["id"] for w in await world.workers()}
    assert await world.registrar.stop() == 0, "a stopped registrar leaves the members where they are"
    assert {w["id"] for w in await world.workers()} == before
    assert (await world.smg.chat())[0] == 200
    await world.registrar.start()
    await world.registrar.until_states(prefill_0="ready", decode_0="ready")
    assert {w["id"] for w in await world.workers()} == before, "nothing is registered twice"
    await world.smg.stop()

    async def noticed() -> bool:
        return (await world.registrar.state())["router"]["ready"] is False

    await world.registrar.until(noticed)
    assert (await world.registrar.get("/readyz"))[0] == 503
    await world.smg.start()
    await world.registrar.until_states(prefill_0="ready", decode_0="ready")
    assert (await world.smg.chat())[0] == 200


async def test_pods_that_change_while_the_registrar_is_away(world: World) -> None:
    _, decode = await world.pair()
    await world.registrar.stop(signal.SIGKILL)
    await world.pods.delete("decode-0")
    await world.pods.finish("decode-0")
    other = await world.engine("decode")
    await world.pods.create("decode-1", other)
    await world.registrar.start()
    await world.registrar.until_states(prefill_0="ready", decode_1="ready")

    async def left() -> bool:
        return {w["url"] for w in await world.workers() if w["worker_type"] == "decode"} == {other.url}

    await world.registrar.until(left)
    assert decode.url != other.url


async def test_pods_that_change_while_the_api_server_cannot_be_reached(world: World) -> None:
    _, decode = await world.pair()
    world.link.cut()
    other = await world.engine("decode")
    await world.pods.create("decode-1", other)
    await world.pods.delete("decode-0")
    await world.pods.finish("decode-0")
    await asyncio.sleep(11)  # longer than a watch may live
    assert await world.registrar.states() == {"prefill-0": "ready", "decode-0": "ready"}, "what is known stays"
    assert (await world.smg.chat())[0] == 200
    world.link.restore()
    await world.registrar.until_states(prefill_0="ready", decode_1="ready")
    decode.requests.clear()
    assert (await world.smg.chat())[0] == 200
    assert (len(decode.requests), len(other.requests)) == (0, 1)


async def test_encoders_come_and_go(world: World) -> None:
    prefill, _ = await world.pair()
    encoder = await world.engine("encode")
    await world.pods.create("encode-0", encoder)

    async def listed() -> bool:
        return prefill.encoders == [encoder.url]

    async def unlisted() -> bool:
        return prefill.encoders == []

    await world.registrar.until(listed)
    assert [e["missing"] for e in (await world.registrar.state())["encoders"]] == [[]]
    await prefill.stop()
    await prefill.start()
    assert prefill.encoders == []
    await world.registrar.until(listed)
    await world.pods.delete("encode-0")
    await world.registrar.until(unlisted)
    assert (await world.smg.chat())[0] == 200, "text goes on"


async def test_a_second_image_under_one_key_is_refused(world: World) -> None:
    await world.pair()
    await asyncio.sleep(1.1)  # creation times have a resolution of one second
    newer = await world.engine("decode")
    await world.pods.create("decode-1", newer, image="sha256:b")
    await world.registrar.until_states(prefill_0="ready", decode_0="ready", decode_1="refused")
    refused = next(w for w in (await world.registrar.state())["workers"] if w["pod"] == "decode-1")
    assert "sha256:b differs from sha256:a" in refused["reason"]


async def test_it_is_small_and_silent_at_rest(world: World) -> None:
    await world.pair()
    await asyncio.sleep(1)

    async def writes() -> list[str]:
        text = (await world.registrar.get("/metrics"))[1]
        assert 'registrar_workers{role="decode",state="ready"} 1.0' in text
        return [line for line in text.splitlines() if line.startswith("registrar_writes_total")]

    before, log = await writes(), world.registrar.log.read_text()
    await asyncio.sleep(6)
    assert await writes() == before
    assert world.registrar.log.read_text() == log
    assert world.registrar.process is not None
    status = await asyncio.to_thread(Path("/proc", str(world.registrar.process.pid), "status").read_text)
    resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]
    # A pod needs 25 MiB less: there the client library that reads kubeconfigs is not loaded.
    assert resident < 90, f"{resident} MiB"
