"""What each GPU platform means to Kubernetes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from epd_operator.engines.profile import Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

_NVIDIA: Final = Hardware(gpu="nvidia.com/gpu")
_AMD: Final = Hardware(gpu="amd.com/gpu")

PLATFORMS: Final[Mapping[str, Hardware]] = MappingProxyType(
    {"cuda-sm90": _NVIDIA, "cuda-sm100": _NVIDIA, "hip-gfx950": _AMD}
)
"""Resource names of the vendors' device plugins; GPU nodes are tainted with the same names."""
