"""The document that ``GET /state`` serves: how the data path looks from this router pod. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epd_workers.registrar.membership import ROUTED_ROLES, Standing, Worker, standings
from epd_workers.registrar.server_info import ServerInfo

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from epd_workers.registrar.engine_metrics import Plugin
    from epd_workers.registrar.pod import Pod

SCHEMA = 1


@dataclass(frozen=True)
class View:
    """What one pass saw.

    Attributes:
        pods: The engine pods.
        workers: The router's list.
        directories: Prefill pod uid -> encoder addresses it lists; absent where the prefill did not answer.
        router_ready: Whether the router answered.
    """

    pods: Collection[Pod] = ()
    workers: Collection[Worker] = ()
    directories: Mapping[str, Collection[str]] = field(default_factory=dict)
    router_ready: bool = False


def document(
    view: View,
    *,
    pod: str,
    version: str,
    engine_port: int,
    reports: Mapping[str, ServerInfo] | None = None,
    plugins: Mapping[str, Plugin] | None = None,
    failing: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The state document.

    Args:
        view: What the last pass saw.
        pod: Name of this router pod.
        version: The router program's name and version.
        engine_port: Port of the engines' HTTP servers.
        reports: Pod uid -> what the pod reports.
        plugins: Pod uid -> the plugin that its engine runs.
        failing: Pod uid -> why its engine does not compute.

    Returns:
        JSON: schema, pod, compatKeys, router, workers, encoders; every list sorted by pod name.
    """
    judged = standings(view.pods)
    by_name = sorted(view.pods, key=lambda p: (p.name, p.uid))
    known, loaded, sick = reports or {}, plugins or {}, failing or {}
    workers = [
        {
            **_worker(p, judged[p.uid], _entry(p, view.workers, engine_port), engine_port, sick.get(p.uid, "")),
            **_reported(known.get(p.uid, ServerInfo())),
            "plugin": _plugin(loaded.get(p.uid)),
        }
        for p in by_name
        if p.role in ROUTED_ROLES
    ]
    return {
        "schema": SCHEMA,
        "pod": pod,
        "compatKeys": _keys(workers),
        "router": {"ready": view.router_ready, "version": version},
        "workers": workers,
        "encoders": [
            {**entry, "reason": sick.get(p.uid, ""), "plugin": _plugin(loaded.get(p.uid))}
            for p, entry in _encoders(by_name, judged, view.directories, engine_port)
        ],
    }


def _plugin(plugin: Plugin | None) -> dict[str, str] | None:
    return None if plugin is None else plugin.document()


def tally(doc: Mapping[str, Any], view: View) -> list[tuple[str, str]]:
    """(role, state) of every pod, for the gauges."""
    judged = standings(view.pods)
    encoders = [
        ("encode", "ready" if standing.eligible else standing.state)
        for pod in view.pods
        if pod.role == "encode"
        for standing in [judged[pod.uid]]
    ]
    return [(worker["role"], worker["state"]) for worker in doc["workers"]] + encoders


def _entry(pod: Pod, workers: Iterable[Worker], port: int) -> Worker | None:
    return next((w for w in workers if w.url == pod.url(port) and w.pod_uid == pod.uid), None)


def _worker(pod: Pod, standing: Standing, entry: Worker | None, port: int, fault: str) -> dict[str, Any]:
    state, reason = _state(standing, entry, fault)
    return {
        "pod": pod.name,
        "role": pod.role,
        "url": pod.url(port) if pod.ip else "",
        "compatKey": pod.key,
        "revision": pod.revision,
        "imageID": pod.image,
        "registered": entry is not None,
        "routable": entry is not None and entry.status == "ready" and entry.key == pod.key and not fault,
        "state": state,
        "inFlight": entry.load if entry else 0,
        "reason": reason,
    }


def _reported(info: ServerInfo) -> dict[str, Any]:
    return {
        "replay": info.replay and info.replay.document(),
        "swaPool": info.swa_pool and info.swa_pool.document(),
    }


def _state(standing: Standing, entry: Worker | None, fault: str) -> tuple[str, str]:
    if not standing.eligible:
        return standing.state, standing.reason
    if entry is None or entry.status == "pending":
        return "registering", "the router has not finished registering this worker"
    if entry.draining:
        return "draining", "the router is draining this worker; it is registered again afterwards"
    if fault:
        return "not_ready", fault
    if entry.status == "ready":
        return "ready", ""
    return "not_ready", f"the router's health check says {entry.status}"


def _keys(workers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Routable workers by compatibility key; a key can answer once it has one of each."""
    counts: dict[str, dict[str, int]] = {}
    for worker in workers:
        if worker["compatKey"]:
            count = counts.setdefault(worker["compatKey"], dict.fromkeys(ROUTED_ROLES, 0))
            count[worker["role"]] += worker["routable"]
    return {key: {**count, "routable": all(count.values())} for key, count in sorted(counts.items())}


def _encoders(
    pods: Collection[Pod], judged: Mapping[str, Standing], directories: Mapping[str, Collection[str]], port: int
) -> list[tuple[Pod, dict[str, Any]]]:
    """Eligible encoders with the eligible prefills of their key that know them, and those that do not."""
    encoders = []
    for pod in pods:
        if pod.role != "encode" or not judged[pod.uid].eligible:
            continue
        url = pod.url(port)
        peers = [p for p in pods if p.role == "prefill" and p.key == pod.key and judged[p.uid].eligible]
        known = [p.name for p in peers if url in directories.get(p.uid, ())]
        missing = [p.name for p in peers if p.name not in known]
        entry = {"pod": pod.name, "url": url, "compatKey": pod.key, "registeredWith": known, "missing": missing}
        encoders.append((pod, entry))
    return encoders
