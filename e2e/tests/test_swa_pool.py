"""The pool of windows in a cluster: turns come back to another prefill pod, and nothing waits for a lost pool."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.forward import Forward
from e2e.kube import API_VERSION, KIND, Kube, Object, conditions, ready_pods, until
from e2e.samples import ready, sample
from e2e.tests import processes
from tools.cluster import access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from e2e.stack import Stack

NAME = "pooled"
PAGES = "/pages"
TTL = 20
STORY = "Mira keeps the silver key in the barn. " + "The river was calm and the road was long. " * 12
QUESTION = "Where does Mira keep the silver key?"
ANSWER = "In the barn."


@dataclass(frozen=True)
class World:
    """One deployment and what the tests ask of it."""

    kube: Kube
    namespace: str
    kubeconfig: Path

    def apply(self, pool: Object, *, prefills: int = 2) -> Object:
        """Apply the deployment with this pool and wait until everything declared is as declared."""
        self.kube.apply(wanted(self.namespace, pool, prefills))
        return ready(self.kube, self.namespace, NAME)

    def pods(self, component: str) -> list[Object]:
        """The ready pods of a part."""
        selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component={component}"
        return list(ready_pods(self.kube.pods(self.namespace, selector)))

    def uids(self, component: str) -> set[str]:
        """Which pods those are."""
        return {pod["metadata"]["uid"] for pod in self.pods(component)}

    def counted(self, name: str, **labels: str) -> dict[str, float]:
        """A counter of each prefill pod."""
        actual = {}
        for pod in self.pods("prefill"):
            meta = pod["metadata"]
            text = self.kube.raw(f"/api/v1/namespaces/{self.namespace}/pods/{meta['name']}:30000/proxy/metrics")
            families = text_string_to_metric_families(text)
            samples = (one for family in families for one in family.samples)
            actual[meta["name"]] = sum(
                one.value for one in samples if one.name == name and labels.items() <= one.labels.items()
            )
        return actual

    def hits(self) -> float:
        """Windows that prefill pods adopted."""
        return sum(self.counted("swapool_get_total", result="hit").values())

    def condition(self) -> Object:
        """SwaPoolReady as it stands; empty where there is none."""
        return conditions(self.kube.deployment(self.namespace, NAME)).get("SwaPoolReady", {})


def wanted(namespace: str, pool: Object, prefills: int) -> Object:
    """A deployment without encoders whose prefill and decode pods share a disk tier."""
    made = sample(NAME, namespace)
    claim = {"name": "pages", "persistentVolumeClaim": {"claimName": "pages"}}
    role: Object = {
        "resources": {"cpu": "20m", "memory": "1Gi"},
        "args": {"kv-disk-path": PAGES},
        "pod": {"volumes": [claim], "volumeMounts": [{"name": "pages", "mountPath": PAGES}]},
    }
    made["spec"]["roles"] = {"prefill": {**role, "replicas": prefills, "encoderReplay": True}, "decode": role}
    made["spec"]["router"] = {
        "resources": {"cpu": "20m", "memory": "512Mi"},
        # Turn after turn on the other pod.
        "policy": {"prefill": "round_robin"},
    }
    made["spec"]["swaPool"] = pool
    return made


@pytest.fixture(scope="module")
def world(
    operator: Kube,
    stack: Stack,
    new_namespace: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """A namespace with a volume that several pods can write."""
    if access.given() is not None:
        pytest.skip("a folder of this machine is no volume of that cluster")
    namespace = new_namespace("e2e-swa-pool")
    folder = tmp_path_factory.mktemp("pages")
    for part in (folder, folder.parent, folder.parent.parent):
        part.chmod(0o777)
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": namespace}
    operator.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "claimRef": {"namespace": namespace, "name": "pages"},
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        }
    )
    operator.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "pages", "namespace": namespace},
            "spec": {**shared, "resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    yield World(operator, namespace, stack.kubeconfig)
    # The node is small, and others come.
    operator.delete(API_VERSION, KIND, namespace, NAME)
    operator.delete("v1", "PersistentVolume", None, namespace)


def converse(url: str, mark: str, turns: int = 3) -> list[str]:
    """Hold one conversation, which nobody else has begun, and return the answers."""
    message: list[Any] = []
    answers = []
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        for turn in range(turns):
            story = f"{mark}: {STORY}" if turn == 0 else "The river was calm and the road was long. " * 8
            message.append({"role": "user", "content": f"{story}{QUESTION}"})
            answer = client.chat.completions.create(model=NAME, messages=message, max_tokens=16, temperature=0)
            answers.append(answer.choices[0].message.content or "")
            message.append({"role": "assistant", "content": answers[-1]})
    return answers


class Traffic:
    """Conversations one after the other until the block ends; `failed` has what went wrong."""

    def __init__(self, world: World, mark: str) -> None:
        self.failed: list[BaseException] = []
        self.done = 0
        self._mark = mark
        self._stopped = threading.Event()
        self._forward = Forward(world.kubeconfig, world.namespace, f"svc/{NAME}", 8000)
        self._thread = threading.Thread(target=self._run)
        self._url = ""

    def __enter__(self) -> Self:
        self._url = self._forward.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(120)
        self._forward.__exit__(None, None, None)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                assert converse(self._url, f"{self._mark} {self.done}") == [ANSWER] * 3
            except (openai.APIError, AssertionError) as error:
                self.failed.append(error)
            self.done += 1


def conversations(world: World, mark: str, count: int = 2) -> None:
    """Hold some conversations, one after the other, so that turns alternate between the pods; all answers are right."""
    with Forward(world.kubeconfig, world.namespace, f"svc/{NAME}", 8000) as url:
        for number in range(count):
            assert converse(url, f"{mark} {number}") == [ANSWER] * 3


def test_a_conversation_finds_its_window_on_another_prefill_pod(world: World) -> None:
    world.apply({"mode": "Valkey", "memory": "64Mi", "ttl": f"{TTL}s"})
    conversations(world, "valkey")
    # Two conversations of three turns: each but the first finds its window, wherever it lands.
    assert world.hits() == 4
    actual = world.counted("kv_disk_get_total", result="hit")
    assert sum(actual.values()) > 0, "turns never landed on the pod that had not seen the conversation"
    assert world.condition()["status"] == "True"


def test_a_killed_pool_costs_no_request(world: World) -> None:
    until("the first pool to be warm", lambda: world.condition().get("reason") != "Warming", seconds=TTL + 30)
    (pool,) = world.pods("swa-pool")
    engines = world.uids("prefill") | world.uids("decode")
    with Traffic(world, "killed") as traffic:
        until("some traffic", lambda: traffic.done >= 1, seconds=60)
        assert processes.kill(pool["metadata"]["name"])
        until("the loss to be told", lambda: world.condition().get("status") == "False", seconds=45)
        until("the pool to be back, and cold", lambda: world.condition().get("reason") == "Warming", seconds=60)
        before, hits = traffic.done, world.hits()
        until("windows to be found again", lambda: traffic.done > before + 1 and world.hits() > hits, seconds=90)
    assert not traffic.failed
    assert world.uids("prefill") | world.uids("decode") == engines
    until("the new pool to be warm", lambda: world.condition().get("reason") != "Warming", seconds=TTL + 60)
    assert world.condition()["status"] == "True"


def test_settings_restart_no_engine_and_the_mode_restarts_prefill_alone(world: World) -> None:
    prefill, decode = world.uids("prefill"), world.uids("decode")
    world.apply({"mode": "Valkey", "memory": "96Mi", "ttl": "15s", "deadline": "30ms"})
    assert (world.uids("prefill"), world.uids("decode")) == (prefill, decode)
    world.apply({"mode": "Disabled"}, prefills=1)
    assert world.uids("decode") == decode
    assert not world.uids("prefill") & prefill
    assert not world.condition()
    for kind in (("apps/v1", "Deployment"), ("v1", "Service"), ("v1", "ConfigMap")):
        left = world.kube.find(*kind, world.namespace, f"app.kubernetes.io/instance={NAME}")
        assert not [obj for obj in left if "swa-pool" in obj["metadata"]["name"]]


def test_mooncake_serves_windows_and_a_lost_master_costs_no_request(world: World) -> None:
    world.apply({"mode": "Mooncake", "memory": "64Mi", "stores": 2, "ttl": f"{TTL}s", "deadline": "50ms"})
    conversations(world, "mooncake")
    assert world.hits() > 0
    (master,) = world.pods("swa-pool")
    engines = world.uids("prefill") | world.uids("decode")
    with Traffic(world, "master") as traffic:
        until("some traffic", lambda: traffic.done >= 1, seconds=60)
        assert processes.kill(master["metadata"]["name"])
        until("the pool to be back, and cold", lambda: world.condition().get("reason") == "Warming", seconds=90)
        hits = world.hits()
        until("windows to be found again", lambda: world.hits() > hits, seconds=120)
    assert not traffic.failed
    assert world.uids("prefill") | world.uids("decode") == engines
