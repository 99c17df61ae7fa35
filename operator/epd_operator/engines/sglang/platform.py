"""What each platform means to Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from epd_operator.engines.profile import DefaultResources, Hardware
from epd_operator.engines.sglang.base import REHEARSAL
from epd_operator.engines.sglang.plugin import ALLOWED, NAME
from epd_operator.engines.shared import REHEARSAL_MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

_NVIDIA: Final = Hardware(gpu="nvidia.com/gpu")
_AMD: Final = Hardware(gpu="amd.com/gpu")
_CPU: Final = Hardware(
    resources=DefaultResources(cpu="1", memory=REHEARSAL_MEMORY),
    rehearsal=True,
    # A step takes longer than the 20 s after which a server without an answer calls itself unhealthy.
    defaults={"SGLANG_HEALTH_CHECK_TIMEOUT": "100"},
)
_CPU_STAND_INS: Final = f"{NAME}-cpu"
"""Entry point of the plugin that stands in for the kernels of a GPU, and that no GPU must load."""

PLATFORMS: Final[Mapping[str, Hardware]] = MappingProxyType(
    {"cuda-sm90": _NVIDIA, "cuda-sm100": _NVIDIA, "hip-gfx950": _AMD}
)
"""Resource names of the vendors' device plugins; GPU nodes are tainted with the same names."""


def _loading(hardware: Hardware, *entry_points: str) -> Hardware:
    """The same, with these entry points of plugins and no others loaded."""
    return replace(hardware, environment=({"name": ALLOWED, "value": ",".join(entry_points)},))


PLUGGED_PLATFORMS: Final[Mapping[str, Hardware]] = MappingProxyType(
    {
        **{name: _loading(hardware, NAME) for name, hardware in PLATFORMS.items()},
        REHEARSAL: _loading(_CPU, NAME, _CPU_STAND_INS),
    }
)
"""Where the engine runs with the plugin."""
