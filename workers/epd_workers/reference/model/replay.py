"""Decoder bounded replay: which rows of a prefill run the decoder half, and how far back they may look.

The tricky idea: every global entry of the decoder half is a projection of the encoder's output (layer 20's input in
the released model), so all rows need it, but the layers behind it matter only for the windows that decode will read:
the last 128 rows. Rows that were never run have no window entries, so a floor keeps everyone from reading them. The
result is an approximation, not the full run.

Sources: SGLang 0.5.23, models/deepseek_v4.py and kernels/ops/attention/dsv4/attn_metadata_kernels.py (preset
`0.5.23`); SGLang commit 37ae292e as described publicly (preset `dsv41-37ae292e`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epd_kernels.tail_layout.policy import Policy

if TYPE_CHECKING:
    from epd_workers.reference.model.config import TextConfig


@dataclass(frozen=True)
class Preset:
    """One engine version's rule.

    Attributes:
        name: The version.
        source_whole: Whether the last KV source runs on all rows; if not, only its global projection does.
        policy: Where the late layers' floor is.
        rows: Rows of a request that the late layers run; None takes the sliding window. With `halo` rows and
            `Policy.TAIL` the result is exact.
    """

    name: str
    source_whole: bool
    policy: Policy
    rows: int | None = None

    def first_late(self, text: TextConfig) -> int:
        """The first layer that runs on the tail alone."""
        return text.split + 1 if self.source_whole else text.split


PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset("0.5.23", source_whole=False, policy=Policy.WINDOW),
        Preset("dsv41-37ae292e", source_whole=True, policy=Policy.TAIL),
    )
}


@dataclass(frozen=True)
class Work:
    """Rows times layers of one or more steps, by half.

    Attributes:
        encoder: Run in the encoder half.
        decoder: Run in the decoder half.
        skipped: Rows times layers of the decoder half that replay left out.
        replayed: Rows that ran again before a prefix hit's end (encoder bounded replay), counted once each.
    """

    encoder: int = 0
    decoder: int = 0
    skipped: int = 0
    replayed: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.encoder + other.encoder,
            self.decoder + other.decoder,
            self.skipped + other.skipped,
            self.replayed + other.replayed,
        )


def early_layers(preset: Preset | None, text: TextConfig) -> int:
    """How many layers from the first one on run on all rows; None runs all of them."""
    layers = text.num_hidden_layers
    return layers if preset is None else min(preset.first_late(text), layers)


def tail_rows(preset: Preset | None, rows: int, window: int, *, whole: bool) -> int:
    """How many of a request's `rows` of this step the late layers run: the last ones.

    Args:
        preset: The rule in force; None runs everything.
        rows: Rows of this step, replayed ones included.
        window: The sliding window.
        whole: The request needs every row (prompt log-probabilities, decode).
    """
    return rows if preset is None or whole else min(preset.rows or window, rows)


def halo(layers: int, window: int) -> int:
    """Rows that make the last `window` rows behind this many late layers exact: each layer looks window - 1 back."""
    return window + (layers - 1) * (window - 1)
