"""The decode role: fetch a prompt's caches from the prefill server that the router named and go on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from epd_workers.reference.engine.check import expected_pieces
from epd_workers.reference.engine.job import Piece
from epd_workers.reference.engine.request import Handover, InvalidRequest, Prompt, Step
from epd_workers.reference.model.interface import LayoutMismatch
from epd_workers.reference.serving.errors import invalid
from epd_workers.reference.serving.runner import Answer, Assignment, LoneRunner, load_prompt
from epd_workers.reference.transfer.errors import DuplicateRoomError, TransferError
from epd_workers.reference.transfer.route import base_url, find

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    import aiohttp

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.serving.work import Rendezvous
    from epd_workers.reference.transfer.receiver import Received, Receiver

FAKE_FIRST_TEXT = " "


class DecodeRunner(LoneRunner):
    """Serves the decode half of jobs.

    It never looks at images nor counts prompt tokens itself: both are in what the prefill hands over.
    """

    def __init__(
        self,
        engine: Engine,
        geometry: Geometry,
        receiver: Receiver,
        session: aiohttp.ClientSession,
        bootstrap_port: int,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._geometry = geometry
        self._receiver = receiver
        self._session = session
        self._bootstrap_port = bootstrap_port
        self._rooms: set[int] = set()

    @contextlib.asynccontextmanager
    async def answer(self, assignment: Assignment) -> AsyncIterator[Answer]:
        """See `Runner`."""
        rendezvous = assignment.job.rendezvous
        assert rendezvous is not None
        if rendezvous.fake:
            prompt, handover, pieces = await self._fake(assignment)
        else:
            with self._room(rendezvous.room):
                received = await self._fetch(assignment, rendezvous)
            prompt, handover = self._read(received.meta, assignment)
            pieces = received.pieces
        assignment.leg.prompt_tokens = len(prompt.token_ids)
        try:
            stream = self._engine.resume(assignment.engine_id, prompt, assignment.job.sampling, handover, pieces)
        except (InvalidRequest, LayoutMismatch) as error:
            raise TransferError(f"the prefill server's handover cannot be used: {error}") from error
        try:
            yield Answer(prompt.token_ids, aiter(stream))
        finally:
            await stream.aclose()

    @contextlib.contextmanager
    def _room(self, number: int) -> Iterator[None]:
        if number in self._rooms:
            raise DuplicateRoomError(number)
        self._rooms.add(number)
        try:
            yield
        finally:
            self._rooms.discard(number)

    async def _fetch(self, assignment: Assignment, rendezvous: Rendezvous) -> Received:
        leg = assignment.leg
        leg.room = rendezvous.room
        base = base_url(rendezvous.host, rendezvous.port or self._bootstrap_port)
        leg.peer = base
        seconds = self._receiver.timeouts.handshake
        with self.queues.count("prealloc"), leg.stage("route"):
            route = await find(self._session, base, self._receiver.layout, seconds)
        with self.queues.count("transfer"):
            received = await self._receiver.receive(route.host, route.port, rendezvous.room)
        leg.note("peer_wait", received.wait_seconds)
        leg.note("transfer", received.transfer_seconds)
        leg.transfer_bytes = received.size
        return received

    def _read(self, meta: Mapping[str, Any], assignment: Assignment) -> tuple[Prompt, Handover]:
        try:
            handover = Handover.from_json(meta["handover"])
            token_ids = meta["token_ids"]
            leg = meta["leg"]
            size = assignment.prompts.tokenizer.vocab_size
            if not isinstance(leg, dict) or not all(type(item) is int and 0 <= item < size for item in token_ids):
                raise TransferError("the prefill server's handover has an unusable prompt")
        except (KeyError, TypeError, InvalidRequest) as error:
            raise TransferError(f"the prefill server's handover cannot be read: {error}") from error
        if isinstance(leg.get("pod"), str):
            assignment.leg.peer = leg["pod"]
        assignment.record.others.append({**leg, "index": assignment.job.index})
        return Prompt(token_ids, salt=assignment.prompts.salt), handover

    async def _fake(self, assignment: Assignment) -> tuple[Prompt, Handover, list[Piece]]:
        if assignment.prompts.has_images(assignment.job.prompt):
            raise invalid("a request without a peer has nobody to encode its images: send text only", "bootstrap_host")
        prompt = (await load_prompt(assignment)).prompt
        geometry, tokens = self._geometry, len(prompt.token_ids)
        (first,) = assignment.prompts.tokenizer.encode(FAKE_FIRST_TEXT)
        sampling = assignment.job.sampling
        handover = Handover(
            first=Step(first, finish="length" if sampling.max_new_tokens == 1 else None),
            prompt_tokens=tokens,
            pages=-(-tokens // geometry.page_size),
            page_size=geometry.page_size,
            layout=geometry.layout,
            seed=sampling.seed or 0,
            # Nobody may find what follows from pages that nobody computed.
            exact=False,
        )
        pieces = [Piece(kind, index, bytes(size)) for (kind, index), size in expected_pieces(tokens, geometry).items()]
        return prompt, handover, pieces
