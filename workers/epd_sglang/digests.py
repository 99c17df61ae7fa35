"""SHA-256 of the engine's files that hooks lean on, made by `python -m epd_sglang.digests` from the installed engine."""

from __future__ import annotations

from typing import Final

DIGESTS: Final[dict[str, str]] = {}
