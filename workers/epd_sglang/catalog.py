"""All hooks of the product, in the order in which they are applied to a name that several of them change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epd_sglang.hook import Hook


def hooks() -> tuple[Hook, ...]:
    """The hooks of every part."""
    # Imported here: only who applies them needs them.
    from epd_sglang.announcement import Announce  # noqa: PLC0415
    from epd_sglang.encode.hooks import HOOKS as ENCODE  # noqa: PLC0415
    from epd_sglang.replay_metrics import hooks as replay_metrics  # noqa: PLC0415
    from epd_sglang.window_pool import hooks as window_pool  # noqa: PLC0415

    # The counting stands outside the pool: a hit that takes its window from there runs no rows again.
    return (*ENCODE, *window_pool.hooks(), *replay_metrics.hooks(), Announce())


def open_gate() -> None:
    """Let the engine accept what the hooks make possible; the last step, so that a failure before it refuses."""
    from epd_sglang.encode import gate  # noqa: PLC0415 - as above

    gate.open_gate()
