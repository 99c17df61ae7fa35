"""The encode role: ``POST /encode`` fetches images, encodes them and pushes the embeddings to the prefill."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from aiohttp import web
from pydantic import BaseModel, Field

from epd_workers.reference.serving.errors import ApiError, translate
from epd_workers.reference.serving.generation import CLIENT_GONE, new_record
from epd_workers.reference.serving.record import Leg
from epd_workers.reference.transfer.body import read_json
from epd_workers.reference.transfer.embedding import Embedding, push
from epd_workers.reference.transfer.errors import describe

if TYPE_CHECKING:
    import zmq.asyncio

    from epd_workers.reference.serving.admission import Admission
    from epd_workers.reference.serving.record import Record, RecordBook
    from epd_workers.reference.serving.vision import LocalVision

PUSH_SECONDS = 10.0


class EncodeBody(BaseModel):
    """``POST /encode``; unknown fields are ignored."""

    req_id: Annotated[str, Field(min_length=1, max_length=256)]
    mm_items: Annotated[list[str], Field(min_length=1, max_length=256)]
    modality: Literal["IMAGE", "image"] = "IMAGE"
    num_parts: Annotated[int, Field(ge=1, le=256)] = 1
    part_idx: Annotated[int, Field(ge=0, le=255)] = 0
    prefill_host: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.:_-]+$")]
    embedding_port: Annotated[int, Field(ge=1, le=65535)]


@dataclass(frozen=True)
class EncodeService:
    """Serves encode requests.

    Attributes:
        pod: This server's name.
        vision: Fetches and encodes.
        context: Owner of the sockets that embeddings leave through.
        admission: Places for requests.
        records: What was done for the last requests.
    """

    pod: str
    vision: LocalVision
    context: zmq.asyncio.Context
    admission: Admission
    records: RecordBook

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/encode", self._encode)]

    async def _encode(self, request: web.Request) -> web.StreamResponse:
        req_id = ""
        try:
            data = await read_json(request)
            req_id = str(data.get("req_id", "")) if isinstance(data, dict) else ""
            body = EncodeBody.model_validate(data)
            with self.admission.admit(1):
                await self._recorded(request, body)
        except Exception as error:  # noqa: BLE001 - this route has an error form of its own
            known = translate(error)
            answer = {"status": "error", "message": str(known), "req_id": req_id}
            return web.json_response(answer, status=known.status, headers=known.headers)
        return web.json_response(None)

    async def _recorded(self, request: web.Request, body: EncodeBody) -> None:
        record = new_record(request)
        self.records.add(record)
        try:
            await self._work(record, body)
        except asyncio.CancelledError:
            record.finish(CLIENT_GONE, "the prefill server went away")
            raise
        except Exception as error:
            known = translate(error)
            record.finish(known.status, str(known))
            raise
        record.finish(200)

    async def _work(self, record: Record, body: EncodeBody) -> None:
        leg = Leg("encode", self.pod, body.part_idx, peer=body.prefill_host)
        record.legs.append(leg)
        with leg.stage("encode"):
            images = await self.vision.encode(body.req_id, body.mm_items)
        leg.images = [{"tokens": len(image.rows), "ms": round(1000 * image.seconds, 3)} for image in images]
        rows = np.concatenate([image.rows.numpy() for image in images])
        tokens = tuple(len(image.rows) for image in images)
        embedding = Embedding(body.req_id, body.num_parts, body.part_idx, tokens, rows, self.pod)
        leg.transfer_bytes = rows.nbytes
        with leg.stage("transfer"):
            try:
                await push(self.context, body.prefill_host, body.embedding_port, embedding, PUSH_SECONDS)
            except (OSError, TimeoutError) as error:
                target = f"{body.prefill_host}:{body.embedding_port}"
                message = f"the embeddings could not be sent to {target}: {describe(error)}"
                raise ApiError(504, message, code="push_failed") from error
