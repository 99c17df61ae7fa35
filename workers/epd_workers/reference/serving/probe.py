"""Whether a server answers at all, and whether what it says makes sense: the checkpoint's own question."""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from PIL import Image

from epd_workers.reference.engine.request import PromptTooLong, Sampling
from epd_workers.reference.model.tokenizer import Message
from epd_workers.reference.serving.record import Leg, Record
from epd_workers.reference.serving.runner import Assignment
from epd_workers.reference.serving.text import deltas
from epd_workers.reference.serving.vision import Prompts
from epd_workers.reference.serving.work import FAKE_HOST, Job, PromptParts, Rendezvous, Work

if TYPE_CHECKING:
    from pathlib import Path

    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.model.tokenizer import Tokenizer
    from epd_workers.reference.serving.options import Options
    from epd_workers.reference.serving.runner import Runner

TRAINING = "training.json"
PROBE_TEXT = "health"
PROBE_SIDE = 32


class NoRoom(Exception):
    """The limits that a server was started with leave no room for the shortest proof that it works."""


class WrongAnswer(Exception):
    """The model answers the checkpoint's own question wrongly; its weights or this engine are broken."""


@dataclass(frozen=True)
class Question:
    """What a checkpoint knows for sure: a user's message and the greedy answer."""

    prompt: str
    answer: str

    @classmethod
    def of(cls, directory: Path) -> Question | None:
        """Read a checkpoint's question; None if it has none.

        Raises:
            WrongAnswer: It has one that cannot be read.
        """
        path = directory / TRAINING
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise WrongAnswer(f"{path} cannot be read: {error}; copy the file again or remove it") from error
        probe = data.get("probe") if isinstance(data, dict) else None
        if probe is None:
            return None
        values = [probe.get(name) for name in ("prompt", "answer")] if isinstance(probe, dict) else []
        texts = [value for value in values if isinstance(value, str) and value]
        if len(texts) != 2:
            raise WrongAnswer(f"{path}: probe must have the non-empty strings prompt and answer; correct or remove it")
        return cls(texts[0], texts[1])


class Probe(Protocol):
    """Proves that a server works."""

    async def __call__(self, *, semantic: bool) -> bool:
        """Do a little of this server's work.

        Args:
            semantic: Ask the checkpoint's question, where there is one and this role can answer it.

        Returns:
            Whether it was asked.

        Raises:
            WrongAnswer: It was, and the answer is wrong.
            NoRoom: Question and answer are longer than what this server takes.
        """


@dataclass(frozen=True)
class EncoderProbe:
    """Encodes one small picture."""

    engine: Engine

    async def __call__(self, *, semantic: bool) -> bool:  # noqa: ARG002 - an encoder cannot be asked anything
        """See `Probe`."""
        await self.engine.encode(Image.new("RGB", (PROBE_SIDE, PROBE_SIDE)))
        return False


@dataclass(frozen=True)
class RunnerProbe:
    """Answers a short prompt.

    Attributes:
        options: How the server was started.
        runner: Its role.
        tokenizer: The model's.
        question: The checkpoint's own.
    """

    options: Options
    runner: Runner
    tokenizer: Tokenizer
    question: Question | None

    async def __call__(self, *, semantic: bool) -> bool:
        """See `Probe`."""
        question = self.question if semantic else None
        # What a decode server says depends on the first token, which would come from the missing peer.
        if question is None or self.options.role == "decode":
            await self._answer(PromptParts((PROBE_TEXT,)), 2 if self.options.role == "decode" else 1, plain=True)
            return False
        prompt = PromptParts(self.tokenizer.render([Message("user", (question.prompt,))]))
        tokens = 1 if self.options.role == "prefill" else len(self.tokenizer.encode(question.answer)) + 1
        answer = await self._answer(prompt, tokens, plain=False)
        right = question.answer.startswith(answer) and bool(answer) if tokens == 1 else answer == question.answer
        if not right:
            begins = "begin with" if tokens == 1 else "be"
            raise WrongAnswer(
                f"the checkpoint's own question {question.prompt!r} is answered {answer!r}: must {begins} "
                f"{question.answer!r}; copy the checkpoint again, or run the version that it was trained with"
            )
        return True

    async def _answer(self, prompt: PromptParts, tokens: int, *, plain: bool) -> str:
        """The greedy answer; a plain one runs to its last token whatever it says."""
        # An answer that the context cuts short would look like a wrong one.
        length = sum(len(self.tokenizer.encode(part)) if isinstance(part, str) else 1 for part in prompt.parts) + tokens
        if length > self.options.context_length:
            raise NoRoom(
                f"the question that proves this server does not fit into it, {length} tokens with its answer: "
                "raise --context-length"
            )
        meeting = Rendezvous(FAKE_HOST, None, 0) if self.options.disaggregated else None
        job = Job(0, 0, Sampling(max_new_tokens=tokens, temperature=0.0, ignore_eos=plain), meeting)
        prompts = Prompts(Work((prompt,), (job,)), None, self.tokenizer, "probe")
        record = Record("probe", (), "probe")
        assignment = Assignment(job, prompts, record, Leg(self.options.role, self.options.pod), uuid.uuid4().hex)
        try:
            async with contextlib.aclosing(deltas(self.runner, assignment)) as steps:
                return "".join([delta.text async for delta in steps])
        except PromptTooLong as error:
            raise NoRoom(
                f"the question that proves this server does not fit into it: {error}; raise --max-total-tokens"
            ) from error
        finally:
            await prompts.close()
