"""A registrar's loop between a real router and the pods that a test says exist."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from epd_workers.registrar.directory import Directory
from epd_workers.registrar.loop import Loop
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.pod import Pod
from epd_workers.registrar.router import Router
from epd_workers.registrar.state import document
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

    from tests.support.engine import Ports
    from tests.support.smg import Smg


class Located(Protocol):
    """An engine, whatever runs it."""

    role: str
    host: str


class Pods:
    """The pods that a test says exist."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.pods: list[Pod] | None = []
        self.wake = asyncio.Event()
        self._made = 0

    def add(self, engine: Located, key: str = "k1", *, image: str = "sha256:a", name: str = "") -> Pod:
        self._made += 1
        pod = Pod(
            name=name or f"demo-{engine.role}-{self._made}",
            uid=f"uid-{self._made}",
            ip=engine.host,
            role=engine.role,
            key=key,
            revision="r1",
            image=image,
            ready=True,
            deleting=False,
            created=f"2026-01-01T00:{self._made:02}:00Z",
            bootstrap_port=self.ports.bootstrap if engine.role == "prefill" else None,
        )
        self.set([*(self.pods or []), pod])
        return pod

    def drop(self, pod: Pod) -> None:
        self.set([p for p in self.pods or [] if p.uid != pod.uid])

    def set(self, pods: list[Pod]) -> None:
        self.pods = pods
        self.wake.set()


class Harness:
    """A registrar loop on real router and scripted pods."""

    def __init__(self, smg: Smg, pods: Pods, session: aiohttp.ClientSession) -> None:
        ports = pods.ports
        self.metrics = Metrics()
        self.failing: set[str] = set()
        self.router = Router(session, smg.url, smg.key, engine_port=ports.engine)
        self.loop = Loop(
            pods,
            self.router,
            Directory(session, ports.encoder),
            self.metrics,
            pods.wake,
            engine_port=ports.engine,
            resync=0.5,
            failing=lambda: self.failing,
        )
        self._ports = ports

    def state(self) -> dict[str, Any]:
        return document(self.loop.view, pod="router-0", version="smg", engine_port=self._ports.engine)

    def states(self) -> dict[str, str]:
        return {worker["pod"]: worker["state"] for worker in self.state()["workers"]}

    def writes(self) -> float:
        lines = self.metrics.text().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("registrar_writes_total"))

    async def until(self, condition: Callable[[], object], seconds: float = 15) -> None:
        await eventually(condition, seconds, every=0.05, why=lambda: f"state: {self.state()}")
