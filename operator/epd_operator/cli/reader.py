"""What `epd status` reads, through the API server and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from epd_operator.api.names import (
    COMPONENTS,
    GROUP,
    LABEL_COMPONENT,
    LABEL_INSTANCE,
    LABEL_REVISION,
    MANAGED_SELECTOR,
    PLURAL,
    VERSION,
)

TIMEOUT_SECONDS: Final = 15


class ReadError(Exception):
    """The cluster did not give what was asked for; the message says what to do."""


@dataclass(frozen=True)
class Pod:
    """One pod behind a deployment.

    Attributes:
        name: metadata.name.
        component: Encode, prefill, decode, router, or a server of a pool of windows.
        revision: 8 hex digits.
        state: What kubectl would print in its STATUS column.
        ready: All containers are ready.
        restarts: Of all containers together.
        node: Where it runs; empty until it is scheduled.
    """

    name: str
    component: str
    revision: str
    state: str
    ready: bool
    restarts: int
    node: str


@dataclass(frozen=True)
class Deployment:
    """One custom resource with its pods.

    Attributes:
        namespace: metadata.namespace.
        name: metadata.name.
        generation: metadata.generation.
        engine: Type and version.
        status: As the operator wrote it.
        pods: Ordered by component and name.
    """

    namespace: str
    name: str
    generation: int
    engine: str
    status: dict[str, Any]
    pods: tuple[Pod, ...]

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition; empty when the operator has not written it."""
        conditions: list[dict[str, Any]] = self.status.get("conditions") or []
        return next((condition for condition in conditions if condition.get("type") == kind), {})

    @property
    def ready(self) -> bool:
        """Ready, and about the generation that the user sees."""
        current = self.status.get("observedGeneration") == self.generation
        return current and self.condition("Ready").get("status") == "True"


class Reader:
    """Reads deployments and pods with the official client's transport.

    Its typed models take a second to import, so paths are spelled out and answers stay plain JSON.

    Args:
        configuration: A filled `kubernetes.client.Configuration`.
    """

    def __init__(self, configuration: Any) -> None:
        from kubernetes.client.api_client import ApiClient  # noqa: PLC0415

        self._api = ApiClient(configuration)

    def deployments(self, namespace: str | None, name: str | None) -> list[Deployment]:
        """The deployments asked for, ordered by namespace and name.

        Args:
            namespace: None for all.
            name: None for all of the namespace.

        Raises:
            ReadError: No access, no CRD, or no such deployment.
        """
        scope = f"/namespaces/{namespace}" if namespace else ""
        query = [("fieldSelector", f"metadata.name={name}")] if name else []
        result = self._items(f"/apis/{GROUP}/{VERSION}{scope}/{PLURAL}", query)
        if name and not result:
            raise ReadError(f"no {PLURAL} {name!r} in namespace {namespace!r}: `epd status -A` lists what there is")
        if not result:
            return []
        selector = f"{MANAGED_SELECTOR},{LABEL_INSTANCE}={name}" if name else MANAGED_SELECTOR
        pods = self._items(f"/api/v1{scope}/pods", [("labelSelector", selector)])
        return [_deployment(custom, pods) for custom in sorted(result, key=_place)]

    def _items(self, path: str, query: list[tuple[str, str]]) -> list[dict[str, Any]]:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        request = self._api.param_serialize(
            method="GET",
            resource_path=path,
            query_params=query,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            answer: Any = self._api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            raw = answer.read()
        except (HTTPError, OSError) as error:
            raise ReadError(f"the API server does not answer: {error}") from error
        except ApiException as error:
            raise ReadError(_words(path, int(error.status or 0), error.body)) from error
        if answer.status >= 400:
            raise ReadError(_words(path, answer.status, raw))
        items: list[dict[str, Any]] = json.loads(raw).get("items") or []
        return items


def _words(path: str, status: int, body: Any) -> str:
    if status == 404:
        return "the cluster does not know DeepSeekV41Deployment: install the chart, or `epd crd | kubectl apply -f -`"
    try:
        message = json.loads(body).get("message", "")
    except (TypeError, ValueError, AttributeError):
        message = ""
    return f"GET {path}: HTTP {status}: {message}"


def _place(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _deployment(custom: dict[str, Any], pods: list[dict[str, Any]]) -> Deployment:
    namespace, name = _place(custom)
    engine = custom.get("spec", {}).get("engine", {})
    mine = [
        _pod(pod)
        for pod in pods
        if pod["metadata"].get("namespace") == namespace
        and (pod["metadata"].get("labels") or {}).get(LABEL_INSTANCE) == name
    ]
    order = {component: index for index, component in enumerate(COMPONENTS)}
    return Deployment(
        namespace=namespace,
        name=name,
        generation=int(custom["metadata"].get("generation", 0)),
        engine=f"{engine.get('type', '?')} {engine.get('version', '?')}",
        status=custom.get("status") or {},
        pods=tuple(sorted(mine, key=lambda pod: (order.get(pod.component, 9), pod.name))),
    )


def _pod(pod: dict[str, Any]) -> Pod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return Pod(
        name=metadata["name"],
        component=labels.get(LABEL_COMPONENT, ""),
        revision=labels.get(LABEL_REVISION, ""),
        state=_state(metadata, status, containers),
        ready=conditions.get("Ready") == "True",
        restarts=sum(int(container.get("restartCount", 0)) for container in containers),
        node=pod.get("spec", {}).get("nodeName", ""),
    )


def _state(metadata: dict[str, Any], status: dict[str, Any], containers: list[dict[str, Any]]) -> str:
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    for container in containers:
        state = container.get("state") or {}
        reason = (state.get("waiting") or {}).get("reason")
        if reason and reason not in {"PodInitializing", "ContainerCreating"}:
            return str(reason)
        ended = state.get("terminated")
        if ended and ended.get("exitCode"):
            return str(ended.get("reason") or "Error")
    if status.get("phase") == "Pending" and any(
        (container.get("state") or {}).get("waiting") for container in containers
    ):
        return "ContainerCreating"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("reason") or "Unschedulable")
    return str(status.get("reason") or status.get("phase") or "Unknown")
