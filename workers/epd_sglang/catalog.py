"""All hooks of the product, in the order in which they are applied to a name that several of them change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epd_sglang.hook import Hook


def hooks() -> tuple[Hook, ...]:
    """The hooks of every part."""
    from epd_sglang.window_pool import hooks as window_pool  # noqa: PLC0415 - only for who applies them

    return window_pool.hooks()


def open_gate() -> None:
    """Let the engine accept what the hooks make possible; the last step, so that a failure before it refuses."""
