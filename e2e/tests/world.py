"""Stand-ins around a registrar process: pods that nobody schedules, and a network that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.dynamic.exceptions import NotFoundError

from tests.ports import free_port
from tests.registrar.peers import Engine, Ports

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from e2e.kube import Kube, Object
    from tests.registrar.conftest import Smg

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
        if engine.role == "prefill":
            ports.append({"name": "bootstrap", "containerPort": self.ports.bootstrap})
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

    async def until_states(self, **expected: str) -> None:
        wanted = {name.replace("_", "-"): state for name, state in expected.items()}

        async def reached() -> bool:
            return await self.states() == wanted

        await self.until(reached, 30)


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
        actual: list[dict[str, Any]] = json.loads((await self.smg.call("GET", "/workers", self.smg.key))[1])["workers"]
        return actual


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
