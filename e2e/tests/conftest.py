"""The cluster, the operator in it and one serving deployment, shared by the tests of a run.

A machine that cannot run the cluster skips these tests and says why, unless `CI` is set: then that is a failure.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from e2e import stack as stacks
from e2e.fleet import launch
from e2e.forward import Forward
from e2e.kube import Kube, Object, until
from e2e.samples import ready, sample
from tools.cluster import access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.fleet import Fleet

ORDER = (
    "test_operator.py",
    "test_serving.py",
    "test_swa_pool.py",
    "test_registrar.py",
    "test_crd.py",
    "test_operator_rest.py",
)
"""First the twenty deployments, then what leaves them alone for two minutes, then what looks back at these minutes.

What needs much of the node comes while the node is still empty.
"""
LAST = "test_permissions.py"
"""Looks back at the whole run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the files into the order that they need."""

    def place(item: pytest.Item) -> int:
        name = item.path.name
        return len(ORDER) + (name == LAST) if name not in ORDER else ORDER.index(name)

    items.sort(key=place)


@pytest.fixture(scope="session")
def able() -> None:
    """Skips, saying why, where no cluster can be had; in CI that is a failure."""
    why_not = access.unavailable()
    if why_not:
        if os.environ.get("CI"):
            pytest.fail(why_not)
        pytest.skip(why_not)


@pytest.fixture(scope="session")
def stack(able: None) -> stacks.Stack:
    """The cluster, with the images of this checkout in its registry."""
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


@pytest.fixture(scope="session")
def many(operator: Kube, new_namespace: Callable[[str], str]) -> Fleet:
    """Twenty settled deployments on fake nodes."""
    return launch(operator, new_namespace)
