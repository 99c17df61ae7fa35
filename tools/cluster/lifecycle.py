"""From nothing, or from whatever a crash left, to a cluster that serves; and back to nothing."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tools import apt, packages, program, progress
from tools.cluster import (
    addon,
    binaries,
    certificates,
    components,
    containers,
    kubeconfig,
    machine,
    network,
    pause,
    probe,
    process,
    registry,
)
from tools.cluster.layout import KUBECONFIG, LOGS, NODE, REGISTRY, RUN, STATE
from tools.packages import Job
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.cluster.components import Component

SERVE_SECONDS = 90.0
HUNG_SECONDS = 10.0
"""A component that ran before `up` and does not serve for this long is started again, once."""
_POLL_SECONDS = 0.1
_BOOT = STATE / "boot"
_ROLES = Path(__file__).with_name("roles.yaml")


def check() -> None:
    """Look at the machine and change nothing.

    Raises:
        Unfit: The machine cannot run the cluster; all its faults are listed.
    """
    faults = machine.faults(machine.survey(go_needed=bool(binaries.uncached()), state=STATE))
    if (obstacle := apt.obstacle(packages.missing(Job.CLUSTER))) is not None:
        faults.append(obstacle)
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise Unfit(f"This machine cannot run the local cluster:\n{listed}\n{machine.ELSEWHERE}")


def prepare(*, everything: bool = False) -> None:
    """Check the machine, install what is missing and build what is not cached.

    Args:
        everything: Build what only tests need, too.

    Raises:
        Unfit: The machine cannot run the cluster, or a package or program cannot be had.
    """
    check()
    apt.provide(packages.missing(Job.CLUSTER))
    for module in binaries.uncached(everything=everything):
        binaries.ensure(module)
    if everything:
        addon.leader_worker_set()


def up() -> None:
    """Bring the cluster up, or repair it. What already serves is left alone.

    Raises:
        Unfit: The machine cannot run it, or a component does not come to serve.
    """
    prepare()
    take_over()
    _after_boot()
    STATE.mkdir(parents=True, exist_ok=True)
    RUN.mkdir(parents=True, exist_ok=True)
    certificates.ensure()
    kubeconfig.write()
    containers.note_folders()
    containers.ensure_cgroups()
    if network.identity() is None:
        _stop()  # whatever survived has lost its network, and would start pods in the lost one
        containers.kill()
    network.ensure()
    namespace = network.identity()
    if namespace is None:
        raise Unfit("The network namespace vanished while the cluster was started.")
    start(components.components(), f"{namespace} {certificates.identity()}")
    _settle()
    progress.say(f"cluster serves: {KUBECONFIG} (context epd-local), registry {REGISTRY}", "green")


def start(wanted: Sequence[Component], surroundings: str) -> None:
    """Start every component as soon as those it needs serve.

    Args:
        wanted: The components, in any order.
        surroundings: What they share; a component that was started in others is started again.

    Raises:
        Unfit: One ends, or does not come to serve; the message ends with its last words.
    """
    serving: set[str] = set()
    waiting = list(wanted)
    started: list[Component] = []
    result: set[str] = set()
    began = time.monotonic()
    while waiting or started:
        for component in [c for c in waiting if serving.issuperset(c.needs)]:
            if components.start(component, surroundings):
                progress.say(f"starting {component.name}")
            else:
                result.add(component.name)
            waiting.remove(component)
            started.append(component)
        for component in list(started):
            if probe.fault(component.health) is None:
                _arrived(component)
                started.remove(component)
                serving.add(component.name)
            elif not component.running():
                raise Unfit(f"{component.name} ended.\n{_tail(component)}")
        elapsed = time.monotonic() - began
        for component in [c for c in started if c.name in result and elapsed > HUNG_SECONDS]:
            progress.say(f"{component.name} runs but does not serve: starting it again", "yellow")
            process.stop(component.pid_file, grace_seconds=1.0)
            result.remove(component.name)
            started.remove(component)
            waiting.append(component)
        if elapsed > SERVE_SECONDS:
            late = next(iter(started or waiting))
            raise Unfit(f"{late.name} does not serve: {probe.fault(late.health)}\n{_tail(late)}")
        time.sleep(_POLL_SECONDS)


def _arrived(component: Component) -> None:
    """Do what can only be done once a component serves."""
    if component.name == "containerd":
        pause.ensure()
    if component.name == "kube-apiserver":
        _apply_roles()


def _apply_roles() -> None:
    command = [str(binaries.path("kubectl")), f"--kubeconfig={KUBECONFIG}", "apply", "--server-side", "-f"]
    done = program.run([*command, str(_ROLES)])
    if done.returncode:
        raise Unfit(f"The roles of CoreDNS and kwok cannot be applied:\n{done.stderr.strip()}")


def _settle() -> None:
    """Wait until a pod could run: the node is Ready, and the default service account is there."""
    steps: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("the node to be Ready", node_ready),
        (
            "the default service account",
            lambda: bool(probe.get("/api/v1/namespaces/default/serviceaccounts/default")),
        ),
    )
    for text, holds in steps:
        deadline = time.monotonic() + SERVE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise Unfit(f"Waited {SERVE_SECONDS:.0f} s for {text}; the kubelet's log is in {LOGS}.")
            time.sleep(_POLL_SECONDS)


def node_ready() -> bool:
    """Say whether the API server calls our node Ready."""
    conditions = probe.get(f"/api/v1/nodes/{NODE}").get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def down() -> None:
    """End every process of the cluster and remove all it made, caches excepted.

    Raises:
        Unfit: Something of it cannot be removed.
    """
    progress.say(f"ended {_stop()} processes of the cluster")
    progress.say(f"ended {containers.kill()} processes of pods")
    registry.prune()
    containers.unmount(STATE)
    network.remove()
    containers.remove_cgroups()
    containers.remove_traces()
    if STATE.exists():
        shutil.rmtree(STATE)
    if STATE.parent.exists() and not any(STATE.parent.iterdir()):
        STATE.parent.rmdir()
    progress.say("network, mounts and state removed; caches kept", "green")


def take_over() -> None:
    """Refuse where another checkout's cluster is up; clear what one left whose state folder is gone.

    Raises:
        Unfit: Another checkout's cluster is up.
    """
    owner = network.owner()
    if owner is not None and owner != STATE and any(map(process.alive, map(process.read, _pid_files(owner)))):
        raise Unfit(
            f"The cluster of another checkout is up, and one machine can run one: {owner}\n"
            f"Use it with KUBECONFIG={owner / KUBECONFIG.name}, or end it there with `python -m tools.cluster down`."
        )
    if network.identity() is not None and (owner != STATE or not _pid_files(STATE)):
        progress.say(f"ended {containers.kill(network.pids)} processes that a lost state folder left", "yellow")
        containers.unmount(owner or STATE)
        network.remove()
    if STATE.exists() and not _pid_files(STATE):  # half a state folder is worth less than none
        containers.unmount(STATE)
        shutil.rmtree(STATE)


def _pid_files(state: Path) -> list[Path]:
    return sorted((state / "pids").glob("*.json"))


def _stop() -> int:
    """End every component at once, with a second for each to end cleanly; return how many ran."""
    with ThreadPoolExecutor() as pool:
        return sum(pool.map(lambda file: process.stop(file, grace_seconds=1.0), _pid_files(STATE)))


def _after_boot() -> None:
    """Empty what cannot survive a reboot: sockets, bundles, address leases, mounts."""
    current = process.boot_id()
    if _BOOT.exists() and _BOOT.read_text(encoding="ascii").strip() != current:
        progress.say("the machine was rebooted: starting over from the kept state")
        containers.unmount(RUN)
        shutil.rmtree(RUN, ignore_errors=True)
    STATE.mkdir(parents=True, exist_ok=True)
    _BOOT.write_text(current + "\n", encoding="ascii")


def _tail(component: Component) -> str:
    lines = component.log.read_text(encoding="utf-8", errors="replace").splitlines() if component.log.exists() else []
    text = "\n".join(f"    {line[:300]}" for line in lines[-12:])
    return f"The last lines of {component.log}:\n{text}"
