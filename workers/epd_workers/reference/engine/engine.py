"""The engine as asyncio code sees it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from epd_workers.reference.engine.check import check_handover, check_prompt
from epd_workers.reference.engine.job import Job, Piece
from epd_workers.reference.engine.request import EngineFailed, Handover, Step
from epd_workers.reference.engine.scheduler import EncodeJob, Scheduler
from epd_workers.reference.engine.store import ALONE, Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.engine.job import Event, Kind
    from epd_workers.reference.engine.request import Limits, Load, Prompt, ReplayState, Sampling
    from epd_workers.reference.model.loaded import LoadedModel

_log = logging.getLogger(__name__)


class Stream:
    """Steps of one answer; ends behind the step whose `finish` is set.

    An abort ends it with a step of id -1 and `finish` "abort". To leave early call `aclose` (or use it as an async
    context manager): the request is then aborted. Cancelling a task that waits for a step aborts it too.
    """

    def __init__(self, events: asyncio.Queue[Event], withdraw: Callable[[], None]) -> None:
        self._events = events
        self._withdraw = withdraw
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if isinstance(event, Step):
            self._ended = event.finish is not None
            return event
        self._ended = True
        assert isinstance(event, Exception)
        raise event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Abort unless it has ended; everything is free when this returns."""
        self._ended = True
        self._withdraw()


class Engine:
    """One model, one thread that waits for `start`, many requests. Call all methods on the event loop of `start`.

    `generate`, `prefill`, `resume` and `encode` raise at the call, not at the first step: QueueFull, PromptTooLong,
    InvalidRequest, EngineFailed; resume also LayoutMismatch; encode also BadImage.

    Args:
        model: The weights.
        limits: How much is taken on at a time.
        stores: Where to look for what others computed, and to leave what they may use; not closed here.

    Raises:
        ValueError: The page size does not suit the model's layers, or the caches are too large for this machine.
    """

    def __init__(self, model: LoadedModel, limits: Limits, stores: Stores = ALONE) -> None:
        self._model = model
        self._scheduler = Scheduler(model, limits, stores)
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def layout(self) -> str:
        """Digest of everything that the bytes of pieces depend on."""
        return self._scheduler.geometry.layout

    @property
    def page_bytes(self) -> int:
        """Bytes of a `page` piece."""
        return self._scheduler.geometry.page_bytes

    @property
    def window_page_bytes(self) -> int:
        """Bytes of a `window` piece."""
        return self._scheduler.geometry.window_page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the `state` piece of a prompt of odd length."""
        return self._scheduler.geometry.pending_bytes

    @property
    def alive(self) -> bool:
        """Whether requests are accepted; False before `start`, after `stop` and after an internal error."""
        return self._loop is not None and not self._scheduler.closed

    async def start(self) -> None:
        """Start the model thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Abort whatever is in, accept nothing more, end the model thread."""
        self._scheduler.close("the engine is stopped")
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def generate(self, rid: str, prompt: Prompt, sampling: Sampling) -> Stream:
        """The whole answer."""
        return self._stream(*self._submit("generate", rid, prompt, sampling))

    async def prefill(
        self, rid: str, prompt: Prompt, sampling: Sampling, on_piece: Callable[[Piece], None]
    ) -> Handover:
        """Compute the prompt's caches and the first token.

        Args:
            rid: Unique among the requests in the engine.
            prompt: With embeddings for every image.
            sampling: As decode will get it.
            on_piece: Called on the event loop with global pages in order as they fill, then with the window pages of
                the last rows and the state of an odd length; must not block. If it raises, the request is aborted and
                the error passed on. Nothing is held here for a piece once it is handed out.

        Raises:
            Aborted: `abort` or `stop` was called meanwhile.
        """
        job, events = self._submit("prefill", rid, prompt, sampling)
        try:
            while isinstance(event := await events.get(), Piece):
                on_piece(event)
        except BaseException:
            self._scheduler.withdraw(job)
            raise
        if isinstance(event, Exception):
            raise event
        assert isinstance(event, Handover)
        return event

    def resume(
        self, rid: str, prompt: Prompt, sampling: Sampling, handover: Handover, pieces: Sequence[Piece]
    ) -> Stream:
        """The whole answer from what prefill handed over, its first token included.

        Args:
            rid: Unique among the requests in the engine.
            prompt: The same token ids; images may be left out.
            sampling: The same parameters.
            handover: What `prefill` returned.
            pieces: What it handed to `on_piece`, in any order.

        Raises:
            LayoutMismatch: The pieces come from other weights, formats or sizes.
            InvalidRequest: The handover does not belong to this prompt, or pieces are missing.
        """
        geometry, image_id = self._scheduler.geometry, self._model.image_id
        check_handover(handover, pieces, token_ids=prompt.token_ids, geometry=geometry, image_id=image_id)
        return self._stream(*self._submit("resume", rid, prompt, sampling, handover=handover, pieces=pieces))

    def abort(self, rid: str) -> None:
        """End a request; slot and pages are free when this returns. Unknown or ended ids are ignored."""
        self._scheduler.abort(rid)

    async def encode(self, image: Image) -> Tensor:
        """Embeddings of one picture [tokens, hidden] float32."""
        self._model.image_tokens(*image.size)
        loop = self._require_loop()
        result: asyncio.Future[Tensor] = loop.create_future()

        def settle(value: Tensor | Exception) -> None:
            if result.done():
                return
            if isinstance(value, Exception):
                result.set_exception(value)
            else:
                result.set_result(value)

        job = EncodeJob(image, lambda value: self._call(settle, value))
        self._scheduler.submit_image(job)
        try:
            return await result
        finally:
            self._scheduler.abort_image(job)

    def load(self) -> Load:
        """What the engine holds at this moment."""
        return self._scheduler.load()

    def replay(self) -> ReplayState:
        """Whether bounded replay runs, and what it saved so far."""
        return self._scheduler.replay()

    def flush_cache(self) -> bool:
        """Forget all cached prefixes, unless requests run or wait; whether that was done."""
        return self._scheduler.flush()

    def _stream(self, job: Job, events: asyncio.Queue[Event]) -> Stream:
        return Stream(events, lambda: self._scheduler.withdraw(job))

    def _submit(
        self,
        kind: Kind,
        rid: str,
        prompt: Prompt,
        sampling: Sampling,
        *,
        handover: Handover | None = None,
        pieces: Sequence[Piece] = (),
    ) -> tuple[Job, asyncio.Queue[Event]]:
        self._require_loop()
        check_prompt(prompt, self._model.config, self._model.image_id, embedded=kind != "resume")
        room = self._model.config.context_length - len(prompt.token_ids)
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        seed = handover.seed if handover else sampling.seed
        events: asyncio.Queue[Event] = asyncio.Queue()
        job = Job(
            rid=rid,
            kind=kind,
            prompt=prompt,
            sampling=sampling,
            seed=secrets.randbits(63) if seed is None else seed,
            emit=lambda event: self._call(events.put_nowait, event),
            handover=handover,
            pieces=list(pieces),
        )
        self._scheduler.submit(job)
        return job, events

    def _call(self, function: Callable[[Any], None], value: Any) -> None:
        self._require_loop().call_soon_threadsafe(function, value)

    def _require_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise EngineFailed("the engine is not started")
        return self._loop

    def _work(self) -> None:
        """The model thread."""
        try:
            while self._scheduler.wait():
                self._scheduler.step()
        except Exception:  # noqa: BLE001 the thread's last line
            _log.exception("the engine stops: internal error")
            self._scheduler.close("the engine failed; see its log")
