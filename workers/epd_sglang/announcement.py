"""Says in the engine's `/metrics` that the plugin runs there, and in which role it found the engine."""

# ruff: noqa: PLC0415 - what needs the engine is imported when the hook runs
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

import epd_sglang
from epd_sglang.hook import Hook, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ROLES: Final = {"null": "aggregated", "prefill": "prefill", "decode": "decode"}
"""Role by disaggregation mode."""


class Announce(Hook):
    """The scheduler begins to serve. An encoder has none, and does not come past here."""

    target = Target("sglang.srt.managers.scheduler", "Scheduler.run_event_loop")
    signature = ("self",)
    reason = "whoever watches a pod wants to know whether its plugin is in place: a plugin that is not is only logged"
    source = ("srt/managers/scheduler.py:1975", "srt/plugins/__init__.py:133", "srt/utils/common.py:2825")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def run(scheduler: Any) -> Any:
            from sglang.srt.runtime_context import get_disagg

            announce(get_disagg().disaggregation_mode)
            return stock(scheduler)

        return run


def announce(mode: str) -> None:
    """Set the metric, in every process the same.

    Args:
        mode: The engine's disaggregation mode.
    """
    # Imported in the scheduler's process, whose environment names the folder that all processes' metrics are in.
    from prometheus_client import Gauge

    labels = ["version", "role"]
    gauge = Gauge("epd_plugin_info", "The plugin that runs in this engine", labels, multiprocess_mode="max")
    gauge.labels(epd_sglang.__version__, ROLES.get(mode, mode)).set(1)
