"""The cluster, the operator in it and one serving deployment, shared by the tests of a run.

A machine that cannot run the cluster skips these tests and says why, unless `CI` is set: then that is a failure.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from e2e import stack as stacks
from e2e.cluster import access
from e2e.forward import Forward
from e2e.kube import Kube, Object, is_true, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLE = stacks.ROOT / "manifests" / "samples" / "reference.yaml"
LAST = ("test_permissions.py",)  # reads what the whole run did


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that look back at the run last."""
    items.sort(key=lambda item: item.path.name in LAST)


@pytest.fixture(scope="session")
def stack() -> stacks.Stack:
    """The cluster, with the images of this checkout in its registry."""
    why_not = access.unavailable()
    if why_not:
        if os.environ.get("CI"):
            pytest.fail(why_not)
        pytest.skip(why_not)
    try:
        return stacks.prepare()
    except subprocess.CalledProcessError as error:
        pytest.fail(f"preparing the cluster failed: {error}")


@pytest.fixture(scope="session")
def kube(stack: stacks.Stack) -> Kube:
    """The API server."""
    return Kube(stack.kubeconfig)


@pytest.fixture(scope="session")
def operator(stack: stacks.Stack, kube: Kube) -> Kube:
    """The API server of a cluster in which the operator runs, installed from its chart."""
    stacks.install(stack)
    return kube


@pytest.fixture(scope="session")
def new_namespace(kube: Kube) -> Iterator[Callable[[str], str]]:
    """Makes empty namespaces that go away with the run."""
    made: list[str] = []

    def make(name: str) -> str:
        kube.delete("v1", "Namespace", None, name)
        until(f"namespace {name} gone", lambda: kube.get("v1", "Namespace", None, name) is None, seconds=90)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        made.append(name)
        return name

    yield make
    for name in made:
        kube.delete("v1", "Namespace", None, name)


def sample(name: str, namespace: str) -> Object:
    """The sample of the repository under another name."""
    deployment: Object = yaml.safe_load(SAMPLE.read_text())
    deployment["metadata"] = {"name": name, "namespace": namespace}
    return deployment


def ready(kube: Kube, namespace: str, name: str, seconds: float = 150) -> Object:
    """Wait until a deployment is Ready for its newest generation, and return it."""

    def probe() -> Object | None:
        live = kube.deployment(namespace, name)
        return live if is_true(live, "Ready") else None

    try:
        found: Object = until(f"{namespace}/{name} to be Ready", probe, seconds=seconds)
    except TimeoutError as error:
        status = (kube.deployment(namespace, name) or {}).get("status")
        raise TimeoutError(f"{error}; status: {yaml.safe_dump(status)}") from None
    return found


@pytest.fixture(scope="session")
def serving(operator: Kube, new_namespace: Callable[[str], str]) -> Object:
    """One deployment with an encode, a prefill and a decode pod and a router, Ready."""
    namespace = new_namespace("e2e-serving")
    operator.apply(sample("demo", namespace))
    return ready(operator, namespace, "demo")


@pytest.fixture
def router(serving: Object, stack: stacks.Stack) -> Iterator[str]:
    """Base URL of the serving deployment's client Service, as seen from here."""
    meta = serving["metadata"]
    with Forward(stack.kubeconfig, meta["namespace"], f"svc/{meta['name']}", 8000) as url:
        yield url
