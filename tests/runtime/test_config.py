from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator import __version__
from epd_operator.plan import Event
from epd_operator.runtime import log
from epd_operator.runtime.config import ConfigError, from_environment
from epd_operator.runtime.record import NOTE_LIMIT, body

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults() -> None:
    config = from_environment({"POD_NAME": "pod-1", "POD_NAMESPACE": "sys"})
    assert config.scope.namespaces == ()
    assert config.scope.lists == (None,)
    assert config.namespace == "sys"
    assert config.identity.startswith("pod-1_")
    assert config.user_agent == f"epd-operator/{__version__} ({config.identity})"
    assert (config.metrics_port, config.probes_port) == (8080, 8090)
    assert config.rdma_resource == "rdma/ib"


def test_a_cluster_may_call_its_rdma_devices_otherwise() -> None:
    config = from_environment({"EPD_RDMA_RESOURCE": "rdma/hca_shared_devices_a"})
    assert config.rdma_resource == "rdma/hca_shared_devices_a"


def test_advisories_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "advisories.yaml"
    file.write_text("[{id: a-b, versions: ['0.5.23'], says: s, fix: f, source: r}]")
    (advisory,) = from_environment({"EPD_ADVISORIES": str(file)}).advisories
    assert (advisory.id, advisory.versions) == ("a-b", ["0.5.23"])
    file.write_text("[{id: 7}]")
    with pytest.raises(ConfigError, match=r"EPD_ADVISORIES: advisories\[0\]\['id'\]"):
        from_environment({"EPD_ADVISORIES": str(file)})
    with pytest.raises(ConfigError, match="cannot be read"):
        from_environment({"EPD_ADVISORIES": str(tmp_path / "none.yaml")})


def test_two_runs_of_one_pod_have_two_identities() -> None:
    environ = {"POD_NAME": "pod-1"}
    assert from_environment(environ).identity != from_environment(environ).identity


def test_namespaces_are_sorted_and_cleaned() -> None:
    assert from_environment({"EPD_WATCH_NAMESPACE": "b, a,,b"}).scope.namespaces == ("a", "b")


def test_every_fault_at_once() -> None:
    environ = {"EPD_WATCH_NAMESPACE": "ok,Not_Ok", "EPD_WORKERS": "0", "EPD_METRICS_PORT": "http"}
    environ["EPD_RDMA_RESOURCE"] = "infiniband"
    with pytest.raises(ConfigError) as caught:
        from_environment(environ)
    text = str(caught.value)
    assert len(text.splitlines()) == 4
    for part in ("EPD_WATCH_NAMESPACE: 'Not_Ok'", "EPD_WORKERS: '0'", "EPD_METRICS_PORT: 'http'"):
        assert part in text


def entry(name: str = "epd_operator.x", **extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": "hello %s", "args": ("you",), "levelname": "INFO", **extra})


def test_json_lines_carry_our_fields_and_nobody_elses() -> None:
    line = json.loads(log.Json().format(entry(key="ns/demo", holder=None)))
    assert line["message"] == "hello you"
    assert line["key"] == "ns/demo"
    assert "holder" not in line
    assert "secret" not in json.loads(log.Json().format(entry("kopf.x", secret="s")))


def test_text_lines() -> None:
    assert log.Text().format(entry(key="ns/demo")).endswith("INFO    hello you  key=ns/demo")


def test_an_event_fits_the_servers_limits() -> None:
    custom = {"metadata": {"name": "demo", "namespace": "ns", "uid": "u", "resourceVersion": "7"}}
    actual = body(custom, Event("Warning", "Stalled", "ä" * 2000), "i" * 300, datetime(2026, 1, 2, tzinfo=UTC))
    assert len(actual["note"].encode()) <= NOTE_LIMIT
    assert len(actual["reportingInstance"]) == 128
    assert actual["regarding"]["uid"] == "u"
    assert actual["eventTime"] == "2026-01-02T00:00:00.000000Z"
    assert actual["metadata"]["namespace"] == "ns"
