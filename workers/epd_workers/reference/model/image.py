"""Pictures before the encoder: opening, size rules, pixels."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from epd_workers.reference.model.interface import BadImage

PATCH = 14
MERGE = 3
CELL = PATCH * MERGE
MAX_SPAN = 160
MAX_PIXELS = 32_000_000
MAX_RATIO = 200
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True)
class Grid:
    """Cells of `CELL` x `CELL` pixels; one cell is one token."""

    rows: int
    columns: int

    @property
    def span(self) -> int:
        """Tokens: start, then per row its cells and a newline, then end."""
        return self.rows * (self.columns + 1) + 2


def grid(width: int, height: int) -> Grid:
    """Cells for a picture of this size in pixels.

    The nearest whole number of cells per side, at least 1; a picture whose span would exceed `MAX_SPAN` is scaled down
    first, keeping its proportions.

    Raises:
        BadImage: Empty, over `MAX_PIXELS`, or longer than `MAX_RATIO` times its other side.
    """
    if width < 1 or height < 1:
        raise BadImage(f"image is {width}x{height}: must have at least one pixel")
    if width * height > MAX_PIXELS:
        raise BadImage(f"image is {width}x{height}: at most {MAX_PIXELS} pixels are accepted; scale it down")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadImage(f"image is {width}x{height}: one side may be at most {MAX_RATIO} times the other; crop it")
    scale = min(1.0, math.sqrt(MAX_SPAN * CELL * CELL / (width * height)))
    while True:
        cells = Grid(max(1, round(height * scale / CELL)), max(1, round(width * scale / CELL)))
        if cells.span <= MAX_SPAN:
            return cells
        scale *= 0.98


def open_image(data: bytes) -> Image.Image:
    """Decode a PNG, JPEG, WebP, GIF (first frame) or BMP file to upright RGB; transparency becomes white.

    Raises:
        BadImage: Not such a file, damaged, or of a refused size.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            grid(*image.size)
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                white = Image.new("RGBA", upright.size, "white")
                return Image.alpha_composite(white, upright.convert("RGBA")).convert("RGB")
            return upright.convert("RGB")
    except BadImage:
        raise
    except UnidentifiedImageError as error:  # its own words are an address in our memory
        raise BadImage(f"image cannot be decoded as {', '.join(_FORMATS)}: it is none of them") from error
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise BadImage(f"image cannot be decoded as {', '.join(_FORMATS)}: {error}") from error


def patches(image: Image.Image, cells: Grid) -> Tensor:
    """Pixels in -1..1, bicubic, as [rows * MERGE, columns * MERGE, PATCH * PATCH * 3] float64."""
    size = (cells.columns * CELL, cells.rows * CELL)
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC), dtype=np.float64)
    high, wide = cells.rows * MERGE, cells.columns * MERGE
    split = (pixels / 127.5 - 1.0).reshape(high, PATCH, wide, PATCH, 3).transpose(0, 2, 1, 3, 4)
    return torch.from_numpy(np.ascontiguousarray(split)).view(high, wide, PATCH * PATCH * 3)
