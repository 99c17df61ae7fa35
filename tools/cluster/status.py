"""What runs, as a table for people and as JSON for programs."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools import progress
from tools.cluster import components, containers, lifecycle, network, probe, process
from tools.cluster.layout import (
    API_URL,
    AUDIT_LOG,
    CONTEXT,
    HOST_ADDRESS,
    KUBECONFIG,
    NODE_ADDRESS,
    REGISTRY,
    STATE,
)

if TYPE_CHECKING:
    from tools.cluster.components import Component


@dataclass(frozen=True)
class Row:
    """One component: its state is ``serving``, ``not serving`` (with why) or ``stopped``."""

    name: str
    state: str
    pid: int | None
    memory_bytes: int | None
    detail: str


def row(component: Component) -> Row:
    """Look at one component."""
    record = process.read(component.pid_file)
    if record is None or not process.alive(record):
        return Row(component.name, "stopped", None, None, f"log: {component.log}" if component.log.exists() else "")
    fault = probe.fault(component.health)
    state = "serving" if fault is None else "not serving"
    return Row(component.name, state, record.pid, resident_bytes(record.pid), fault or "")


def resident_bytes(pid: int) -> int | None:
    """Return a process's resident memory in bytes; None when it has ended."""
    try:
        with Path(f"/proc/{pid}/status").open(encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:")), None)
    except (FileNotFoundError, ProcessLookupError):
        return None


def report() -> dict[str, Any]:
    """Return the whole state: ``up`` is True when every component serves and the node is Ready."""
    if not STATE.exists():
        return {"context": CONTEXT, "up": False, "nodeReady": False, "components": []}
    rows = [row(component) for component in components.components()]
    ready = lifecycle.node_ready()
    return {
        "context": CONTEXT,
        "up": ready and all(entry.state == "serving" for entry in rows),
        "nodeReady": ready,
        "kubeconfig": str(KUBECONFIG),
        "apiServer": API_URL,
        "registry": REGISTRY,
        "addresses": {"node": NODE_ADDRESS, "host": HOST_ADDRESS},
        "networkNamespace": network.identity() is not None,
        "podProcesses": containers.count(),
        "auditLog": str(AUDIT_LOG),
        "components": [asdict(entry) for entry in rows],
    }


def text(document: dict[str, Any]) -> str:
    """Lay a report out for people; coloured when standard output is a terminal."""
    if not document["components"]:
        return "The local cluster is not up. Start it with: python -m tools.cluster up"
    colours = {"serving": "green", "not serving": "yellow", "stopped": "red"}
    lines = [f"{'COMPONENT':<26}{'STATE':<14}{'PID':>8}{'MEMORY':>10}  DETAIL"]
    for entry in document["components"]:
        memory = f"{entry['memory_bytes'] / 1024**2:.0f} MiB" if entry["memory_bytes"] else "-"
        state = progress.coloured(f"{entry['state']:<14}", colours[entry["state"]], stream=sys.stdout)
        lines.append(f"{entry['name']:<26}{state}{entry['pid'] or '-':>8}{memory:>10}  {entry['detail']}".rstrip())
    total = sum(entry["memory_bytes"] or 0 for entry in document["components"]) / 1024**2
    ready = "yes" if document["nodeReady"] else "no"
    lines += [
        "",
        f"node Ready: {ready}; processes in pods: {document['podProcesses']}; components' memory: {total:.0f} MiB",
        f"kubeconfig: {document['kubeconfig']} (context {document['context']})",
        f"registry:   {document['registry']}; pods reach this machine at {document['addresses']['host']}",
    ]
    return "\n".join(lines)
