from __future__ import annotations

import contextlib
import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from epd_workers.reference.model.config import RELEASED, VisionConfig
from epd_workers.reference.model.image import MAX_PIXELS, MAX_RATIO, Plan, open_image, patches, plan
from epd_workers.reference.model.interface import BadImage

VISION = RELEASED.vision
SIDES = st.integers(1, 12000)
CONFIGS = st.builds(
    VisionConfig,
    patch_size=st.integers(1, 16),
    downsample_ratio=st.integers(1, 4),
    max_image_tokens=st.integers(4, 300) | st.integers(300, 2000),
    min_pixels=st.integers(1, 400_000),
    max_wh_ratio=st.none() | st.floats(1, 60),
)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def accepted(width: int, height: int) -> bool:
    return width * height <= MAX_PIXELS and max(width, height) <= MAX_RATIO * min(width, height)


@pytest.mark.parametrize(
    ("size", "canvas", "cells", "span"),
    [
        ((1344, 1344), (1302, 1302), (31, 31), 994),
        ((5000, 5000), (1302, 1302), (31, 31), 994),
        ((1302, 1302), (1302, 1302), (31, 31), 994),
        ((544, 544), (546, 546), (13, 13), 184),
        ((1, 1), (546, 546), (13, 13), 184),
        ((1920, 1080), (1708, 966), (23, 41), 968),
    ],
)
def test_released_plans(size: tuple[int, int], canvas: tuple[int, int], cells: tuple[int, int], span: int) -> None:
    plan_result = plan(*size, VISION)
    assert (plan_result.size, plan_result.cells, plan_result.span, plan_result.stretch) == (canvas, cells, span, False)
    assert plan_result.grid == (canvas[1] // 14, canvas[0] // 14)


@given(SIDES, SIDES, CONFIGS)
def test_every_size_gets_a_bounded_span_or_a_clear_refusal(width: int, height: int, vision: VisionConfig) -> None:
    if not accepted(width, height):
        with pytest.raises(BadImage, match=f"{width}x{height}"):
            plan(width, height, vision)
        return
    plan_result = plan(width, height, vision)
    high, wide = plan_result.grid
    ratio = vision.downsample_ratio
    assert min(high, wide) >= 1
    assert plan_result.cells == (-(-high // ratio), -(-wide // ratio))
    assert 4 <= plan_result.span == plan_result.cells[0] * (plan_result.cells[1] + 1) + 2 <= vision.max_image_tokens
    assert plan_result.size == (wide * vision.patch_size, high * vision.patch_size)


@given(SIDES, SIDES)
def test_proportions_are_kept_within_a_patch(width: int, height: int) -> None:
    """Some scale of the picture is the canvas but for a patch, and the pixel that rounding small pictures costs."""
    assume(accepted(width, height))
    canvas, slack = plan(width, height, VISION).size, VISION.patch_size + 1
    scales = [((side - slack) / own, (side + slack) / own) for side, own in zip(canvas, (width, height), strict=True)]
    assert max(low for low, _ in scales) < min(high for _, high in scales)


@given(SIDES, SIDES)
def test_small_pictures_grow_to_the_least_size(width: int, height: int) -> None:
    assume(accepted(width, height) and width * height < VISION.min_pixels)
    wide, high = plan(width, height, VISION).size
    grown = (VISION.min_pixels / (width * height)) ** 0.5
    assert wide > width * grown - 1
    assert high > height * grown - 1


@given(SIDES, SIDES)
def test_a_picture_and_its_mirror_on_the_diagonal(width: int, height: int) -> None:
    assume(accepted(width, height))
    upright, turned = plan(width, height, VISION), plan(height, width, VISION)
    shrunk = any(a < b for a, b in (*zip(upright.size, (width, height)), *zip(turned.size, (height, width))))  # noqa: B905 - pairs
    if not shrunk:
        assert upright.grid == turned.grid[::-1]


def test_larger_squares_never_cost_less() -> None:
    spans = [plan(side, side, VISION).span for side in range(1, 5600, 7)]
    assert spans == sorted(spans)
    assert {spans[0], spans[-1]} == {184, 994}


def test_pictures_too_long_for_the_budget_become_one_line_or_column() -> None:
    small = replace(VISION, max_image_tokens=40, min_pixels=1)
    assert plan(20000, 100, small).cells == (1, 37)
    assert plan(100, 20000, small).cells == (19, 1)
    assert plan(14 * 50, 14, replace(small, downsample_ratio=1, max_image_tokens=30)).cells == (1, 27)


def test_a_limit_on_width_stretches() -> None:
    vision = replace(VISION, max_wh_ratio=2.0, min_pixels=1)
    wide = plan(280, 28, vision)
    assert (wide.size, wide.stretch) == ((56, 28), True)
    assert [plan(width, 28, vision).stretch for width in (55, 56, 57)] == [False, True, True]
    assert plan(28, 280, vision) == plan(28, 280, replace(vision, max_wh_ratio=None))
    half = Image.new("RGB", (280, 28), "black")
    half.paste((255, 255, 255), (140, 0, 280, 28))
    rows = patches(half, wide).view(2, 4, 3, 14, 14)
    assert rows[:, 0].eq(-1).all()
    assert rows[:, 3].eq(1).all()


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.randoms(use_true_random=False))
def test_order_of_pixels(high: int, wide: int, side: int, random: object) -> None:
    generator = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined] # Hypothesis' own random
    pixels = generator.integers(0, 256, (high * side, wide * side, 3), dtype=np.uint8)
    actual = patches(Image.fromarray(pixels), Plan((high, wide), (1, 1), side))
    assert (actual.shape, actual.dtype) == ((high * wide, 3 * side * side), torch.float32)
    for line in range(high * side):
        for column in range(wide * side):
            for channel in range(3):
                patch = (line // side) * wide + column // side
                at = channel * side * side + (line % side) * side + column % side
                assert abs(actual[patch, at].item() - (int(pixels[line, column, channel]) / 127.5 - 1)) < 1e-6


def test_padding_is_grey() -> None:
    picture = Image.new("RGB", (14, 20), "red")
    layout = plan(14, 20, replace(VISION, min_pixels=1))
    assert layout.grid == (2, 1)
    rows = patches(picture, layout).view(2, 3, 14, 14)
    lines = torch.cat((rows[0], rows[1]), 1)
    grey = (127 / 255 - 0.5) / 0.5
    assert torch.allclose(lines[:, [*range(4), *range(24, 28)]], torch.tensor(grey))
    assert torch.equal(lines[:, 4:24], torch.tensor([1.0, -1.0, -1.0])[:, None, None].expand(3, 20, 14))


def test_resizing_is_bicubic() -> None:
    """Beyond an edge it overshoots, which no interpolation between neighbours does."""
    step = Image.new("RGB", (60, 60), (100, 100, 100))
    step.paste((150, 150, 150), (30, 0, 60, 60))
    for layout in (plan(60, 60, VISION), replace(plan(60, 60, VISION), stretch=True)):
        levels = patches(step, layout) * 127.5 + 127.5
        assert levels.min() < 98
        assert levels.max() > 152


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


@given(st.integers(8, len(GOOD) - 1), st.binary(min_size=1, max_size=8))
def test_damage_never_raises_anything_else(at: int, noise: bytes) -> None:
    with contextlib.suppress(BadImage):
        assert open_image(GOOD[:at] + noise + GOOD[at + len(noise) :]).mode == "RGB"


def declared(width: int, height: int) -> bytes:
    """A PNG file of this size, as far as its header goes."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(b"")
    chunks = b"".join(struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (head, body))
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((10000, 1), r"^image is 10000x1: one side may be at most 200 times the other; crop it$"),
        ((1, 10000), r"^image is 1x10000: one side may be at most 200 times the other; crop it$"),
        ((20000, 2000), r"^image is 20000x2000: at most 32000000 pixels are accepted; scale it down$"),
        ((10000, 10000), r"^image is (10000x10000|too large): at most 32000000 pixels are accepted; scale it down$"),
        ((60000, 60000), r"^image is too large: at most 32000000 pixels are accepted; scale it down$"),
    ],
)
def test_a_refused_size_is_refused_before_a_pixel_is_unpacked(size: tuple[int, int], message: str) -> None:
    with pytest.raises(BadImage, match=message):
        open_image(declared(*size))
    if size[0] * size[1] < 10**8:
        with pytest.raises(BadImage, match=message):
            plan(*size, VISION)
