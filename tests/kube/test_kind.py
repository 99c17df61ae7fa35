from __future__ import annotations

from epd_operator.kube.kind import DEPLOYMENT, POD, Kind


def test_paths() -> None:
    assert POD.path() == "/api/v1/pods"
    assert POD.path("ns") == "/api/v1/namespaces/ns/pods"
    assert DEPLOYMENT.path("ns", "a") == "/apis/apps/v1/namespaces/ns/deployments/a"
    assert DEPLOYMENT.path("ns", "a", "status") == "/apis/apps/v1/namespaces/ns/deployments/a/status"
    node = Kind("", "v1", "nodes", "Node", namespaced=False)
    assert node.path("ns", "n") == "/api/v1/nodes/n"


def test_names() -> None:
    assert (POD.api_version, POD.resource) == ("v1", "pods")
    assert (DEPLOYMENT.api_version, DEPLOYMENT.resource) == ("apps/v1", "deployments.apps")
