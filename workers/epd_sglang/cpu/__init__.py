"""The engine on a CPU: the leaf operations that SGLang has only for GPUs, in plain torch.

For rehearsals: the same processes, flags and protocols as on GPUs, with a tiny checkpoint and without the speed. It is
never loaded by default: the engine runs every entry point that it finds, and this one acts only where the environment
variable ``SGLANG_PLUGINS`` names it.
"""

from __future__ import annotations

import os
from typing import Final

NAME: Final = "epd-cpu"


def register() -> None:
    """Put the CPU's leaf operations in place, if they were asked for by name.

    Source: SGLang 0.5.23, srt/plugins/__init__.py, load_plugins_by_group (`SGLANG_PLUGINS`).
    """
    named = {name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")}
    if NAME not in named:
        return
    from epd_sglang import installation  # noqa: PLC0415 - a process that does not ask for it loads nothing
    from epd_sglang.cpu import hooks, switches  # noqa: PLC0415

    if installation.put(hooks.HOOKS, NAME):
        switches.turn()
