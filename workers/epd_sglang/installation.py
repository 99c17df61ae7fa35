"""Puts hooks in place: all of a set, or none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epd_sglang import engine
from epd_sglang.late import after_import

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epd_sglang.hook import Hook

_log = logging.getLogger(__name__)
_tried: set[str] = set()
"""Plugins that this process has been asked for: an encoder's processes ask twice."""


def install() -> None:
    """Put the product's hooks in place, and open the gate of the encode tier behind them."""
    from epd_sglang import catalog  # noqa: PLC0415 - the entry point's module stays free of imports

    if put(catalog.hooks(), "epd"):
        catalog.open_gate()


def put(hooks: Iterable[Hook], plugin: str) -> bool:
    """Apply each hook when the engine imports its target.

    Args:
        hooks: They belong together.
        plugin: Its name, for the log.

    Returns:
        Whether this call put them in place; if they do not fit, one log line says why, and the engine runs as if they
        did not exist.
    """
    if plugin in _tried:
        return False
    _tried.add(plugin)
    hooks = tuple(hooks)
    faults = engine.faults(frozenset().union(*(hook.files for hook in hooks)))
    if faults:
        _log.error("plugin %s changes nothing: %s", plugin, "; ".join(faults))
        return False
    for hook in hooks:
        after_import(hook.target.module, hook.apply)
    return True
