from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from epd_workers.reference.model.image import CELL, MAX_PIXELS, MAX_RATIO, MAX_SPAN, grid, open_image
from epd_workers.reference.model.interface import BadImage

CALM = settings(deadline=None)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@CALM
@given(st.integers(1, 12000), st.integers(1, 12000))
def test_every_size_gets_a_bounded_span_or_a_clear_refusal(width: int, height: int) -> None:
    if width * height > MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
        with pytest.raises(BadImage, match=f"{width}x{height}"):
            grid(width, height)
        return
    cells = grid(width, height)
    assert 4 <= cells.span == cells.rows * (cells.columns + 1) + 2 <= MAX_SPAN
    assert cells.rows * CELL <= height + CELL
    assert cells.columns * CELL <= width + CELL


def test_extreme_aspect_ratio_is_refused() -> None:
    with pytest.raises(BadImage, match=r"10000x1.*crop"):
        grid(10000, 1)


def test_known_spans() -> None:
    assert [grid(*size).span for size in ((1, 1), (42, 42), (84, 42), (42, 84), (420, 420))] == [4, 4, 5, 6, 112]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats(kind: str) -> None:
    image = open_image(encoded(Image.new("RGB", (50, 30), "red"), kind))
    red, green, blue = image.getpixel((10, 10))  # type: ignore[misc]
    assert (image.size, image.mode) == ((50, 30), "RGB")
    assert red > 240
    assert green < 15 > blue


def test_transparency_becomes_white() -> None:
    assert open_image(encoded(Image.new("RGBA", (5, 5), (0, 0, 0, 0)))).getpixel((0, 0)) == (255, 255, 255)


def test_orientation_is_applied_before_the_size_counts() -> None:
    exif = Image.Exif()
    exif[274] = 6
    assert open_image(encoded(Image.new("RGB", (60, 20)), "JPEG", exif=exif)).size == (20, 60)


GOOD = encoded(Image.effect_noise((64, 64), 50).convert("RGB"))


@pytest.mark.parametrize("data", [b"", b"hello", GOOD[:100], GOOD[:-200], b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_not_an_image(data: bytes) -> None:
    with pytest.raises(BadImage, match="cannot be decoded as PNG"):
        open_image(data)


@CALM
@given(st.integers(8, len(GOOD) - 1), st.binary(min_size=1, max_size=8))
def test_damage_never_raises_anything_else(at: int, noise: bytes) -> None:
    with contextlib.suppress(BadImage):
        assert open_image(GOOD[:at] + noise + GOOD[at + len(noise) :]).mode == "RGB"


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(BadImage, match=r"20000x2000.*scale it down"):
        open_image(encoded(Image.new("1", (20000, 2000))))
