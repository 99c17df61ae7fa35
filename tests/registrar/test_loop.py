"""The loop against the real router, with small engines behind it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.engine import Engine
from tests.support.smg import CHAT, Smg

if TYPE_CHECKING:
    import aiohttp
    import pytest

    from epd_workers.registrar.membership import Worker
    from tests.support.registrar import Harness, Pods


def all_ready(harness: Harness, count: int) -> bool:
    return list(harness.states().values()) == ["ready"] * count


async def listed(harness: Harness) -> list[Worker]:
    return await harness.router.workers()


async def test_pods_become_workers_and_nothing_is_written_at_rest(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        assert (await smg.chat())[0] == 503
        pods.add(p)
        decode = pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        assert harness.loop.ready
        assert (await smg.chat())[0] == 200
        assert d.requests[-1]["bootstrap_host"] == p.host
        assert d.requests[-1]["bootstrap_port"] == pods.ports.bootstrap
        before = harness.writes()
        await asyncio.sleep(2)
        assert harness.writes() == before == 2
        pods.set([replace(pod, ready=pod.uid != decode.uid) for pod in pods.pods or []])
        await harness.until(lambda: harness.states()[decode.name] == "not_ready")
        assert (await smg.chat())[0] == 503
        assert json.loads((await smg.chat())[1])["error"]["code"] == "no_available_workers"


async def test_a_running_stream_survives_the_removal_of_its_worker(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        pods.add(p)
        decode = pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        d.token_delay, d.tokens = 0.7, 10
        stream = asyncio.create_task(smg.chat(stream=True))
        await harness.until(lambda: d.running == 1)
        await harness.until(lambda: {w["inFlight"] for w in harness.state()["workers"]} != {0})
        pods.drop(decode)
        await harness.until(lambda: all(w.url != d.url or w.draining for w in harness.loop.view.workers), 3)
        await harness.until(lambda: all(w.url != d.url for w in harness.loop.view.workers), 10)
        assert not stream.done(), "the worker left the list after its settle time, while the stream went on"
        status, text = await stream
        assert (status, text.count("delta"), "[DONE]" in text) == (200, 10, True)


async def test_a_restarted_router_is_filled_again(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        await smg.stop()
        await harness.until(lambda: not harness.loop.ready)
        await smg.start()
        await harness.until(lambda: all_ready(harness, 2) and harness.loop.ready)
        assert (await smg.chat())[0] == 200


async def test_an_address_that_goes_to_another_pod(harness: Harness, pods: Pods) -> None:
    async with Engine("decode", pods.ports) as old:
        pod = pods.add(old, key="k1")
        await harness.until(lambda: all_ready(harness, 1))
        await old.stop()
        async with Engine("prefill", pods.ports, host=old.host) as new:
            pods.set([])
            other = pods.add(new, key="k2")
            await harness.until(lambda: harness.states() == {other.name: "ready"})
            assert [(w.role, w.key, w.pod_uid) for w in await listed(harness)] == [("prefill", "k2", other.uid)]
            assert other.uid != pod.uid


async def test_keys_are_never_paired_with_each_other(harness: Harness, pods: Pods, smg: Smg) -> None:
    roles = ["prefill", "decode"]
    engines = {(role, key): Engine(role, pods.ports) for role in roles for key in ("k1", "k2")}
    try:
        for (_, key), engine in engines.items():
            await engine.start()
            pods.add(engine, key=key)
        await harness.until(lambda: all_ready(harness, 4))
        for _ in range(30):
            assert (await smg.chat())[0] == 200
        prefill_of = {engines["prefill", key].host: key for key in ("k1", "k2")}
        seen = 0
        for key in ("k1", "k2"):
            hosts = {r["bootstrap_host"] for r in engines["decode", key].requests}
            assert {prefill_of[host] for host in hosts} <= {key}
            seen += len(engines["decode", key].requests)
        assert seen == 30
        pods.set([pod for pod in pods.pods or [] if (pod.role, pod.key) in {("prefill", "k1"), ("decode", "k2")}])
        await harness.until(lambda: len(harness.states()) == 2 and len(harness.loop.view.workers) == 2)
        status, text = await smg.chat()
        assert (status, json.loads(text)["error"]["code"]) == (503, "no_compatible_pd_pair")
        assert harness.state()["compatKeys"] == {
            "k1": {"prefill": 1, "decode": 0, "routable": False},
            "k2": {"prefill": 0, "decode": 1, "routable": False},
        }
    finally:
        for engine in engines.values():
            await engine.stop()


async def test_a_second_digest_under_one_key_is_refused_until_the_first_is_gone(
    harness: Harness, pods: Pods, smg: Smg
) -> None:
    async with (
        Engine("prefill", pods.ports) as p1,
        Engine("decode", pods.ports) as d1,
        Engine("prefill", pods.ports) as p2,
        Engine("decode", pods.ports) as d2,
    ):
        old = [pods.add(p1), pods.add(d1)]
        new = [pods.add(p2, image="sha256:b"), pods.add(d2, image="sha256:b")]
        await harness.until(lambda: sorted(harness.states().values()) == ["ready", "ready", "refused", "refused"])
        assert (await smg.chat())[0] == 200
        assert p2.requests == d2.requests == []
        pods.drop(old[0])
        await harness.until(
            lambda: (
                [harness.states().get(pod.name) for pod in new] == ["ready", "ready"]
                and harness.states()[old[1].name] == "refused"
            )
        )
        assert (await smg.chat())[0] == 200
        assert len(d2.requests) == 1


async def test_a_worker_that_nobody_owns_is_removed(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("decode", pods.ports) as stranger:
        status, _ = await smg.call("POST", "/workers", smg.key, {"url": stranger.url, "worker_type": "decode"})
        assert status == 202
        await harness.until(lambda: any(w.draining for w in harness.loop.view.workers))
        await harness.until(lambda: not harness.loop.view.workers)


async def test_encoders_follow_the_pods_and_a_restarted_prefill(harness: Harness, pods: Pods) -> None:
    async with (
        Engine("prefill", pods.ports) as p,
        Engine("encode", pods.ports) as e1,
        Engine("encode", pods.ports) as e2,
        Engine("encode", pods.ports) as other,
    ):
        prefill = pods.add(p)
        first = pods.add(e1)
        pods.add(other, key="k2")
        await harness.until(lambda: p.encoders == [e1.url])
        pods.add(e2)
        await harness.until(lambda: set(p.encoders) == {e1.url, e2.url})
        await harness.until(lambda: all(e["missing"] == [] for e in harness.state()["encoders"]))
        await asyncio.sleep(0.3)
        calls = len(p.directory_calls)
        await asyncio.sleep(1.5)
        assert len(p.directory_calls) == calls, "written at rest"
        pods.drop(first)
        await harness.until(lambda: p.encoders == [e2.url])
        await p.stop()
        await harness.until(lambda: any(e["missing"] == [prefill.name] for e in harness.state()["encoders"]))
        await p.start()
        await harness.until(lambda: p.encoders == [e2.url])
        p.encoders.append("http://10.9.9.9:30000")
        await harness.until(lambda: p.encoders == [e2.url])


async def test_an_encoder_that_hangs_is_not_given_back_to_a_prefill_that_dropped_it(
    harness: Harness, pods: Pods
) -> None:
    """SGLang's prefill evicts after failed probes of its own, and a registration would end the eviction."""
    async with Engine("prefill", pods.ports) as p, Engine("encode", pods.ports) as e, Engine("encode", pods.ports) as f:
        pods.add(p)
        hung = pods.add(e)
        await harness.until(lambda: p.encoders == [e.url])
        harness.failing = {hung.uid}
        p.encoders.clear()
        pods.add(f)
        await harness.until(lambda: p.encoders == [f.url])
        passed = harness.loop.view
        await harness.until(lambda: harness.loop.view is not passed)
        assert p.encoders == [f.url]
        assert [len(entry["missing"]) for entry in harness.state()["encoders"]] == [1, 0]
        harness.failing = set()
        await harness.until(lambda: set(p.encoders) == {e.url, f.url})


async def test_an_encoder_that_hangs_is_not_struck(harness: Harness, pods: Pods) -> None:
    """Or registrars with different views of the network would undo each other's work for ever."""
    async with Engine("prefill", pods.ports) as p, Engine("encode", pods.ports) as e:
        harness.failing = {"uid-2"}
        p.encoders.append(e.url)
        pods.add(p)
        assert pods.add(e).uid == "uid-2"
        await harness.until(lambda: any(entry["registeredWith"] for entry in harness.state()["encoders"]))
        assert p.directory_calls == []


async def test_an_encoder_that_a_prefill_lists_again_by_itself_is_struck(
    harness: Harness, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang goes on probing what it evicted, and the address may be another key's encoder by then."""
    monkeypatch.setattr("epd_workers.registrar.loop.BARE_SECONDS", 0.1)
    async with Engine("prefill", pods.ports) as p:
        pods.add(p)
        await harness.until(lambda: harness.loop.view.directories)
        p.encoders.append("http://10.9.9.9:30000")
        await harness.until(lambda: p.encoders == [])


async def test_encoders_are_known_before_the_prefill_takes_requests(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("encode", pods.ports) as e:
        pods.add(e)
        pods.add(p)
        await harness.until(lambda: all_ready(harness, 1))
        assert p.encoders_at_first_probe == [e.url]


async def test_text_goes_on_without_a_directory(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d, Engine("encode", pods.ports) as e:
        p.directory_status = 500
        pods.add(e)
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        assert (await smg.chat())[0] == 200
        assert [len(entry["missing"]) for entry in harness.state()["encoders"]] == [1]


async def test_nothing_is_removed_before_the_pods_are_known(harness: Harness, pods: Pods) -> None:
    async with Engine("prefill", pods.ports) as p:
        pods.add(p)
        await harness.until(lambda: all_ready(harness, 1))
        pods.pods = None
        await asyncio.sleep(1.5)
        assert [w.status for w in await listed(harness)] == ["ready"]


async def test_a_pod_that_never_answers_does_not_hold_the_others_back(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        mute = pods.add(Engine("decode", pods.ports))
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: list(harness.states().values()).count("ready") == 2)
        assert harness.states()[mute.name] == "registering"
        assert (await smg.chat())[0] == 200
        assert harness.writes() < 10


async def test_overload_never_shuts_a_single_pair_out(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        for engine in (p, d):
            engine.status = 503
            for _ in range(12):
                assert (await smg.chat())[0] == 503
            engine.status = 200
            assert (await smg.chat())[0] == 200


async def test_images_without_an_encoder_do_not_shut_text_out(harness: Harness, pods: Pods, smg: Smg) -> None:
    """A prefill answers 503 to an image that it has no encoder for; a breaker would then close it for text as well."""
    engines = [Engine(role, pods.ports) for role in ("prefill", "prefill", "decode", "decode")]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    try:
        for engine in engines:
            engine.image_status = 503 if engine.role == "prefill" else 200
            await engine.start()
            pods.add(engine)
        await harness.until(lambda: all_ready(harness, 4))
        for _ in range(20):
            assert (await smg.chat(messages=[{"role": "user", "content": [image]}]))[0] == 503
        for _ in range(20):
            assert (await smg.chat())[0] == 200
    finally:
        for engine in engines:
            await engine.stop()


async def test_a_decode_that_dies_in_mid_stream_ends_it_with_an_error(harness: Harness, pods: Pods, smg: Smg) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        d.token_delay, d.tokens = 0.3, 100
        async with smg.session.post(f"{smg.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            assert response.status == 200
            await response.content.readline()
            await d.stop()
            rest = (await response.read()).decode()
        assert '"stream_error"' in rest
        assert rest.rstrip().endswith("data: [DONE]")
        assert (await smg.chat())[0] in {502, 503}
        d.token_delay = 0
        await d.start()
        await harness.until(lambda: _works(smg), 10)


async def _works(smg: Smg) -> bool:
    return (await smg.chat())[0] == 200


async def test_a_prefill_that_dies_after_the_hand_over_does_not_end_the_stream(
    harness: Harness, pods: Pods, smg: Smg
) -> None:
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        d.token_delay, d.tokens = 0.2, 6
        stream = asyncio.create_task(smg.chat(stream=True))
        await harness.until(lambda: d.running == 1 and p.running == 0)
        await asyncio.sleep(0.3)
        await p.stop()
        status, text = await stream
        assert (status, text.count("delta")) == (200, 6)
        status, _ = await asyncio.wait_for(smg.chat(), 5)
        assert status in {502, 503}


async def test_the_worker_endpoints_need_the_control_key(smg: Smg) -> None:
    for method, path in [("GET", "/workers"), ("POST", "/workers"), ("DELETE", "/workers/x"), ("POST", "/flush_cache")]:
        assert (await smg.call(method, path, json={"url": "http://127.0.0.1:1"}))[0] == 401, (method, path)
        assert (await smg.call(method, path, "wrong", {"url": "http://127.0.0.1:1"}))[0] == 401, (method, path)
    assert (await smg.call("GET", "/workers", smg.key))[0] == 200
    assert (await smg.call("GET", "/v1/models"))[0] != 401


async def test_clients_need_the_client_key_when_one_is_set(
    smg: Smg, harness: Harness, pods: Pods, session: aiohttp.ClientSession
) -> None:
    client_key = smg.key_file.with_name("client-key")
    client_key.write_text("cl1ent\n")
    await smg.stop()
    await smg.start("--api-key-file", str(client_key))
    async with Engine("prefill", pods.ports) as p, Engine("decode", pods.ports) as d:
        pods.add(p)
        pods.add(d)
        await harness.until(lambda: all_ready(harness, 2))
        chat = "/v1/chat/completions"
        assert (await smg.call("POST", chat, "cl1ent", CHAT))[0] == 200
        for key in (None, "wrong", smg.key):
            assert (await smg.call("POST", chat, key, CHAT))[0] == 401, key
        assert (await smg.call("GET", "/workers", "cl1ent"))[0] == 401
        assert (await smg.call("GET", "/liveness"))[0] == 200


async def test_the_keys_are_not_on_show(smg: Smg) -> None:
    assert smg.process is not None
    shown = [Path("/proc", str(smg.process.pid), name) for name in ("cmdline", "environ")]
    for path in (*shown, smg.log):
        assert smg.key.encode() not in await asyncio.to_thread(path.read_bytes), path
