"""Bounded replay as the operator tells it: what prefill pods really do, from their own counters to the condition."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from e2e.forward import Forward
from e2e.kube import Kube, Object, conditions, ready_pods, until
from e2e.samples import ready, sample
from epd_operator.api.names import LABEL_COMPONENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.stack import Stack

NAME = "replay"
KIND = "ReplayEffective"
# The registrar asks a pod every 15 s, and the operator asks the registrar every 15 s while nothing moves.
SECONDS = 45
LONG = "The lighthouse keeper counts the ships. " * 30
"""More than 128 tokens in any tokenizer, and several chunks of one token a byte."""


def wanted(namespace: str, **prefill: Any) -> Object:
    """A deployment without encoders that asks for little: two sets of it must fit beside all that the run has made."""
    made = sample(NAME, namespace)
    small = {"resources": {"cpu": "20m", "memory": "1Gi"}}
    made["spec"]["roles"] = {"prefill": {**small, **prefill}, "decode": small}
    made["spec"]["router"]["resources"]["cpu"] = "20m"
    return made


@pytest.fixture(scope="module")
def deployed(operator: Kube, new_namespace: Callable[[str], str]) -> Object:
    """A deployment that leaves replay to the engine."""
    namespace = new_namespace("e2e-replay")
    operator.apply(wanted(namespace))
    return ready(operator, namespace, NAME)


def verdict(kube: Kube, namespace: str, reason: str) -> Object:
    """Wait until the condition about the newest generation has this reason."""

    def probe() -> Object | None:
        live = kube.deployment(namespace, NAME) or {}
        actual = conditions(live).get(KIND, {})
        current = actual.get("observedGeneration") == live.get("metadata", {}).get("generation")
        return actual if current and actual.get("reason") == reason else None

    actual: Object = until(f"{KIND} to be {reason}", probe, seconds=SECONDS)
    return actual


def engine_pods(kube: Kube, namespace: str, role: str) -> list[Object]:
    selector = f"app.kubernetes.io/instance={NAME},serving.epd.dev/role={role}"
    return list(ready_pods(kube.pods(namespace, selector)))


def replay_of(kube: Kube, namespace: str) -> dict[str, Any]:
    """What the one prefill pod says of itself."""
    (pod,) = engine_pods(kube, namespace, "prefill")
    actual: dict[str, Any] = kube.pod_json(namespace, pod["metadata"]["name"], 30000, "/server_info")["replay"]
    return actual


def ask(stack: Stack, namespace: str) -> None:
    """Send one long prompt through the router."""
    body = {"model": NAME, "messages": [{"role": "user", "content": LONG}], "max_tokens": 2, "temperature": 0}
    with Forward(stack.kubeconfig, namespace, f"svc/{NAME}", 8000) as url:
        request = urllib.request.Request(  # noqa: S310 - an address of this machine
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - the same
            assert answer.status == 200


def test_replay_is_told_once_it_happens(operator: Kube, stack: Stack, deployed: Object) -> None:
    namespace = deployed["metadata"]["namespace"]
    assert deployed["status"]["effective"]["replay"] == "On"
    ask(stack, namespace)
    message = replay_of(operator, namespace)["decoder"]
    assert message["active"]
    assert message["rows_skipped"] > 0
    reported = verdict(operator, namespace, "Replaying")
    assert (reported["status"], reported["message"]) == ("True", f"decoder half, preset {message['preset']}")
    (router,) = ready_pods(operator.pods(namespace, f"app.kubernetes.io/instance={NAME},{LABEL_COMPONENT}=router"))
    state = operator.pod_json(namespace, router["metadata"]["name"], 8081, "/state")
    (seen,) = (worker["replay"]["decoder"] for worker in state["workers"] if worker["role"] == "prefill")
    assert (seen["active"], seen["rowsSkipped"]) == (True, message["rows_skipped"])


def test_off_is_a_matched_set_of_its_own_and_told_as_off(operator: Kube, deployed: Object) -> None:
    namespace = deployed["metadata"]["namespace"]
    old = {pod["metadata"]["name"] for role in ("prefill", "decode") for pod in engine_pods(operator, namespace, role)}
    operator.apply(wanted(namespace, decoderReplay="Off"))
    assert verdict(operator, namespace, "TurnedOff")["status"] == "False"
    live = ready(operator, namespace, NAME, seconds=60)
    assert live["status"]["effective"]["replay"] == "Off"
    assert live["status"]["compatKey"] != deployed["status"]["compatKey"]
    until(
        "only pods of the new set",
        lambda: all(
            not old & {pod["metadata"]["name"] for pod in engine_pods(operator, namespace, role)}
            for role in ("prefill", "decode")
        ),
        seconds=60,
    )
    message = replay_of(operator, namespace)["decoder"]
    assert (message["active"], message["reason"], message["rows_skipped"]) == (False, "TurnedOff", 0)
