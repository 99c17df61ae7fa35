from __future__ import annotations

from typing import Any

import pytest

from epd_workers.registrar.pod import pod_of
from tests.support.registrar_values import manifest


def test_a_running_pod_is_read_whole() -> None:
    pod = pod_of(manifest(), 30000)
    assert pod is not None
    assert (pod.role, pod.key, pod.revision, pod.ip, pod.image) == ("decode", "k1", "r1", "10.0.0.7", "sha256:aa")
    assert pod.ready
    assert not pod.deleting
    assert pod.url(30000) == "http://10.0.0.7:30000"


def test_the_bootstrap_port_is_the_one_that_the_pod_names() -> None:
    ports = [{"name": "http", "containerPort": 30000}, {"name": "bootstrap", "containerPort": 9100}]
    named = pod_of(manifest(spec__containers=[{"name": "engine", "ports": ports}]), 30000)
    unnamed = pod_of(manifest(), 30000)
    assert (named and named.bootstrap_port, unnamed and unnamed.bootstrap_port) == (9100, None)


@pytest.mark.parametrize("labels", [{}, {"serving.epd.dev/role": "router"}, None])
def test_a_pod_without_an_engine_role_is_none_of_ours(labels: dict[str, str] | None) -> None:
    assert pod_of(manifest(metadata__labels=labels), 30000) is None


def test_a_readiness_gate_that_is_false_makes_the_pod_unready() -> None:
    gate = [{"type": "example.com/gate", "status": "False"}, {"type": "Ready", "status": "False"}]
    pod = pod_of(manifest(status__conditions=gate), 30000)
    assert pod is not None
    assert not pod.ready


@pytest.mark.parametrize(
    "change", [{"metadata__deletionTimestamp": "2026-01-01T00:00:01Z"}, {"status__phase": "Failed"}]
)
def test_a_pod_on_its_way_out_is_deleting(change: dict[str, Any]) -> None:
    pod = pod_of(manifest(**change), 30000)
    assert pod is not None
    assert pod.deleting


def test_a_pod_just_created_has_nothing_yet() -> None:
    pod = pod_of(manifest(status={}), 30000)
    assert pod is not None
    assert (pod.ip, pod.image, pod.ready) == ("", "", False)


def test_an_ipv6_address_is_bracketed() -> None:
    pod = pod_of(manifest(status__podIP="fd00::7"), 30000)
    assert pod is not None
    assert pod.url(30000) == "http://[fd00::7]:30000"
