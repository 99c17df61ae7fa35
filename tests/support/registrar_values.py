"""Pods, workers and reports that the registrar's tests start from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from epd_workers.registrar.membership import Worker
from epd_workers.registrar.pod import Pod

if TYPE_CHECKING:
    from epd_workers.registrar.server_info import ServerInfo

PORT = 30000


def pod(name: str = "p", **changes: object) -> Pod:
    base = Pod(
        name=name,
        uid=f"uid-{name}",
        ip="10.0.0.1",
        role="prefill",
        key="k1",
        revision="r1",
        image="sha256:a",
        ready=True,
        deleting=False,
        created="2026-01-01T00:00:00Z",
        bootstrap_port=8998,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def worker_for(pod: Pod, **changes: object) -> Worker:
    base = Worker(
        id=f"id-{pod.uid}",
        url=pod.url(PORT),
        role=pod.role,
        key=pod.key,
        pod_uid=pod.uid,
        image=pod.image,
        status="ready",
        load=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


RUNNING: dict[str, Any] = {
    "decoder": {"active": True, "reason": "", "preset": "0.5.23", "rows_run": 5120, "rows_skipped": 3072},
    "encoder": {"active": False, "reason": "TurnedOff", "rows_replayed": 0},
}


POOL: dict[str, Any] = {"engine": "valkey", "fault": "", "hits": 7, "misses": 2, "stored": 11, "dropped": 1}


WHOLE: dict[str, Any] = {"replay": RUNNING, "swa_pool": POOL}


SHOWN: dict[str, Any] = {
    "decoder": {"active": True, "reason": "", "preset": "0.5.23", "rowsRun": 5120, "rowsSkipped": 3072},
    "encoder": {"active": False, "reason": "TurnedOff", "rowsReplayed": 0},
}


PAGE = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="prefill",model_name="dsv41"} 2.0
# HELP epd_replay_layer_rows_total Rows times layers of prompts that ran, and that bounded replay spared
# TYPE epd_replay_layer_rows_total counter
epd_replay_layer_rows_total{half="decoder",state="run"} 5120.0
epd_replay_layer_rows_total{half="decoder",state="skipped"} 3072.0
# TYPE epd_replay_active gauge
epd_replay_active{half="decoder",reason=""} 1.0
epd_replay_active{half="encoder",reason="TurnedOff"} 0.0
# TYPE epd_plugin_info gauge
epd_plugin_info{version="0.5.23.1",role="prefill"} 1.0
"""


def changed(half: str, **values: Any) -> dict[str, Any]:
    return {**RUNNING, half: {**RUNNING[half], **values}}


def shown(report: ServerInfo) -> dict[str, Any]:
    parts = {"replay": report.replay, "swa_pool": report.swa_pool}
    return {name: part.document() for name, part in parts.items() if part is not None}


def manifest(**changes: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {
        "metadata": {
            "name": "demo-decode-1",
            "uid": "u1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "serving.epd.dev/role": "decode",
                "serving.epd.dev/compat-key": "k1",
                "serving.epd.dev/revision": "r1",
            },
        },
        "spec": {"containers": [{"name": "proxy"}, {"name": "engine", "ports": [{"containerPort": 30000}]}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "proxy", "imageID": "proxy@sha256:ff"},
                {"name": "engine", "imageID": "registry/epd@sha256:aa"},
            ],
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = obj
        for parent in parents:
            target = target[parent]
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return obj
