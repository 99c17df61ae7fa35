"""The picture that the demo and the tests ask about."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageDraw

RED_CIRCLE = "A red circle in the middle."
"""What is in it, in the Reference model's words."""


def red_circle() -> str:
    """A red circle on white, as a data URL."""
    image = Image.new("RGB", (96, 64), "white")
    ImageDraw.Draw(image).ellipse((30, 14, 66, 50), fill="red")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
