"""PodDisruptionBudgets: a node drain takes one pod of a part at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names

if TYPE_CHECKING:
    from epd_operator.plan.scope import Scope


def budgets(scope: Scope) -> list[dict[str, Any]]:
    """One budget for each declared role and one for the router, over all revisions."""
    return [
        scope.child(
            ("policy/v1", "PodDisruptionBudget"),
            names.component(scope.name, part),
            part,
            spec={
                "maxUnavailable": 1,
                "selector": {"matchLabels": names.selector(scope.name, part)},
                # A pod that never became ready must not block the drain of its node.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        )
        for part in (*scope.effective.roles, names.ROUTER)
    ]
