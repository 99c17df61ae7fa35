"""SGLang's containers and command lines as the plan makes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from epd_operator.engines.sglang.command import PROGRAM
from epd_operator.plan import Observed, Settings, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

# What Kubernetes puts in the place of a variable, for a pod that leads its group.
PLACES = {"LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader.llm", "POD_IP": "10.0.0.1"}


def containers(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The engine's containers, and what makes them."""
    metadata = {"namespace": "llm", "uid": "0", **document["metadata"]}
    nothing = Observed((), (), (), (), (), datetime(2026, 1, 1, tzinfo=UTC))
    for obj in plan({**document, "metadata": metadata}, nothing, Settings("r:1", "w:1", "0")).objects:
        group = obj.get("spec", {}).get("leaderWorkerTemplate", {})
        for template in (obj.get("spec", {}).get("template"), group.get("leaderTemplate"), group.get("workerTemplate")):
            for container in (template or {}).get("spec", {}).get("containers", ()):
                if container.get("command", [])[: len(PROGRAM)] == list(PROGRAM[: len(container.get("command", []))]):
                    yield obj["metadata"]["name"], container


def line(container: dict[str, Any]) -> tuple[str, ...]:
    """What the engine is given behind its program's name."""
    words = [*container["command"], *container["args"]]
    assert tuple(words[: len(PROGRAM)]) == PROGRAM
    return tuple(re.sub(r"\$\((\w+)\)", lambda place: PLACES[place[1]], word) for word in words[len(PROGRAM) :])
