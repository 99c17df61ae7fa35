"""What the engine has computed since its start, and why bounded replay spared none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers.reference.engine.request import ReplayState
from epd_workers.reference.model.replay import Work

if TYPE_CHECKING:
    from epd_workers.reference.engine.memory import Start
    from epd_workers.reference.engine.request import Limits, ReplayReason
    from epd_workers.reference.model.interface import Extend


class Tally:
    """Counters. The scheduler's lock guards them.

    Attributes:
        prompt_tokens: Prompt tokens computed.
        generated_tokens: Tokens chosen.
        steps: Model steps.
    """

    def __init__(self, limits: Limits, window: int) -> None:
        self.prompt_tokens = self.generated_tokens = self.steps = 0
        self._limits = limits
        self._window = window
        self._work = Work()
        self._spared = self._adopted = self._avoided = 0
        self._bypassed = self._trimmed = False

    def worked(self, work: Work) -> None:
        """Count rows times layers of a step."""
        self._work += work

    def began(self, start: Start) -> None:
        """Count what a prefix hit spared, once the first rows behind it have run."""
        if start.replayed or start.adopted:
            self._spared += start.hit - start.replayed
        self._adopted += start.adopted
        self._avoided += start.avoided

    def extended(self, extend: Extend) -> None:
        """Count a prompt's chunk."""
        self.prompt_tokens += len(extend.token_ids) - extend.replayed
        if len(extend.token_ids) > self._window:
            self._trimmed |= not extend.all_logits
            # For good once a prompt came that does not need every row: the reason must not flap.
            self._bypassed = not self._trimmed

    @property
    def replay(self) -> ReplayState:
        """Whether bounded replay has begun to run."""
        skips, repeats = self._work.skipped > 0, self._work.replayed > 0 or self._adopted > 0
        return ReplayState(
            decoder_active=skips,
            decoder_reason="" if skips else self._why_nothing_is_skipped(),
            preset=self._limits.replay or "",
            encoder_active=repeats,
            encoder_reason="" if repeats else self._why_nothing_runs_again(),
            work=self._work,
            spared=self._spared,
            adopted=self._adopted,
            avoided=self._avoided,
        )

    def _why_nothing_is_skipped(self) -> ReplayReason:
        limits = self._limits
        if not limits.replay:
            return "TurnedOff"
        # Encoder replay puts rows in front of a chunk, which then is longer than the window after all.
        if limits.chunked_prefill_size <= self._window and not limits.encoder_replay:
            return "ChunksWithinWindow"
        return "PromptLogprobs" if self._bypassed else "NoLongPromptYet"

    def _why_nothing_runs_again(self) -> ReplayReason:
        limits = self._limits
        if not limits.encoder_replay:
            return "TurnedOff"
        if not limits.prefix_cache:
            return "NoPrefixCache"
        return "PromptLogprobs" if self._bypassed else "NoPrefixHitYet"
