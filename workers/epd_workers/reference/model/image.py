"""Pictures before the vision tower: opening, the plan of their size, pixels.

The plan is a function of the picture's width and height alone, so that a prompt's length is known before any pixel is
read. Source: SGLang 0.5.23, multimodal/deepseek_v41_image_processing.py. The two refusals (`MAX_PIXELS`, `MAX_RATIO`)
are ours: the released settings (max_wh_ratio null) take every size.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from epd_workers.reference.model.interface import BadImage

if TYPE_CHECKING:
    from torch import Tensor

    from epd_workers.reference.model.config import VisionConfig

MAX_PIXELS = 32_000_000
MAX_RATIO = 200
PADDING = (127, 127, 127)
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True)
class Plan:
    """What becomes of a picture.

    Attributes:
        grid: (high, wide), in patches; the canvas has patch_size times as many pixels.
        cells: (lines, columns) of tokens, downsample_ratio patches a side, the last ones possibly not full.
        patch: Pixels per side of a patch.
        stretch: Whether the picture fills the canvas at the cost of its proportions; else it is padded.
    """

    grid: tuple[int, int]
    cells: tuple[int, int]
    patch: int
    stretch: bool = False

    @property
    def span(self) -> int:
        """Tokens: start, then per line its cells and a newline, then end."""
        return _span(self.cells)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the canvas, in pixels."""
        high, wide = self.grid
        return wide * self.patch, high * self.patch


def plan(width: int, height: int, vision: VisionConfig) -> Plan:
    """The plan for a picture of this size in pixels.

    1. A picture wider than max_wh_ratio heights counts as one of that width, and is stretched.
    2. One of fewer than min_pixels pixels counts as one sqrt(min_pixels / pixels) times as wide and high, rounded down.
    3. Both sides are rounded up to whole patches; that is the canvas if its span is within max_image_tokens (N).
    4. Else, with s = height / width, w = sqrt((N - 2) / s + 1/4) - 1/2 solves s w (w + 1) + 2 = N. The canvas is the
       picture scaled into floor(w) by floor(s w) cells, both sides rounded down to whole patches; it is one column of
       (N - 2) // 2 cells if w < 1, and one line of N - 3 cells if s w < 1.

    Raises:
        BadImage: Empty, over `MAX_PIXELS`, or longer than `MAX_RATIO` times its other side.
    """
    check_size(width, height)
    limit = vision.max_wh_ratio
    stretch = limit is not None and width >= limit * height
    high, wide = float(height), float(width)
    if limit is not None:
        wide = min(wide, high * limit)
    if wide * high < vision.min_pixels:
        scale = math.sqrt(vision.min_pixels / (wide * high))
        high, wide = float(int(high * scale)), float(int(wide * scale))
    patch, ratio = vision.patch_size, vision.downsample_ratio
    grid = math.ceil(high / patch), math.ceil(wide / patch)
    if _span(_cells(grid, ratio)) > vision.max_image_tokens:
        grid = _shrunk(high, wide, vision)
    return Plan(grid, _cells(grid, ratio), patch, stretch)


def _shrunk(high: float, wide: float, vision: VisionConfig) -> tuple[int, int]:
    """The patch grid of rule 4; never empty, which a downsample ratio of 1 could otherwise make it."""
    patch, ratio, most = vision.patch_size, vision.downsample_ratio, vision.max_image_tokens
    slope = high / wide
    columns = math.sqrt((most - 2) / slope + 0.25) - 0.5
    lines = columns * slope
    if columns < 1:
        return (most - 2) // 2 * ratio, ratio
    if lines < 1:
        return ratio, (most - 3) * ratio
    cell = patch * ratio
    scale = min(math.floor(columns) * cell / wide, math.floor(lines) * cell / high)
    return max(1, math.floor(high * scale / patch)), max(1, math.floor(wide * scale / patch))


def _cells(grid: tuple[int, int], ratio: int) -> tuple[int, int]:
    high, wide = grid
    return -(-high // ratio), -(-wide // ratio)


def _span(cells: tuple[int, int]) -> int:
    lines, columns = cells
    return lines * (columns + 1) + 2


def check_size(width: int, height: int) -> None:
    """Refuse sizes that no request has a use for.

    Raises:
        BadImage: Empty, over `MAX_PIXELS`, or longer than `MAX_RATIO` times its other side.
    """
    if width < 1 or height < 1:
        raise BadImage(f"image is {width}x{height}: must have at least one pixel")
    if width * height > MAX_PIXELS:
        raise BadImage(f"image is {width}x{height}: at most {MAX_PIXELS} pixels are accepted; scale it down")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadImage(f"image is {width}x{height}: one side may be at most {MAX_RATIO} times the other; crop it")


def open_image(data: bytes) -> Image.Image:
    """Decode a PNG, JPEG, WebP, GIF (first frame) or BMP file to upright RGB; transparency becomes white.

    Raises:
        BadImage: Not such a file, damaged, or of a refused size.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            check_size(*image.size)
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                white = Image.new("RGBA", upright.size, "white")
                return Image.alpha_composite(white, upright.convert("RGBA")).convert("RGB")
            return upright.convert("RGB")
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # raised before the size is known
        raise BadImage(f"image is too large: at most {MAX_PIXELS} pixels are accepted; scale it down") from error
    except UnidentifiedImageError as error:  # its own words are an address in our memory
        raise BadImage(f"image cannot be decoded as {', '.join(_FORMATS)}: it is none of them") from error
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise BadImage(f"image cannot be decoded as {', '.join(_FORMATS)}: {error}") from error


def patches(image: Image.Image, plan: Plan) -> Tensor:
    """Pixels as (x / 255 - 1/2) / (1/2), bicubic, grey where the canvas is larger than the picture.

    Returns:
        [high * wide, 3 * patch²] float32, line by line, each patch ordered channel, line, column.
    """
    picture = image.convert("RGB")
    if plan.stretch:
        canvas = picture.resize(plan.size, Image.Resampling.BICUBIC)
    else:
        canvas = ImageOps.pad(picture, plan.size, Image.Resampling.BICUBIC, color=PADDING)
    (high, wide), side = plan.grid, plan.patch
    pixels = torch.from_numpy(np.array(canvas, dtype=np.float32)).view(high, side, wide, side, 3)
    return ((pixels / 255 - 0.5) / 0.5).permute(0, 2, 4, 1, 3).reshape(high * wide, 3 * side * side)
