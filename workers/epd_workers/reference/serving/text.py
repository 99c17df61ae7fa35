"""From tokens to the text that may already be shown."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epd_workers.reference.engine.request import Aborted, Finish, Sampling, Step
from epd_workers.reference.model.tokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from epd_workers.reference.model.tokenizer import Tokenizer
    from epd_workers.reference.serving.runner import Assignment, Runner


@dataclass(frozen=True)
class Delta:
    """What one step adds to an answer.

    Attributes:
        index: The answer's place among the choices.
        text: Text that is final; may be empty while a character or a stop string is incomplete.
        step: The step itself.
        token_ids: The prompt.
        completion_tokens: Tokens of the answer so far.
    """

    index: int
    text: str
    step: Step
    token_ids: Sequence[int]
    completion_tokens: int

    @property
    def finish(self) -> Finish | None:
        """Why the answer ends here."""
        return self.step.finish


class TextCutter:
    """Gives out text as soon as no stop string can reach back into it."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling) -> None:
        self._stops = sampling.stop
        self._detokenizer = Detokenizer(tokenizer)
        self._held = ""

    def push(self, step: Step) -> str:
        """Return the text that has become final with this step."""
        # A matched stop id ends the answer and is not part of it.
        if not isinstance(step.matched_stop, int):
            self._held += self._detokenizer.push(step.token_id)
        if step.finish:
            return self._last(step.matched_stop)
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        ready = self._held[: len(self._held) - keep]
        self._held = self._held[len(ready) :]
        return ready

    def _last(self, matched: int | str | None) -> str:
        text = self._held + self._detokenizer.finish()
        cut = text.find(matched) if isinstance(matched, str) else -1
        return text[:cut] if cut >= 0 else text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


async def deltas(runner: Runner, assignment: Assignment) -> AsyncGenerator[Delta]:
    """Answer one job, and note on its leg when its first and its last token came.

    Raises:
        Aborted: The engine gave the request up.
    """
    cutter = TextCutter(assignment.prompts.tokenizer, assignment.job.sampling)
    leg = assignment.leg
    first = 0.0
    async with runner.answer(assignment) as answer:
        async for step in answer.steps:
            if step.finish == "abort":
                raise Aborted("the engine gave this request up")
            leg.completion_tokens += 1
            if not first:
                first = time.monotonic()
                leg.note("first_token", assignment.record.age)
            if leg.role != "prefill":
                leg.note("decode", time.monotonic() - first)
            yield Delta(assignment.job.index, cutter.push(step), step, answer.token_ids, leg.completion_tokens)
