"""For which GPU a launch is meant."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import triton


class Architecture(StrEnum):
    """What tiles are chosen for."""

    SM90 = "sm_90"
    SM100 = "sm_100"
    GFX942 = "gfx942"
    GFX950 = "gfx950"
    INTERPRETER = "interpreter"


class UnknownArchitecture(RuntimeError):
    """No tiles have been chosen for this GPU."""


def current() -> Architecture:
    """The architecture that a launch goes to now.

    Raises:
        UnknownArchitecture: The active GPU is none that we have tiles for.
    """
    if triton.knobs.runtime.interpret:
        return Architecture.INTERPRETER
    target: Any = triton.runtime.driver.active.get_current_target()
    name = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch).split(":", maxsplit=1)[0]
    known = [one for one in Architecture if one is not Architecture.INTERPRETER]
    if name not in known:
        raise UnknownArchitecture(
            f"this GPU is {name}: there are kernel tiles for {', '.join(known)} alone; use the torch operations"
        )
    return Architecture(name)
