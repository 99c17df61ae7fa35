"""For which GPU a launch is meant."""

from __future__ import annotations

from enum import StrEnum
from subprocess import CalledProcessError
from typing import Any, Final

import triton

_NO_DRIVER: Final = (RuntimeError, OSError, ImportError, CalledProcessError)


class Architecture(StrEnum):
    """What tiles are chosen for."""

    SM90 = "sm_90"
    SM100 = "sm_100"
    GFX942 = "gfx942"
    GFX950 = "gfx950"
    INTERPRETER = "interpreter"


class UnknownArchitecture(RuntimeError):
    """There is no GPU that Triton can use, or no tiles have been chosen for it."""


def current() -> Architecture:
    """The architecture that a launch goes to now.

    Raises:
        UnknownArchitecture: Triton finds no GPU, or none that we have tiles for.
    """
    if triton.knobs.runtime.interpret:
        return Architecture.INTERPRETER
    try:
        target: Any = triton.runtime.driver.active.get_current_target()
    except _NO_DRIVER as error:
        # Triton builds its driver when it is first asked for one, which takes a GPU and a C compiler.
        raise UnknownArchitecture(f"Triton has no driver for a GPU here ({error}): use the torch operations") from error
    name = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch).split(":", maxsplit=1)[0]
    known = [each for each in Architecture if each is not Architecture.INTERPRETER]
    if name not in known:
        raise UnknownArchitecture(
            f"this GPU is {name}: there are kernel tiles only for {', '.join(known)}; use the torch operations"
        )
    return Architecture(name)
