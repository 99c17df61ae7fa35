"""Which pods should be workers of the router, and what to send so that they are. Pure.

Two rules guard the pairs: the router pairs only equal compatibility keys, and under one key only one image digest is
ever registered, because a moved tag can put two builds behind one key, and builds promise each other nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from epd_workers.registrar.pod import Pod

ROUTED_ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Worker:
    """One entry of the router's worker list.

    Attributes:
        id: The router's identifier, which DELETE wants.
        url: The engine's address; the router holds one worker an address.
        role: ``prefill`` or ``decode``.
        key: Its pairing protocol.
        pod_uid: The pod it was registered for, empty for a worker that somebody else added.
        image: The image digest it was registered with.
        status: ``ready``, ``not_ready``, ``draining``, ...
        load: Requests that this router has in flight there.
    """

    id: str
    url: str
    role: str
    key: str
    pod_uid: str
    image: str
    status: str
    load: int

    @property
    def draining(self) -> bool:
        """Already on its way out: gets no new request."""
        return self.status == "draining"


@dataclass(frozen=True)
class Standing:
    """Whether a pod may take requests, and why not."""

    state: str
    reason: str = ""

    @property
    def eligible(self) -> bool:
        """The pod should be a member."""
        return self.state == "eligible"


@dataclass(frozen=True)
class Add:
    """Register this pod with the router."""

    pod: Pod


@dataclass(frozen=True)
class Remove:
    """Drain and remove this worker."""

    worker: Worker
    reason: str


Action = Add | Remove


def standings(pods: Collection[Pod]) -> dict[str, Standing]:
    """Judge every pod.

    Args:
        pods: The engine pods of one deployment, all roles and keys.

    Returns:
        Pod uid -> standing. Depends on the pods alone, so the registrars of several router pods agree.
    """
    digests = established(pods)
    owners = _address_owners(pods)
    return {pod.uid: _standing(pod, digests, owners) for pod in pods}


def established(pods: Iterable[Pod]) -> dict[str, str]:
    """The one image digest that each key may run.

    A digest that has a prefill and a decode goes before one that has not, then the one with the oldest ready pod: what
    serves today keeps serving, and a newer build takes over once the old one cannot answer alone.

    Returns:
        Compatibility key -> digest.
    """
    groups: dict[str, dict[str, list[Pod]]] = {}
    for pod in pods:
        if _live(pod):
            groups.setdefault(pod.key, {}).setdefault(pod.image, []).append(pod)

    def rank(item: tuple[str, list[Pod]]) -> tuple[bool, str, str]:
        digest, members = item
        paired = {"prefill", "decode"} <= {pod.role for pod in members}
        return not paired, min(pod.created for pod in members), digest

    return {key: min(by_digest.items(), key=rank)[0] for key, by_digest in groups.items()}


def difference(
    pods: Collection[Pod], workers: Collection[Worker], engine_port: int, pending: Collection[str] = ()
) -> tuple[Action, ...]:
    """What to send to the router.

    Args:
        pods: The engine pods of one deployment.
        workers: What the router lists now.
        engine_port: Port of the engines' HTTP servers.
        pending: Addresses whose registration the router has accepted but not finished.

    Returns:
        Removals, then additions; empty when the router's list is as it should be. An address that the router still
        lists for another pod is freed first and taken in a later pass, and so is a key that another digest still holds.
    """
    judged = standings(pods)
    wanted = {pod.url(engine_port): pod for pod in pods if pod.role in ROUTED_ROLES and judged[pod.uid].eligible}
    removals = tuple(
        Remove(worker, reason)
        for worker in workers
        if not worker.draining and (reason := _misplaced(worker, wanted.get(worker.url)))
    )
    listed = {worker.url for worker in workers}
    holders = {(worker.key, worker.image) for worker in workers if not worker.draining}
    additions = tuple(
        Add(pod)
        for url, pod in sorted(wanted.items())
        if url not in listed
        and url not in pending
        and not any(key == pod.key and image != pod.image for key, image in holders)
    )
    return removals + additions


def directory_difference(
    wanted: Collection[str], listed: Collection[str], mute: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """What to register with and what to strike from one prefill's encoder directory.

    Args:
        wanted: Addresses of the eligible encoders of the prefill's key.
        listed: What the prefill lists, in its own spelling; a trailing slash does not matter.
        mute: Addresses that stay where they are listed, but are not registered.

    Returns:
        (to register, to unregister), each sorted.
    """
    known = {url.rstrip("/") for url in listed}
    return sorted(set(wanted) - known - set(mute)), sorted({url for url in listed if url.rstrip("/") not in wanted})


def _live(pod: Pod) -> bool:
    return pod.ready and not pod.deleting and bool(pod.ip) and bool(pod.key)


def _address_owners(pods: Iterable[Pod]) -> Mapping[str, str]:
    """Address -> uid of the newest live pod that claims it; an ended pod can show an address that was given away."""
    newest: dict[str, Pod] = {}
    for pod in pods:
        if _live(pod) and (pod.ip not in newest or (pod.created, pod.uid) > _age(newest[pod.ip])):
            newest[pod.ip] = pod
    return {ip: pod.uid for ip, pod in newest.items()}


def _age(pod: Pod) -> tuple[str, str]:
    return pod.created, pod.uid


def _standing(pod: Pod, digests: Mapping[str, str], owners: Mapping[str, str]) -> Standing:
    if pod.deleting:
        return Standing("draining", "the pod is being deleted or has ended")
    if not pod.ready or not pod.ip:
        return Standing("not_ready", "the pod has no address" if pod.ready else "the pod is not Ready")
    if not pod.key:
        return Standing("refused", "the pod has no compatibility key label")
    if owners[pod.ip] != pod.uid:
        return Standing("not_ready", f"a newer pod has the address {pod.ip}")
    if pod.image != digests[pod.key]:
        return Standing(
            "refused",
            f"image digest {pod.image or 'unknown'} differs from {digests[pod.key] or 'unknown'}, which serves this "
            "compatibility key; give the new build its own tag or digest in engine.image",
        )
    return Standing("eligible")


def _misplaced(worker: Worker, pod: Pod | None) -> str:
    """Why a worker must go; empty when it is right."""
    if pod is None:
        return "no eligible pod has this address"
    if worker.pod_uid != pod.uid:
        return "the address belongs to another pod now"
    if (worker.role, worker.key, worker.image) != (pod.role, pod.key, pod.image):
        return "role, compatibility key or image changed"
    return ""
