from __future__ import annotations

import http.server
import io
import json
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from rich.console import Console
from typing_extensions import override

from epd_operator.cli.main import main
from epd_operator.cli.reader import Deployment, Pod
from epd_operator.cli.status import as_json, view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LABELS = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/managed-by": "epd-operator"}


def custom(name: str = "demo", ready: str = "True", generation: int = 2, observed: int = 2) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": ready, "reason": "AllReady" if ready == "True" else "Starting", "message": "m"},
        {"type": "ReplayEffective", "status": "True", "reason": "Replaying", "message": "decoder half, preset 0.5.23"},
        {"type": "Stalled", "status": "False", "reason": "NotStalled", "message": ""},
    ]
    status = {
        "observedGeneration": observed,
        "conditions": conditions,
        "roles": {"prefill": {"desired": 2, "ready": 1}, "decode": {"desired": 0, "ready": 0}},
        "router": {"desired": 1, "ready": 1, "url": "http://demo.llm.svc:8000"},
    }
    return {
        "metadata": {"name": name, "namespace": "llm", "generation": generation},
        "spec": {"engine": {"type": "Reference", "version": "0.1"}},
        "status": status,
    }


def pod(name: str, component: str, **status: Any) -> dict[str, Any]:
    labels = {**LABELS, "app.kubernetes.io/component": component, "serving.epd.dev/revision": "abcd1234"}
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": labels},
        "spec": {"nodeName": "n1"},
        "status": status,
    }


RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
PODS = [
    pod("demo-router-x", "router", **RUNNING, containerStatuses=[{"restartCount": 2, "state": {"running": {}}}]),
    pod("demo-prefill-a", "prefill", **RUNNING),
    pod("demo-prefill-b", "prefill", phase="Pending", containerStatuses=[
        {"restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    ]),
    pod("demo-decode-c", "decode", phase="Pending", conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    ]),
]  # fmt: skip


class Api:
    """The two collections that `epd status` reads, over HTTP."""

    def __init__(self) -> None:
        self.customs: list[dict[str, Any]] = [custom()]
        self.pods: list[dict[str, Any]] = PODS
        self.paths: list[str] = []
        self.refuse = 0
        self.kubeconfig = ""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    actual = Api()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            actual.paths.append(self.path)
            url = urlsplit(self.path)
            name = parse_qs(url.query).get("fieldSelector", ["="])[0].partition("=")[2]
            items = actual.pods if url.path.endswith("/pods") else actual.customs
            if name and not url.path.endswith("/pods"):
                items = [item for item in items if item["metadata"]["name"] == name]
            body = {"message": "you may not"} if actual.refuse else {"items": items}
            raw = json.dumps(body).encode()
            self.send_response(actual.refuse or 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        @override
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "llm"}},
            {"name": "y", "context": {"cluster": "c", "user": "u", "namespace": "other"}},
        ],
        "current-context": "x",
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    actual.kubeconfig = str(path)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    yield actual
    server.shutdown()
    server.server_close()
    thread.join()


def test_one_deployment_from_the_contexts_namespace(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "demo"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "demo llm Reference 0.1 Ready http://demo.llm.svc:8000"
    assert "prefill 1/2 abcd1234 demo-prefill-a Ready n1" in lines
    assert "abcd1234 demo-prefill-b ImagePullBackOff n1" in lines
    assert "decode 0/0 abcd1234 demo-decode-c Unschedulable n1" in lines
    assert "router 1/1 abcd1234 demo-router-x Ready (2 restarts) n1" in lines
    assert "Ready True AllReady m" in lines
    assert "ReplayEffective True Replaying decoder half, preset 0.5.23" in lines
    assert "\x1b" not in out
    assert {urlsplit(path).path for path in api.paths} == {
        "/apis/serving.epd.dev/v1alpha1/namespaces/llm/deepseekv41deployments",
        "/api/v1/namespaces/llm/pods",
    }


def test_a_pool_s_servers_are_shown_with_their_pods(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.pods = [
        *PODS,
        pod("demo-swa-pool-a", "swa-pool", **RUNNING),
        pod("demo-swa-pool-store-a", "swa-pool-store", **RUNNING),
        pod("demo-swa-pool-store-b", "swa-pool-store", phase="Pending"),
    ]
    warming = {"type": "SwaPoolReady", "status": "True", "reason": "Warming", "message": "started empty"}
    api.customs[0]["status"]["conditions"].append(warming)
    assert main(["status", "demo"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "swa-pool 1/1 abcd1234 demo-swa-pool-a Ready n1" in lines
    assert "swa-pool-store 1/2 abcd1234 demo-swa-pool-store-a Ready n1" in lines
    assert "abcd1234 demo-swa-pool-store-b Pending n1" in lines
    assert "SwaPoolReady True Warming started empty" in lines


def test_json_for_scripts(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.customs = [custom(ready="False")]
    assert main(["status", "-A", "-o", "json"]) == 1
    (actual,) = json.loads(capsys.readouterr().out)
    assert (actual["name"], actual["ready"], actual["engine"]) == ("demo", False, "Reference 0.1")
    assert [one["name"] for one in actual["pods"]] == [
        "demo-prefill-a",
        "demo-prefill-b",
        "demo-decode-c",
        "demo-router-x",
    ]


def test_ready_is_about_the_generation_that_the_user_sees(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.customs = [custom(generation=3, observed=2)]
    assert main(["status", "demo"]) == 1
    assert "has not seen the last change yet" in capsys.readouterr().out


def test_what_went_wrong_is_said_on_stderr(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "nobody"]) == 2
    assert "'nobody' in namespace 'llm'" in capsys.readouterr().err
    api.refuse = 403
    assert main(["status"]) == 2
    assert "HTTP 403: you may not" in capsys.readouterr().err
    api.refuse = 404
    assert main(["status"]) == 2
    assert "install the chart" in capsys.readouterr().err


def test_the_chosen_kubeconfig_and_context_give_the_namespace(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere")
    assert main(["status", "--kubeconfig", api.kubeconfig]) == 0
    assert main(["status", "--kubeconfig", api.kubeconfig, "--context", "y"]) == 0
    asked = [urlsplit(path).path for path in api.paths if "deepseek" in path]
    assert [path.split("/")[5] for path in asked] == ["llm", "other"]


def test_nothing_there(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.customs = []
    assert main(["status", "-n", "other"]) == 1
    assert "no deployments in namespace other" in capsys.readouterr().out


def test_watching_into_a_pipe_prints_changes_only(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter([lambda: None, lambda: api.customs.append(custom("other"))])

    def sleep(_: float) -> None:
        step: Callable[[], None] | None = next(rounds, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("epd_operator.cli.status.time.sleep", sleep)
    assert main(["status", "--watch", "-o", "json"]) == 130
    pages = capsys.readouterr().out.replace("]\n[", "]\x00[").split("\x00")
    assert [[one["name"] for one in json.loads(page)] for page in pages] == [["demo"], ["demo", "other"]]


def test_colours_only_on_a_terminal_and_nothing_lost_at_eighty_columns() -> None:
    pods = (
        Pod("demo-prefill-0123abcd-7d784bc57f-p8zd2", "prefill", "0123abcd", "ImagePullBackOff", False, 0, "node-1"),
    )
    deployment = Deployment("llm", "demo", 1, "Reference 0.1", custom()["status"], pods)
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, width=80, highlight=False).print(view([deployment], "llm"))
    assert "\x1b[" in screen.getvalue()
    plain = io.StringIO()
    Console(file=plain, width=80, highlight=False).print(view([deployment], "llm"))
    assert "ImagePullBackOff" in plain.getvalue()
    assert "\x1b" not in plain.getvalue()


def test_a_deployment_that_no_operator_has_seen() -> None:
    deployment = Deployment("llm", "demo", 1, "Reference 0.1", {}, ())
    text = io.StringIO()
    Console(file=text, width=100).print(view([deployment], None))
    assert "not seen by an operator yet" in text.getvalue()
    assert json.loads(as_json([deployment]))[0]["ready"] is False
