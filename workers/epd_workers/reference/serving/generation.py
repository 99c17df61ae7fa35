"""The routes that generate: one path from a body to an answer, whatever the protocol and the role."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from epd_workers.reference.serving import reply
from epd_workers.reference.serving.errors import translate
from epd_workers.reference.serving.formats import ChatFormat, CompletionFormat, Format, GenerateFormat
from epd_workers.reference.serving.record import Leg, Record
from epd_workers.reference.serving.runner import Assignment
from epd_workers.reference.serving.schema import Body, ChatBody, CompletionBody, GenerateBody, OpenAiBody
from epd_workers.reference.serving.vision import Prompts
from epd_workers.reference.serving.work import Rendezvous, Rules, Work, chat_work, completion_work, generate_work
from epd_workers.reference.transfer.body import read_json
from epd_workers.reference.transfer.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from epd_workers.reference.serving.admission import Admission
    from epd_workers.reference.serving.metrics import Metrics
    from epd_workers.reference.serving.record import RecordBook
    from epd_workers.reference.serving.runner import Runner
    from epd_workers.reference.serving.vision import Vision

log = logging.getLogger(__name__)

CLIENT_GONE = 499
MAX_NAME = 256


@dataclass(frozen=True)
class Generation:
    """Everything that a generation route needs.

    Attributes:
        role: This server's role.
        pod: This server's name.
        rules: What is accepted.
        runner: How a job is answered.
        vision: How images are encoded; None where this server never does.
        admission: Places for jobs.
        records: What was done for the last requests.
        metrics: Counters.
    """

    role: str
    pod: str
    rules: Rules
    runner: Runner
    vision: Vision | None
    admission: Admission
    records: RecordBook
    metrics: Metrics

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/completions", self._completion),
            web.post("/generate", self._generate),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = ChatBody.model_validate(await read_json(request))
        work = chat_work(body, self.rules)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        return await self._answer(
            request, body, work, lambda record: ChatFormat(**self._openai(body, kind, "chatcmpl", record, work))
        )

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = CompletionBody.model_validate(await read_json(request))
        work = completion_work(body, self.rules)
        return await self._answer(
            request,
            body,
            work,
            lambda record: CompletionFormat(**self._openai(body, "text_completion", "cmpl", record, work)),
        )

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = GenerateBody.model_validate(await read_json(request))
        work = generate_work(body, self.rules)
        start = -1 if body.logprob_start_len is None else body.logprob_start_len
        many = len(work.jobs) > 1 or isinstance(body.text, list)
        return await self._answer(
            request,
            body,
            work,
            lambda record: GenerateFormat(
                answer_id=record.id, many=many, logprobs=bool(body.return_logprob), start=start, record=record
            ),
        )

    def _openai(self, body: OpenAiBody, kind: str, prefix: str, record: Record, work: Work) -> dict[str, Any]:
        return {
            "kind": kind,
            "answer_id": f"{prefix}-{record.id}",
            "model": self.rules.model,
            "tokenizer": self.rules.tokenizer,
            "logprobs": work.jobs[0].sampling.logprobs,
            "usage": bool(body.stream_options and body.stream_options.include_usage),
            "n": len(work.jobs) // len(work.prompts),
        }

    async def _answer(
        self, request: web.Request, body: Body, work: Work, form: Callable[[Record], Format]
    ) -> web.StreamResponse:
        try:
            with self.admission.admit(len(work.jobs)):
                record = new_record(request, body.rid, work.jobs[0].rendezvous)
                self.records.add(record)
                with self._watched(record):
                    return await self._run(request, body.stream, work, form(record), record)
        except Exception as error:
            for job in work.jobs:
                self.runner.abandon(job, error)
            raise

    async def _run(
        self, request: web.Request, stream: bool, work: Work, form: Format, record: Record
    ) -> web.StreamResponse:
        prompts = Prompts(work, self.vision, self.rules.tokenizer, record.id)
        unique = uuid.uuid4().hex
        assignments = []
        for job in work.jobs:
            leg = Leg(self.role, self.pod, job.index)
            record.legs.append(leg)
            assignments.append(Assignment(job, prompts, record, leg, f"{unique}-{job.index}"))
        headers = {"X-Request-ID": record.id}
        try:
            async with contextlib.aclosing(reply.merged(self.runner, assignments)) as source:
                if not stream:
                    return await reply.document(source, len(assignments), form, record, headers)
                response, failure = await reply.events(request, source, len(assignments), form, headers)
                if failure is not None:
                    self._failed(record, failure)
                return response
        finally:
            await prompts.close()

    @contextlib.contextmanager
    def _watched(self, record: Record) -> Iterator[None]:
        """Close the record however the body ends."""
        try:
            yield
        except asyncio.CancelledError:
            if not record.status:
                record.finish(CLIENT_GONE, "the client went away")
                self.metrics.aborted()
            raise
        except Exception as error:
            self._failed(record, error)
            raise
        if not record.status:
            record.finish(200)
            self.metrics.finished(record.legs, record.age)

    def _failed(self, record: Record, error: Exception) -> None:
        if isinstance(error, reply.ClientGoneError):
            record.finish(CLIENT_GONE, str(error))
            self.metrics.aborted()
            return
        known = translate(error)
        record.finish(known.status, str(known))
        if known.status >= 500:
            log.warning("request %s failed with %d: %s", record.id, known.status, known)
        if isinstance(error, TransferError):
            self.metrics.transfer_failed()


def new_record(request: web.Request, rid: str | None = None, meeting: Rendezvous | None = None) -> Record:
    """Open the record of a request under every name that it is known by.

    The room is a name too: where the caller gave none, it is the one that both halves of a pair know.
    """
    room = None if meeting is None or meeting.fake else f"room-{meeting.room}"
    given = [rid, request.headers.get("X-Request-ID"), room]
    names = [name[:MAX_NAME] for name in given if name and name.isprintable()]
    names = names or [uuid.uuid4().hex]
    return Record(names[0], tuple(dict.fromkeys(names)), request.path)
