"""What a role does with one job, and the role that does all of it alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.engine.request import Step
    from epd_workers.reference.serving.record import Leg, Record
    from epd_workers.reference.serving.vision import LoadedPrompt, Prompts
    from epd_workers.reference.serving.work import Job


@dataclass(frozen=True)
class Answer:
    """The tokens of one answer as they come.

    Attributes:
        token_ids: The prompt, image placeholders included.
        steps: Ends after the step whose ``finish`` is set; on a prefill server it has one step, its only token.
    """

    token_ids: Sequence[int]
    steps: AsyncIterator[Step]


@dataclass(frozen=True)
class Assignment:
    """One job with all that belongs to it: its request's prompts and record, its leg, and its name in the engine."""

    job: Job
    prompts: Prompts
    record: Record
    leg: Leg
    engine_id: str


class Runner(Protocol):
    """A role's way to answer one job. Leaving the context frees everything that the job holds, on both ends."""

    queues: Queues

    def answer(self, assignment: Assignment) -> AbstractAsyncContextManager[Answer]:
        """Answer one job."""

    def abandon(self, job: Job, error: Exception) -> None:
        """Report the failure to the job's other half, if that waits; perhaps before the job was begun."""


class Queues:
    """How many jobs are at each point of a transfer."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def count(self, name: str) -> Iterator[None]:
        """Count one job in the queue ``name`` for as long as the body runs."""
        self._counts[name] += 1
        try:
            yield
        finally:
            self._counts[name] -= 1

    def __getitem__(self, name: str) -> int:
        return self._counts[name]


async def load_prompt(assignment: Assignment) -> LoadedPrompt:
    """Load a job's prompt and note what that took."""
    leg = assignment.leg
    with leg.stage("encode"):
        loaded = await assignment.prompts.get(assignment.job.prompt)
    if not loaded.images:
        del leg.stages["encode"]
    leg.prompt_tokens = len(loaded.prompt.token_ids)
    leg.images = [
        {"encoder": image.encoder, "tokens": len(image.rows), "ms": round(1000 * image.seconds, 3)}
        for image in loaded.images
    ]
    return loaded


class LoneRunner:
    """A role that no other server waits for."""

    def __init__(self) -> None:
        self.queues = Queues()

    def abandon(self, job: Job, error: Exception) -> None:
        """Do nothing: only the client sees a failure here."""


class AggregatedRunner(LoneRunner):
    """Encodes, prefills and decodes in one process."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    @contextlib.asynccontextmanager
    async def answer(self, assignment: Assignment) -> AsyncIterator[Answer]:
        """See `Runner`."""
        prompt = (await load_prompt(assignment)).prompt
        stream = self._engine.generate(assignment.engine_id, prompt, assignment.job.sampling)
        try:
            yield Answer(prompt.token_ids, aiter(stream))
        finally:
            await stream.aclose()
