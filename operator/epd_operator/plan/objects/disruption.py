"""PodDisruptionBudgets: a node drain takes one pod of a part at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.plan.objects import swa_pool

if TYPE_CHECKING:
    from epd_operator.plan.render_context import RenderContext


def budgets(context: RenderContext) -> list[dict[str, Any]]:
    """One budget for each declared role, one for the router, and one for a pool's stores, over all revisions."""
    return [
        context.child(
            ("policy/v1", "PodDisruptionBudget"),
            names.component(context.name, part),
            part,
            spec={
                "maxUnavailable": 1,
                "selector": {"matchLabels": names.selector(context.name, part)},
                # A pod that never became ready must not block the drain of its node.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        )
        # The one server that a pool has beside its stores needs none: a budget that lets it go would say nothing, and
        # any other would block its node.
        for part in (*context.effective.roles, names.ROUTER, *swa_pool.stores(context))
    ]
