"""The hardware that a deployment can name; apart from the models, so that the command line needs none of them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Platform: TypeAlias = Literal["cuda-sm90", "cuda-sm100", "hip-gfx950", "cpu"]
PLATFORMS: Final[tuple[Platform, ...]] = get_args(Platform)
"""Every platform; the GPUs first."""
