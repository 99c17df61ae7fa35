"""Why pods are not ready, in one line: what `kubectl describe pod` would show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.observation import labels, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epd_operator.plan.observation import Object

MESSAGE_LIMIT = 400  # characters quoted from a scheduler, a kubelet or a container

_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
_CREATE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True)
class Diagnosis:
    """What keeps a pod from being ready.

    Attributes:
        reason: One of the reasons that name a fault of a pod.
        message: One line, with the pod's and the container's name.
    """

    reason: Reason
    message: str


def is_ready(pod: Object) -> bool:
    """Whether a pod is Ready and not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def diagnose(pods: Sequence[Object]) -> Diagnosis | None:
    """The most telling fault among pods, or None when those that are not ready merely need time.

    Pods being deleted are not looked at: their containers' exits are wanted.
    """
    waiting = sorted((p for p in pods if not is_ready(p) and not p["metadata"].get("deletionTimestamp")), key=name_of)
    faults = [diagnosis for pod in waiting for diagnosis in _faults(pod)]
    order = (Reason.CRASH_LOOPING, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_NOT_CREATED, Reason.UNSCHEDULABLE)
    return min(faults, key=lambda d: order.index(d.reason), default=None)


def unmounted(pods: Sequence[Object], template: Mapping[str, Any]) -> str | None:
    """Which pod was placed and cannot start its containers, and what its volumes need; None when there is none.

    Nothing in a pod says that a Secret is missing from which it mounts files: the kubelet reports it in events only.
    """
    needs = list(_mounted(template.get("spec", {}).get("volumes") or ()))
    for pod in sorted(pods, key=name_of):
        if needs and not pod["metadata"].get("deletionTimestamp") and _is_held_up(pod):
            return f"pod {name_of(pod)} waits for its volumes: {', '.join(needs)} must exist"
    return None


def _is_held_up(pod: Object) -> bool:
    result = {c.get("type"): c.get("status") for c in pod.get("status", {}).get("conditions") or ()}
    return result.get("PodScheduled") == "True" and result.get("PodReadyToStartContainers") == "False"


def _mounted(volumes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for volume in volumes:
        secret, config = volume.get("secret") or {}, volume.get("configMap") or {}
        claim = volume.get("persistentVolumeClaim")
        for kind, source, field in (("Secret", secret, "secretName"), ("ConfigMap", config, "name")):
            if source and not source.get("optional"):
                keys = [item["key"] for item in source.get("items") or ()]
                yield f"{kind} {source[field]}" + (f" with {', '.join(keys)}" if keys else "")
        if claim:
            yield f"PersistentVolumeClaim {claim['claimName']}"


def one_line(text: str) -> str:
    """Text on one line, cut to `MESSAGE_LIMIT` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= MESSAGE_LIMIT else flat[: MESSAGE_LIMIT - 1] + "…"


def _faults(pod: Object) -> Iterator[Diagnosis]:
    status = pod.get("status", {})
    pod_name = name_of(pod)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Diagnosis(Reason.UNSCHEDULABLE, f"pod {pod_name}: {one_line(condition.get('message', ''))}")
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field) or ():
            fault = _container_fault(container, _memory_field(pod))
            if fault is not None:
                yield Diagnosis(fault.reason, f"pod {pod_name}, container {container['name']}: {fault.message}")


def _memory_field(pod: Object) -> str:
    """What to do about the memory limit of a pod."""
    if labels(pod).get(names.LABEL_COMPONENT) in {names.SWA_POOL, names.SWA_POOL_STORE}:
        return "the operator sets it from spec.swaPool.memory"
    return "raise resources.memory of this part"


def _container_fault(container: Mapping[str, Any], memory: str) -> Diagnosis | None:
    waiting = container.get("state", {}).get("waiting") or {}
    reason, text = waiting.get("reason", ""), one_line(waiting.get("message", ""))
    if reason in _PULL:
        hint = "a pod that already waits takes new imagePullSecrets only after it is deleted"
        return Diagnosis(Reason.IMAGE_PULL_FAILED, f"{reason} of {container.get('image', '?')}: {text} ({hint})")
    if reason in _CREATE:
        return Diagnosis(Reason.CONTAINER_NOT_CREATED, f"{reason}: {text}")
    # A container that runs again after an exit is still reported with that exit: the condition must not flap
    # between "crashed" and "starting" at the pace of the restarts.
    exit_state = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    if exit_state and not container.get("ready") and (exit_state.get("exitCode", 0) != 0 or reason):
        return Diagnosis(Reason.CRASH_LOOPING, _exit_message(exit_state, memory))
    return None


def _exit_message(exit_state: Mapping[str, Any], memory: str) -> str:
    head = f"exited with code {exit_state.get('exitCode')} ({exit_state.get('reason', 'Error')})"
    last_line = one_line(_last_line(exit_state.get("message", "")))
    if exit_state.get("reason") == "OOMKilled":
        # The kernel does not notify the container: its log has no answer.
        return f"{head}{f': {last_line}' if last_line else ''}; over its memory limit: {memory}"
    return f"{head}: {last_line}" if last_line else f"{head}; see `kubectl logs --previous`"


def _last_line(log: str) -> str:
    """The last line that says something: a traceback ends with its error, and start-up banners come before it."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if any(c.isascii() and c.isalpha() for c in line)), "")
