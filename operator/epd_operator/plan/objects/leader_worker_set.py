"""The LeaderWorkerSet of a role whose engine spans pods: each replica is a group of them, led by its first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.engines.effective import EffectiveRole
    from epd_operator.plan.render_context import RenderContext

KIND: Final = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")


def leader_worker_set(context: RenderContext, role: EffectiveRole, templates: Mapping[str, Any]) -> dict[str, Any]:
    """The LeaderWorkerSet around a leader's and a worker's template.

    Args:
        context: The resource.
        role: One of its roles, with `nodes` above 1.
        templates: `template` of the leader and `workerTemplate` of the others.
    """
    return context.revised(
        KIND,
        names.workload(context.name, role.name, context.identity.revisions[role.name]),
        role.name,
        spec={
            "replicas": role.replicas,
            # Workers look for the leader while it waits for them: none may wait for the other to be ready. Its name
            # resolves that early because the headless Service of the set publishes addresses that are not ready.
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            # No surge: the accelerators of a spare group may not exist.
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1, "partition": 0},
            },
            "leaderWorkerTemplate": {
                "size": role.nodes,
                # The ranks of an engine start together or not at all.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": dict(templates["template"]),
                "workerTemplate": dict(templates["workerTemplate"]),
            },
        },
    )
