"""What the engine has computed since its start, and why bounded replay spared none of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Reason = Literal[
    "", "TurnedOff", "NoLongPromptYet", "NoPrefixHitYet", "PromptLogprobs", "ChunksWithinWindow", "NoPrefixCache"
]
WINDOW: Final = 128
"""Rows that the late layers run at most. Source: SGLang 0.5.23, srt/layers/attention/deepseek_v4_backend.py:1833."""


@dataclass(frozen=True)
class Limits:
    """How the engine was started.

    Attributes:
        encoder_layers: Layers that run on all rows.
        decoder_layers: Layers behind them, which run on the last rows of a chunk if decoder replay is on. The first of
            them also projects all rows to keys and values, which counts as none of its own rows.
        encoder_replay: Of a prefix hit only the last rows run again.
        decoder_replay: Whether it is on.
        prefix_cache: Whether there can be a prefix hit.
        chunk: Most rows of a step; none without a limit.
    """

    encoder_layers: int
    decoder_layers: int
    encoder_replay: bool
    decoder_replay: bool
    prefix_cache: bool
    chunk: int | None


@dataclass(frozen=True)
class Part:
    """One prompt's rows in a step.

    Attributes:
        rows: Those that the step was scheduled for.
        replayed: Those of a prefix hit that ran again in front of them.
        late: Rows that the decoder half ran; at most all of both.
        hit: Tokens of a prefix hit that begins with this step, under encoder replay.
    """

    rows: int
    replayed: int = 0
    late: int = 0
    hit: int = 0


@dataclass(frozen=True)
class Work:
    """Rows times layers.

    Attributes:
        run: Computed.
        skipped: What replay spared.
    """

    run: int = 0
    skipped: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.run + other.run, self.skipped + other.skipped)


def encoder_work(parts: Iterable[Part], limits: Limits) -> Work:
    """Of the layers that run on all rows: a hit spares the rows in front of those that run again."""
    parts = tuple(parts)
    run = sum(part.rows + part.replayed for part in parts)
    skipped = sum(part.hit - part.replayed for part in parts)
    return Work(run * limits.encoder_layers, skipped * limits.encoder_layers)


def decoder_work(parts: Iterable[Part], limits: Limits) -> Work:
    """Of the late layers. Rows of a hit that run again were not the prompt's work, and so spare none of it."""
    parts = tuple(parts)
    run = sum(part.late for part in parts)
    skipped = sum(max(0, part.rows - part.late) for part in parts)
    return Work(run * limits.decoder_layers, skipped * limits.decoder_layers)


class Tally:
    """Whether bounded replay has made a difference, and why not.

    Args:
        limits: How the engine was started.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._skips = self._repeats = self._trimmed = self._long = False

    def count(self, parts: Iterable[Part]) -> None:
        """Take a step in."""
        for part in parts:
            self._skips |= part.late < part.rows
            self._repeats |= part.hit > 0
            if part.rows + part.replayed > WINDOW:
                self._long = True
                self._trimmed |= part.late < part.rows + part.replayed

    @property
    def encoder(self) -> Reason:
        """Why encoder replay has made no difference; empty if it has."""
        if self._repeats:
            return ""
        if not self.limits.encoder_replay:
            return "TurnedOff"
        if not self.limits.prefix_cache:
            return "NoPrefixCache"
        return "PromptLogprobs" if self._bypassed else "NoPrefixHitYet"

    @property
    def decoder(self) -> Reason:
        """Why decoder replay has made no difference; empty if it has."""
        limits = self.limits
        if self._skips:
            return ""
        if not limits.decoder_replay:
            return "TurnedOff"
        # Encoder replay puts rows in front of a chunk, which then is longer than the window after all.
        if limits.chunk is not None and limits.chunk <= WINDOW and not limits.encoder_replay:
            return "ChunksWithinWindow"
        return "PromptLogprobs" if self._bypassed else "NoLongPromptYet"

    @property
    def _bypassed(self) -> bool:
        """Whether every long prompt so far wanted all of its rows, as prompt log-probabilities do."""
        return self.limits.decoder_replay and self._long and not self._trimmed
