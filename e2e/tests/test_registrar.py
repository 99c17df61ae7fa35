"""The registrar as a process of its own, with a real router and a real API server; only the engines are stand-ins.

The pods are never scheduled: the test writes their status, as a kubelet would, so that every state and every order of
events can be had at will. The registrar holds the service account token and the Role that the plan gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from kubernetes.dynamic.exceptions import NotFoundError

from tests.registrar.conftest import Smg
from tests.registrar.peers import Engine, Ports, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from e2e.kube import Kube, Object

INSTANCE = "app.kubernetes.io/instance"
ROLE = "serving.epd.dev/role"
KEY = "serving.epd.dev/compat-key"


class Pods:
    """Pods that nobody schedules, in a namespace of their own."""

    def __init__(self, kube: Kube, namespace: str, ports: Ports) -> None:
        self.kube = kube
        self.namespace = namespace
        self.ports = ports

    async def create(self, name: str, engine: Engine, key: str = "k1", image: str = "sha256:a") -> None:
        security = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        ports = [{"name": "http", "containerPort": self.ports.engine}]
        container = {"name": "engine", "image": "none", "ports": ports, "securityContext": security}
        labels = {INSTANCE: "demo", ROLE: engine.role, KEY: key, "serving.epd.dev/revision": "r1"}
        meta = {"name": name, "namespace": self.namespace, "labels": labels, "finalizers": ["test.epd.dev/hold"]}
        spec = {"schedulerName": "nobody", "containers": [container]}
        await asyncio.to_thread(self.kube.apply, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        await self.status(name, engine, ready=True, image=image)

    async def status(self, name: str, engine: Engine, *, ready: bool, image: str = "sha256:a") -> None:
        container = {
            "name": "engine",
            "image": "none",
            "imageID": f"registry/none@{image}",
            "ready": ready,
            "restartCount": 0,
            "state": {"running": {}},
        }
        await self.write_status(
            name,
            phase="Running",
            podIP=engine.host,
            podIPs=[{"ip": engine.host}],
            conditions=[{"type": "Ready", "status": str(ready)}],
            containerStatuses=[container],
        )

    async def write_status(self, name: str, **status: Any) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        await self._patch(path, {"status": status})

    async def label(self, name: str, label: str, value: str | None) -> None:
        await self._patch(f"/api/v1/namespaces/{self.namespace}/pods/{name}", {"metadata": {"labels": {label: value}}})

    async def delete(self, name: str) -> None:
        """Begin a deletion that a finalizer holds up, as a grace period would."""
        await asyncio.to_thread(self.kube.delete, "v1", "Pod", self.namespace, name)

    async def finish(self, name: str) -> None:
        """Let a pod go for good."""
        with contextlib.suppress(NotFoundError):
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
            await self._patch(path, {"metadata": {"finalizers": None}})

    async def finish_all(self) -> None:
        for pod in await asyncio.to_thread(self.kube.find, "v1", "Pod", self.namespace):
            await self.delete(pod["metadata"]["name"])
            await self.finish(pod["metadata"]["name"])

    async def _patch(self, path: str, body: Object) -> None:
        send: Any = self.kube.dynamic.request
        await asyncio.to_thread(
            send,
            "patch",
            path,
            body=body,
            content_type="application/merge-patch+json",
        )


class Link:
    """The network between the registrar and the API server; when cut, it swallows everything and closes nothing."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        self.port = free_port()
        self._target = (host, port)
        self._tls = tls
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        self._open.clear()

    def restore(self) -> None:
        """Let new connections through; those from before the cut stay mute, as behind a router that lost its table."""
        self._open = asyncio.Event()
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        allowed = self._open
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await allowed.wait()
            upstream, up_writer = await asyncio.open_connection(*self._target, ssl=self._tls)
            await asyncio.gather(self._copy(reader, up_writer, allowed), self._copy(upstream, writer, allowed))
        writer.close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, allowed: asyncio.Event) -> None:
        while data := await source.read(65536):
            await allowed.wait()
            sink.write(data)
            await sink.drain()
        sink.close()


class Registrar:
    """The registrar program."""

    def __init__(self, smg: Smg, kubeconfig: Path, namespace: str, ports: Ports, log: Path) -> None:
        self.port = free_port()
        self.smg = smg
        self.log = log
        self.process: asyncio.subprocess.Process | None = None
        flags = {
            "namespace": namespace,
            "selector": f"{INSTANCE}=demo",
            "router": smg.url,
            "control-key-file": smg.key_file,
            "engine-port": ports.engine,
            "bootstrap-port": ports.bootstrap,
            "encoder-port": ports.encoder,
            "listen": f"127.0.0.1:{self.port}",
            "resync": 1,
            "relist": 4,
        }
        self._words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "demo-router-0"}

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "epd_workers.registrar.main", *self._words, env=self._env, stdout=log, stderr=log
            )
        await self.until(self._answers)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return await self.process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.smg.session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.text()

    async def state(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((await self.get("/state"))[1])
        return document

    async def states(self) -> dict[str, str]:
        return {worker["pod"]: worker["state"] for worker in (await self.state())["workers"]}

    async def _answers(self) -> bool:
        try:
            return (await self.get("/healthz"))[0] == 200
        except aiohttp.ClientError:
            return False

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await condition():  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not reached in {seconds} s; {self.log.read_text()[-3000:]}") from None

    async def until_states(self, seconds: float = 20, **expected: str) -> None:
        wanted = {name.replace("_", "-"): state for name, state in expected.items()}

        async def reached() -> bool:
            return await self.states() == wanted

        await self.until(reached, seconds)


class World:
    """Router, registrar, pods and their engines."""

    def __init__(self, smg: Smg, registrar: Registrar, pods: Pods, link: Link) -> None:
        self.smg = smg
        self.link = link
        self.registrar = registrar
        self.pods = pods
        self.engines: list[Engine] = []

    async def engine(self, role: str, host: str | None = None) -> Engine:
        engine = Engine(role, self.pods.ports, host)
        await engine.start()
        self.engines.append(engine)
        return engine

    async def pair(self) -> tuple[Engine, Engine]:
        prefill, decode = await self.engine("prefill"), await self.engine("decode")
        await self.pods.create("prefill-0", prefill)
        await self.pods.create("decode-0", decode)
        await self.registrar.until_states(prefill_0="ready", decode_0="ready")
        return prefill, decode

    async def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((await self.smg.call("GET", "/workers", self.smg.key))[1])["workers"]
        return found


def registrar_token(kube: Kube, namespace: str) -> str:
    """A token with the rights that the plan gives a registrar, and no more."""
    meta = {"name": "demo-router", "namespace": namespace}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    subject = {"kind": "ServiceAccount", "name": "demo-router", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "demo-router"}
    rbac = "rbac.authorization.k8s.io/v1"
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    kube.apply({"apiVersion": rbac, "kind": "Role", "metadata": meta, "rules": rules})
    kube.apply({"apiVersion": rbac, "kind": "RoleBinding", "metadata": meta, "roleRef": role, "subjects": [subject]})
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/demo-router/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return str(kube.dynamic.request("post", path, body=body).status.token)


def write_kubeconfig(file: Path, server: str, token: str) -> None:
    """A kubeconfig of one user at one server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "registrar",
        "contexts": [{"name": "registrar", "context": {"cluster": "cluster", "user": "registrar"}}],
        "clusters": [{"name": "cluster", "cluster": {"server": server}}],
        "users": [{"name": "registrar", "user": {"token": token}}],
    }
    file.write_text(json.dumps(config))


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
    """The engine still answers its probes in every one of these."""
    _, decode = await world.pair()

    async def gone() -> bool:
        return all(w["url"] != decode.url or w["status"] == "draining" for w in await world.workers())

    reversible: list[Callable[[], Awaitable[None]]] = [
        lambda: world.pods.label("decode-0", ROLE, None),
        lambda: world.pods.label("decode-0", INSTANCE, "another"),
        lambda: world.pods.status("decode-0", decode, ready=False),
        lambda: world.pods.write_status("decode-0", podIP=None, podIPs=None),
    ]
    for leave in reversible:
        await leave()
        await world.registrar.until(gone)
        assert (await world.smg.chat())[0] == 503
        await world.pods.label("decode-0", ROLE, "decode")
        await world.pods.label("decode-0", INSTANCE, "demo")
        await world.pods.status("decode-0", decode, ready=True)
        await world.registrar.until_states(prefill_0="ready", decode_0="ready")
    await world.pods.write_status("decode-0", phase="Failed")
    await world.registrar.until(gone)


async def test_an_address_is_reused_by_another_pod(world: World) -> None:
    _, decode = await world.pair()
    await world.pods.delete("decode-0")
    await world.pods.finish("decode-0")
    await decode.stop()
    second = await world.engine("prefill", decode.host)
    await world.pods.create("prefill-1", second, key="k2")
    await world.registrar.until_states(prefill_0="ready", prefill_1="ready")
    found = {w["url"]: (w["worker_type"], w["pairing_protocol"]) for w in await world.workers()}
    assert found[second.url] == ("prefill", "k2")


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
    await asyncio.sleep(15)
    assert await world.registrar.states() == {"prefill-0": "ready", "decode-0": "ready"}, "what is known stays"
    assert (await world.smg.chat())[0] == 200
    world.link.restore()
    await world.registrar.until_states(seconds=30, prefill_0="ready", decode_1="ready")
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
    await asyncio.sleep(10)
    assert await writes() == before
    assert world.registrar.log.read_text() == log
    assert world.registrar.process is not None
    status = await asyncio.to_thread(Path("/proc", str(world.registrar.process.pid), "status").read_text)
    resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]
    # A pod needs 25 MiB less: there the client library that reads kubeconfigs is not loaded.
    assert resident < 90, f"{resident} MiB"
