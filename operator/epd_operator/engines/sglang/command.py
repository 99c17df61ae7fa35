"""The command line of an SGLang pod: what the user gave, and what the operator sets.

The operator's own flags come from the same table that the rules judge (`ownership`), so no pod can run what nobody
judged. Where an engine spans pods, all of them get one command line: Kubernetes puts each pod's rank and the leader's
address into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.hosting import RENDEZVOUS_PORT
from epd_operator.engines.sglang.base import CHECKPOINT
from epd_operator.engines.sglang.namespace import namespace
from epd_operator.engines.sglang.ownership import OWNED
from epd_operator.engines.sglang.storage import configured
from epd_operator.rules.process import Process
from epd_operator.rules.version import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epd_operator.api.names import RoleName
    from epd_operator.engines.profile import CommandInputs

PROGRAM: Final = ("python3", "-m", "sglang.launch_server")


def options(version: str) -> Callable[[RoleName, CommandInputs], Mapping[str, Any]]:
    """What gives every flag of a pod of this version."""

    def every(role: RoleName, inputs: CommandInputs) -> dict[str, Any]:
        process = Process(
            role,
            inputs.platform,
            rank(version),
            inputs.args,
            {},
            CHECKPOINT,
            OWNED,
            inputs.document,
        )
        owned = {name: expression.value(process) for name, expression in OWNED.items()}
        tag = namespace(version, inputs.platform, role, inputs.tenant, inputs.document)
        return {**inputs.args, **owned, **configured(process, tag), **(_group() if inputs.nodes > 1 else {})}

    return every


def _group() -> dict[str, str]:
    # LeaderWorkerSet sets both variables in every pod of a group; the address is that of pod 0.
    return {"node-rank": "$(LWS_WORKER_INDEX)", "dist-init-addr": f"$(LWS_LEADER_ADDRESS):{RENDEZVOUS_PORT}"}
