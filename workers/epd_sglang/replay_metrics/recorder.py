"""Follows the engine's steps and counts what each of them ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from epd_sglang.replay_metrics.tally import Part, decoder_work, encoder_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_sglang.replay_metrics.metrics import Metrics
    from epd_sglang.replay_metrics.tally import Tally


class Batch(Protocol):
    """What is used of the engine's `ScheduleBatch`.

    Source: SGLang 0.5.23, srt/managers/schedule_batch.py:2495 and 2543.
    """

    @property
    def reqs(self) -> Sequence[Any]:
        """Its requests."""

    @property
    def decoding_reqs(self) -> Sequence[Any] | None:
        """Those that only decode, which come last."""

    @property
    def prefix_lens(self) -> Sequence[int]:
        """Tokens of each that have run before."""

    @property
    def extend_lens(self) -> Sequence[int]:
        """Rows of each."""

    @property
    def encoder_swa_reset(self) -> Sequence[bool] | None:
        """Whether each begins with this step; none without encoder replay."""


class Recorder:
    """One scheduler process's steps.

    What the engine lays out while it captures graphs belongs to no step, and is not counted.

    Args:
        tally: Of what has been seen.
        metrics: Where it shows.
    """

    def __init__(self, tally: Tally, metrics: Metrics) -> None:
        self._tally = tally
        self._metrics = metrics
        self._replayed: Sequence[int] | None = None
        self._late: Sequence[int] | None = None
        self._explain()

    def begin(self) -> None:
        """A step begins."""
        self._replayed = self._late = None

    def folded(self, replayed: Sequence[int]) -> None:
        """So many rows of each request's prefix run again in front of the step's own."""
        self._replayed = replayed

    def laid_out(self, late: Sequence[int]) -> None:
        """So many rows of each request run in the late layers."""
        self._late = late

    def end(self, batch: Batch) -> None:
        """The step of these requests has run."""
        parts = self._parts(batch)
        if not parts:
            return
        self._tally.count(parts)
        self._metrics.worked("encoder", encoder_work(parts, self._tally.limits))
        self._metrics.worked("decoder", decoder_work(parts, self._tally.limits))
        self._explain()

    def _parts(self, batch: Batch) -> list[Part]:
        # Decode rows that share a step with prompts come last.
        prompts = len(batch.reqs) - len(batch.decoding_reqs or ())
        resets = batch.encoder_swa_reset or [False] * prompts
        parts = []
        for number in range(prompts):
            rows, replayed = batch.extend_lens[number], self._replayed[number] if self._replayed else 0
            late = self._late[number] if self._late else rows + replayed
            parts.append(Part(rows, replayed, late, batch.prefix_lens[number] if resets[number] else 0))
        return parts

    def _explain(self) -> None:
        self._metrics.explain("encoder", self._tally.encoder)
        self._metrics.explain("decoder", self._tally.decoder)
