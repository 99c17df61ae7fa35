"""A small client for the demo and the tests: the official `kubernetes` package, objects as plain dictionaries."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from kubernetes import config, dynamic
from kubernetes.dynamic.exceptions import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

API_VERSION = "serving.epd.dev/v1alpha1"
KIND = "DeepSeekV41Deployment"
Object = dict[str, Any]


class Kube:
    """One cluster, reached through its API server alone.

    Args:
        kubeconfig: The file that says where the API server is and who we are.
        manager: Field manager of our server-side applies; also how a reader of `managedFields` tells us from others.
    """

    def __init__(self, kubeconfig: Path, manager: str = "epd-e2e") -> None:
        self.kubeconfig = kubeconfig
        self.manager = manager
        self.api = config.new_client_from_config(config_file=str(kubeconfig))
        self.dynamic = dynamic.DynamicClient(self.api)

    def resource(self, api_version: str, kind: str) -> Any:
        """The dynamic client's handle of one kind."""
        return self.dynamic.resources.get(api_version=api_version, kind=kind)

    def apply(self, obj: Object) -> Object:
        """Server-side apply, taking over fields that others hold."""
        meta = obj["metadata"]
        applied = self.resource(obj["apiVersion"], obj["kind"]).server_side_apply(
            body=obj,
            name=meta["name"],
            namespace=meta.get("namespace"),
            field_manager=self.manager,
            force_conflicts=True,
        )
        return dict(applied.to_dict())

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None:
        """The live object, or None where there is none."""
        try:
            return dict(self.resource(api_version, kind).get(name=name, namespace=namespace).to_dict())
        except NotFoundError:
            return None

    def find(self, api_version: str, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        """Live objects of one kind, by label selector."""
        result = self.resource(api_version, kind).get(namespace=namespace, label_selector=selector)
        return [dict(item) for item in result.to_dict()["items"]]

    def delete(self, api_version: str, kind: str, namespace: str | None, name: str, **options: Any) -> None:
        """Delete one object; nothing happens where it is already gone."""
        try:
            self.resource(api_version, kind).delete(name=name, namespace=namespace, **options)
        except NotFoundError:
            return

    def merge(self, api_version: str, kind: str, namespace: str | None, name: str, patch: Object) -> Object:
        """JSON merge patch, as a person with an editor would send it."""
        patched = self.resource(api_version, kind).patch(
            body=patch, name=name, namespace=namespace, content_type="application/merge-patch+json"
        )
        return dict(patched.to_dict())

    def deployment(self, namespace: str, name: str) -> Object | None:
        """A DeepSeekV41Deployment."""
        return self.get(API_VERSION, KIND, namespace, name)

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """Pods by label selector."""
        return self.find("v1", "Pod", namespace, selector)

    def raw(self, path: str) -> str:
        """GET of any API server path, as text."""
        response = self.dynamic.request("GET", path, serialize=False)
        return str(response.data.decode() if hasattr(response, "data") else response)

    def pod_json(self, namespace: str, pod: str, port: int, path: str) -> Any:
        """GET of a JSON document from a pod, through the API server's proxy."""
        return json.loads(self.raw(f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"))


def conditions(obj: Object | None) -> dict[str, Object]:
    """Conditions of an object by type."""
    return {c["type"]: c for c in ((obj or {}).get("status") or {}).get("conditions") or []}


def is_true(obj: Object | None, condition: str) -> bool:
    """Whether a condition is True for the generation that was last written."""
    result = conditions(obj).get(condition) or {}
    generation = ((obj or {}).get("metadata") or {}).get("generation")
    return result.get("status") == "True" and result.get("observedGeneration") == generation


def until(what: str, probe: Callable[[], Any], *, seconds: float, every: float = 0.25) -> Any:
    """Wait for something to become true.

    Args:
        what: What is waited for, for the error.
        probe: Called until it returns something true.
        seconds: Bound of the wait.
        every: Pause between two calls, in seconds.

    Returns:
        What the probe returned.

    Raises:
        TimeoutError: When it did not become true in time; the message holds the last value seen.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}; last seen: {value!r}")
        time.sleep(every)


def ready_pods(pods: list[Object]) -> Iterator[Object]:
    """The pods that are Ready and not going away."""
    for pod in pods:
        ready = conditions(pod).get("Ready", {}).get("status") == "True"
        if ready and not pod["metadata"].get("deletionTimestamp"):
            yield pod
