"""The engines' configuration of their pool of windows: one file, which may change while they run.

The tricky idea: an engine reads the file again and again, so everything that changes in it changes no pod. The mount is
optional: pods that have it start with the file or without it, and one that appears or goes is noticed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names

if TYPE_CHECKING:
    from epd_operator.engines.effective import EffectiveSwaPool
    from epd_operator.plan.render_context import RenderContext

_VOLUME: Final = "epd-swa-pool"


def config_map(context: RenderContext, pool: EffectiveSwaPool) -> dict[str, Any]:
    """The ConfigMap with the address of the pool and how long windows and lookups last, in seconds."""
    settings = {"address": _address(context, pool), "ttl": pool.ttl, "deadline": pool.deadline}
    return context.child(
        ("v1", "ConfigMap"),
        names.swa_pool(context.name),
        names.SWA_POOL,
        data={names.SWA_POOL_FILE: json.dumps(settings)},
    )


def is_read(context: RenderContext, role: names.RoleName) -> bool:
    """Whether the pods of a role have the file mounted."""
    return context.profile.reads_pool(role, exists=context.effective.swa_pool is not None)


def volumes(context: RenderContext, role: names.RoleName) -> list[dict[str, Any]]:
    """The volume with the file, for the roles that read it."""
    if not is_read(context, role):
        return []
    # Optional: a decode pod has it mounted before there is a pool, and keeps it when the pool goes.
    return [{"name": _VOLUME, "configMap": {"name": names.swa_pool(context.name), "optional": True}}]


def mounts(context: RenderContext, role: names.RoleName) -> list[dict[str, Any]]:
    """Mounts of `volumes`: the whole folder, because a single file would never change."""
    if not is_read(context, role):
        return []
    return [{"name": _VOLUME, "mountPath": names.SWA_POOL_FOLDER, "readOnly": True}]


def environment(context: RenderContext, role: names.RoleName) -> list[dict[str, Any]]:
    """The variable that names the file, for the engines that no flag tells."""
    variable = context.profile.pool_variable
    if not variable or not is_read(context, role):
        return []
    return [{"name": variable, "value": f"{names.SWA_POOL_FOLDER}/{names.SWA_POOL_FILE}"}]


def _address(context: RenderContext, pool: EffectiveSwaPool) -> str:
    host = f"{names.swa_pool(context.name)}.{context.namespace}.svc"
    match pool.mode:
        case "InProcess":
            return f"memory:?bytes={pool.memory_bytes}"
        case "Valkey":
            return f"valkey://{host}:{names.VALKEY_PORT}"
        case _:
            return f"mooncake://{host}:{names.MOONCAKE_PORT}"
