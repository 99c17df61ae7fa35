"""The pool of windows as objects: which servers each mode has, and what goes with them.

The tricky idea: nothing here is worth an engine's restart. Windows that are lost are built again by a replay, so every
server may be replaced at any time, one at a time where there are several, and no part of a deployment waits for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names
from epd_operator.plan.objects import configuration, snapshot, swa_pool_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_operator.plan.objects.swa_pool_server import Program
    from epd_operator.plan.observation import Object
    from epd_operator.plan.render_context import RenderContext

_SETTLE_SECONDS: Final = 10
"""Between two stores of a rollout: traffic must not meet several empty ones at once."""
_SNAPSHOT: Final = {names.SWA_POOL: "swa-pool", names.SWA_POOL_STORE: "swa-store"}
"""Middle of a snapshot's name: shorter than the component where both together would leave 63 characters."""


@dataclass(frozen=True)
class Part:
    """One kind of server of a pool.

    Attributes:
        component: What its pods are labelled with.
        name: Of its Deployment.
        program: What runs in its pods.
        replicas: pods.
    """

    component: str
    name: str
    program: Program
    replicas: int


def parts(context: RenderContext) -> tuple[Part, ...]:
    """The servers of a resource's pool, in the order in which they need each other; none in process."""
    pool = context.effective.swa_pool
    if pool is None or pool.mode == "InProcess":
        return ()
    name = names.swa_pool(context.name)
    if pool.mode == "Valkey":
        return (Part(names.SWA_POOL, name, "valkey", 1),)
    return (
        Part(names.SWA_POOL, name, "master", 1),
        Part(names.SWA_POOL_STORE, names.swa_pool_store(context.name), "store", pool.stores),
    )


def stores(context: RenderContext) -> tuple[str, ...]:
    """Components of a pool of which there may be several pods."""
    return tuple(part.component for part in parts(context) if part.program == "store")


def objects(context: RenderContext, children: Sequence[Object]) -> list[dict[str, Any]]:
    """The file for the engines, and the servers with their stored templates; nothing without a pool."""
    pool = context.effective.swa_pool
    if pool is None:
        return []
    result = [configuration.config_map(context, pool)]
    for part in parts(context):
        stored_as = names.workload(context.name, _SNAPSHOT[part.component], context.identity.revisions[part.component])
        templates = snapshot.stored_templates(children, stored_as, ("template",)) or {
            "template": swa_pool_server.pod_template(context, pool, part.program, part.component)
        }
        result.append(snapshot.controller_revision(context, part.component, stored_as, templates))
        result.append(_deployment(context, part, templates["template"]))
    return result


def _deployment(context: RenderContext, part: Part, template: dict[str, Any]) -> dict[str, Any]:
    several = part.program == "store"
    # A spare server would have its memory beside that of the one which it replaces.
    one_by_one = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return context.revised(
        ("apps/v1", "Deployment"),
        part.name,
        part.component,
        spec={
            "replicas": part.replicas,
            "revisionHistoryLimit": 1,
            **({"minReadySeconds": _SETTLE_SECONDS} if several else {}),
            "selector": {"matchLabels": names.selector(context.name, part.component)},
            "strategy": one_by_one if several else {"type": "Recreate"},
            "template": template,
        },
    )
