"""`epd status`: one view of a deployment, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from epd_operator.api.names import COMPONENTS, ROUTER, SWA_POOL, SWA_POOL_STORE
from epd_operator.cli.reader import Deployment, Pod, Reader, ReadError
from epd_operator.kube.credential import SERVICE_ACCOUNT, CredentialError, load_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVERY_SECONDS: Final = 1.0
PIPE_WIDTH: Final = 200
ALARMS: Final = frozenset({"Reconciling", "Stalled"})
"""Conditions that are good news when False."""


def show(
    *,
    name: str | None,
    namespace: str | None,
    everywhere: bool,
    watch: bool,
    output: str,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> int:
    """Print the status; returns 0 when everything shown is Ready, 1 when not, 2 when it could not be read."""
    try:
        reader = Reader(load_configuration(kubeconfig, context))
        where = None if everywhere else namespace or default_namespace(kubeconfig, context)

        def read() -> list[Deployment]:
            return reader.deployments(where, name)

        if watch:
            return _watch(read, output, where)
        result = read()
    except (CredentialError, ReadError) as error:
        print(f"epd: {error}", file=sys.stderr)
        return 2
    if output == "json":
        print(as_json(result))
    else:
        _console().print(view(result, where))
    return 0 if result and all(one.ready for one in result) else 1


def default_namespace(kubeconfig: str | None, context: str | None) -> str:
    """Namespace of the service account inside a pod, of the kubeconfig's context elsewhere; else `default`."""
    inside = SERVICE_ACCOUNT / "namespace"
    if kubeconfig is None and context is None and inside.is_file():
        return inside.read_text().strip() or "default"
    from kubernetes import config  # noqa: PLC0415

    lister: Any = config
    contexts, active = lister.list_kube_config_contexts(config_file=kubeconfig)
    chosen = next((one for one in contexts if one["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")


def as_json(result: Sequence[Deployment]) -> str:
    """A list with one object per deployment, for scripts."""
    return json.dumps([{**asdict(one), "ready": one.ready} for one in result], indent=2)


def view(result: Sequence[Deployment], namespace: str | None) -> RenderableType:
    """Everything on one page."""
    if not result:
        return Text(f"no deployments in {f'namespace {namespace}' if namespace else 'any namespace'}")
    return Group(*(_one(deployment) for deployment in result))


def _watch(read: Callable[[], list[Deployment]], output: str, namespace: str | None) -> int:
    console = _console()
    if output == "json" or not console.is_terminal:
        return _follow(read, output, namespace, console)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            try:
                live.update(view(read(), namespace), refresh=True)
            except ReadError as error:  # an outage ends; a person watching wants to see it end
                live.update(Text(str(error), style="red"), refresh=True)
            time.sleep(EVERY_SECONDS)


def _follow(read: Callable[[], list[Deployment]], output: str, namespace: str | None, console: Console) -> int:
    """Into a pipe: a new page only when something changed."""
    last: list[Deployment] | None = None
    while True:
        result = read()
        if result != last:
            if output == "json":
                print(as_json(result), flush=True)
            else:
                console.print(view(result, namespace))
            last = result
        time.sleep(EVERY_SECONDS)


def _one(deployment: Deployment) -> RenderableType:
    ready = deployment.condition("Ready")
    head = Text()
    head.append(deployment.name, style="bold")
    head.append(f"  {deployment.namespace}  {deployment.engine}  ")
    if not ready:
        head.append("not seen by an operator yet", style="yellow")
    else:
        head.append("Ready" if deployment.ready else str(ready.get("reason")), style=_colour(deployment.ready))
    if deployment.status.get("observedGeneration") not in {None, -1, deployment.generation}:
        head.append("  (the operator has not seen the last change yet)", style="yellow")
    url = (deployment.status.get("router") or {}).get("url")
    if url:
        head.append(f"  {url}", style="dim")
    return Group(head, Padding(_roles(deployment), (0, 0, 0, 2)), Padding(_conditions(deployment), (0, 0, 1, 2)))


def _roles(deployment: Deployment) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("ROLE", "READY", "REVISION"):
        table.add_column(column, no_wrap=True)
    table.add_column("POD", overflow="fold")
    table.add_column("STATE", no_wrap=True)
    table.add_column("NODE", overflow="fold")
    for component in (*COMPONENTS, SWA_POOL, SWA_POOL_STORE):
        counts = _counts(deployment, component)
        pods: list[Pod | None] = [pod for pod in deployment.pods if pod.component == component]
        if counts is None and not pods:
            continue
        for index, pod in enumerate(pods or [None]):
            left = _left(component, counts) if index == 0 else [Text(), Text()]
            table.add_row(*left, *_right(pod))
    return table


def _counts(deployment: Deployment, component: str) -> dict[str, Any] | None:
    if component in {SWA_POOL, SWA_POOL_STORE}:  # of which the status has no numbers
        pods = [pod for pod in deployment.pods if pod.component == component]
        return {"desired": len(pods), "ready": sum(pod.ready for pod in pods)} if pods else None
    status = deployment.status
    result = status.get("router") if component == ROUTER else (status.get("roles") or {}).get(component)
    return result if isinstance(result, dict) else None


def _left(component: str, counts: dict[str, Any] | None) -> list[Text]:
    counts = counts or {}
    ready, desired = counts.get("ready", 0), counts.get("desired", 0)
    return [Text(component), Text(f"{ready}/{desired}", style=_colour(ready >= desired))]


def _right(pod: Pod | None) -> list[Text]:
    if pod is None:
        return [Text(), Text("-", style="dim"), Text(), Text()]
    state = "Ready" if pod.ready and pod.state == "Running" else pod.state
    shown = Text(state, style=_colour(state == "Ready"))
    if pod.restarts:
        shown.append(f" ({pod.restarts} restart{'s' if pod.restarts > 1 else ''})", style="yellow")
    return [Text(pod.revision), Text(pod.name), shown, Text(pod.node)]


def _conditions(deployment: Deployment) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for condition in deployment.status.get("conditions") or ():
        kind, status = str(condition.get("type")), str(condition.get("status"))
        good = status == ("False" if kind in ALARMS else "True")
        table.add_row(
            Text(kind),
            Text(status, style=_colour(good)),
            Text(str(condition.get("reason", ""))),
            Text(str(condition.get("message", "")), style="dim"),
        )
    return table


def _console() -> Console:
    # A pipe has no width: lines must not be folded for it.
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def _colour(good: bool) -> str:
    return "green" if good else "yellow"
