"""The prefill role: compute the prompt's caches, push them to the decode server, answer with the first token."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from epd_workers.reference.serving.runner import Answer, Assignment, Queues, load_prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.engine.job import Piece
    from epd_workers.reference.engine.request import Handover, Step
    from epd_workers.reference.serving.vision import LoadedPrompt
    from epd_workers.reference.serving.work import Job, Rendezvous
    from epd_workers.reference.transfer.room import Room
    from epd_workers.reference.transfer.sender import PageServer


class PrefillRunner:
    """Serves the prefill half of jobs.

    A job's answer comes only when the decode server has confirmed every piece: a count of this server's open
    requests thereby counts transfers too.
    """

    def __init__(self, engine: Engine, pages: PageServer, handshake_seconds: float) -> None:
        self.queues = Queues()
        self._engine = engine
        self._pages = pages
        self._handshake_seconds = handshake_seconds

    @contextlib.asynccontextmanager
    async def answer(self, assignment: Assignment) -> AsyncIterator[Answer]:
        """See `Runner`."""
        rendezvous = assignment.job.rendezvous
        assert rendezvous is not None
        if rendezvous.fake:
            loaded = await load_prompt(assignment)
            handover = await self._compute(assignment, loaded, None)
        else:
            loaded, handover = await self._transfer(assignment, rendezvous)
        yield Answer(loaded.prompt.token_ids, _only(handover.first))

    def abandon(self, job: Job, error: Exception) -> None:
        """See `Runner`."""
        if job.rendezvous is not None and not job.rendezvous.fake:
            self._pages.refuse(job.rendezvous.room, error)

    async def _transfer(self, assignment: Assignment, rendezvous: Rendezvous) -> tuple[LoadedPrompt, Handover]:
        leg = assignment.leg
        leg.room = rendezvous.room
        deadline = time.monotonic() + self._handshake_seconds
        async with self._pages.open(rendezvous.room) as room:
            with self.queues.count("bootstrap"):
                loaded = await room.guard(load_prompt(assignment))
                with leg.stage("peer_wait"):
                    await room.connected(max(deadline - time.monotonic(), 0.0))
            leg.peer = room.peer
            with self.queues.count("inflight"):
                handover = await room.guard(self._compute(assignment, loaded, room))
                with leg.stage("transfer"):
                    leg.transfer_bytes = room.sent_bytes
                    await room.hand_over(_meta(assignment, loaded, handover))
        return loaded, handover

    async def _compute(self, assignment: Assignment, loaded: LoadedPrompt, room: Room | None) -> Handover:
        def on_piece(piece: Piece) -> None:
            if room is not None:
                room.post_piece(piece)

        with assignment.leg.stage("prefill"):
            return await self._engine.prefill(assignment.engine_id, loaded.prompt, assignment.job.sampling, on_piece)


def _meta(assignment: Assignment, loaded: LoadedPrompt, handover: Handover) -> dict[str, object]:
    # The prompt's own log-probabilities are this side's to report, and as large as the prompt.
    first = dataclasses.replace(handover.first, prompt_logprobs=())
    return {
        "handover": dataclasses.replace(handover, first=first).to_json(),
        "token_ids": list(loaded.prompt.token_ids),
        "leg": assignment.leg.state(),
    }


async def _only(first: Step) -> AsyncIterator[Step]:
    yield first if first.finish else dataclasses.replace(first, finish="length")
