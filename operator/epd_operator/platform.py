"""The hardware that a deployment can name; apart from the models, so that the command line needs none of them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Platform: TypeAlias = Literal["cuda-sm90", "cuda-sm100", "hip-gfx950", "cpu"]
GPU_PLATFORMS: Final[tuple[str, ...]] = tuple(name for name in get_args(Platform) if name != "cpu")
