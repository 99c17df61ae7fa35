"""The local cluster itself: what every other test here takes for granted."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from e2e.kube import until
from tools import program
from tools.cluster import access, components, kwok, machine, pause, process, registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMESPACE = "e2e-cluster"
POD_KILLERS = ("coredns", "kube-proxy", "kubelet", "containerd", "kube-scheduler", "kube-controller-manager", "kwok")
"""Components whose sudden death must not touch a running pod; the API server and its store have a test of their own."""


def kubectl(*arguments: str, document: Any = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    text = json.dumps(document) if document else None
    command = [*access.kubectl(), f"--namespace={NAMESPACE}", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def up() -> None:
    subprocess.run([sys.executable, "-m", "tools.cluster", "up"], check=True, timeout=300)


def web(image: str, replicas: int = 2, **pod: Any) -> list[dict[str, Any]]:
    script = "mkdir -p /www && hostname > /www/index.html && echo serving && exec /busybox httpd -f -p 8080 -h /www"
    container = {
        "name": "web",
        "image": image,
        "command": [
            "/busybox",
            "sh",
            "-c",
            f"export PATH=/bin; /busybox mkdir -p /bin; /busybox --install /bin; {script}",
        ],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
    }
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container], **pod}}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]


@pytest.fixture(scope="module")
def image(able: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with busybox in it, pushed from an archive file."""
    if access.given() is not None:
        pytest.skip("these tests are about the local cluster; KUBECONFIG names another")
    up()
    busybox = program.path("busybox")
    file: Path = tmp_path_factory.mktemp("image") / "tools.tar"
    with open(busybox, "rb") as source:  # noqa: PTH123 - a path from PATH, read once
        file.write_bytes(pause.archive(source.read(), "amd64" if machine.processor() == "x86_64" else "arm64"))
    return registry.load(str(file))


@pytest.fixture(scope="module")
def pod(image: str) -> Iterator[str]:
    """One of two pods behind the Service `web`."""
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")
    kubectl("create", "namespace", NAMESPACE)
    kubectl("apply", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": web(image)})
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    yield kubectl("get", "pods", "--selector=app=web", "--output=name").stdout.split()[0]
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def inside(pod: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return kubectl("exec", pod, "--", "/busybox", *command, check=check)


def restarts() -> dict[str, int]:
    pods = json.loads(kubectl("get", "pods", "--selector=app=web", "--output=json").stdout)["items"]
    return {item["metadata"]["uid"]: item["status"]["containerStatuses"][0]["restartCount"] for item in pods}


def test_a_pod_reaches_a_service_by_its_name(pod: str) -> None:
    assert inside(pod, "wget", "-qO-", "http://web/").stdout.startswith("web-")
    assert inside(pod, "wget", "-qO-", f"http://web.{NAMESPACE}.svc.cluster.local/").stdout.startswith("web-")


def test_logs_come_through(pod: str) -> None:
    assert kubectl("logs", pod).stdout == "serving\n"


@pytest.mark.usefixtures("pod")
def test_this_machine_reaches_a_service_directly() -> None:
    address = kubectl("get", "service", "web", "--output=jsonpath={.spec.clusterIP}").stdout
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{address}/", timeout=5) as answer:
        assert answer.read().startswith(b"web-")


def test_a_pod_reaches_a_server_of_this_machine(pod: str, tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("from the machine")

    def handler(*args: Any) -> http.server.SimpleHTTPRequestHandler:
        return http.server.SimpleHTTPRequestHandler(*args, directory=str(tmp_path))

    with http.server.ThreadingHTTPServer((access.host_address(), 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            answer = inside(pod, "wget", "-qO-", f"http://{access.host_address()}:{server.server_port}/hello")
        finally:
            server.shutdown()
            thread.join()
    assert answer.stdout == "from the machine"


def test_there_is_no_way_out(pod: str) -> None:
    assert "NXDOMAIN" in inside(pod, "nslookup", "example.com", check=False).stdout
    refused = inside(pod, "timeout", "5", "/busybox", "wget", "-qO-", "http://192.0.2.1/", check=False)
    assert "unreachable" in refused.stderr


@pytest.mark.usefixtures("pod")
def test_pod_security_is_enforced(image: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": f"{NAMESPACE}-strict", "labels": labels}
    strict = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    kubectl("apply", "-f", "-", document=strict)
    bare = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bare", "namespace": f"{NAMESPACE}-strict"},
        "spec": {"containers": [{"name": "bare", "image": image}]},
    }
    command = [*access.kubectl(), "apply", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(bare), capture_output=True, text=True, check=False)
    kubectl("delete", "namespace", f"{NAMESPACE}-strict", "--wait=false")
    assert done.returncode != 0
    assert 'violates PodSecurity "restricted' in done.stderr


@pytest.mark.usefixtures("pod")
def test_fake_nodes_take_only_pods_that_ask_for_them() -> None:
    kwok.add_nodes(2)
    fake = web("not/pulled:1", replicas=20, nodeSelector=kwok.NODE_SELECTOR, tolerations=[kwok.TOLERATION])[0]
    fake["metadata"]["name"] = "fake"
    fake["spec"]["selector"]["matchLabels"] = fake["spec"]["template"]["metadata"]["labels"] = {"app": "fake"}
    kubectl("apply", "-f", "-", document=fake)
    kubectl("rollout", "status", "deployment/fake", "--timeout=60s")
    pods = json.loads(kubectl("get", "pods", "--output=json").stdout)["items"]
    for item in pods:
        on_fake = item["spec"]["nodeName"].startswith("kwok-")
        assert on_fake == (item["metadata"]["labels"]["app"] == "fake")
    kubectl("delete", "deployment", "fake")


def kill(*names: str) -> None:
    for component in components.components():
        record = process.read(component.pid_file)
        if component.name in names and record is not None and process.alive(record):
            os.kill(record.pid, signal.SIGKILL)


def reaches_web(pod: str) -> None:
    """A kubelet that has just started serves before it has been told its pods again, and refuses to enter them."""

    def answer() -> bool:
        return inside(pod, "wget", "-qO-", "http://web/", check=False).stdout.startswith("web-")

    until("the Service, from inside the pod", answer, seconds=20)


def test_up_repairs_what_was_killed_and_no_pod_notices(pod: str) -> None:
    before = restarts()
    kill(*POD_KILLERS)
    up()
    reaches_web(pod)
    assert restarts() == before


@pytest.mark.nightly
def test_up_repairs_the_loss_of_everything(pod: str) -> None:
    before = restarts()
    kill(*(component.name for component in components.components()))
    up()
    reaches_web(pod)
    assert restarts() == before
