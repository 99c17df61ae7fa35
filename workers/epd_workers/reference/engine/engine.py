"""The engine as asyncio code sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.engine.request import Handover, Limits, Load, Prompt, Sampling, Step
    from epd_workers.reference.model.interface import Model
    from epd_workers.reference.model.tokenizer import Tokenizer


class Stream:
    """Steps of one answer; ends after the step whose `finish` is set. Leaving it early aborts the request."""

    def __aiter__(self) -> AsyncIterator[Step]: ...
    async def __anext__(self) -> Step: ...
    async def aclose(self) -> None: ...


class Engine:
    """One model, one thread, many requests. All methods are called on the event loop that `start` ran on.

    Errors come at the call (not at the first step): QueueFull, PromptTooLong, InvalidRequest, LayoutMismatch (resume
    alone), EngineFailed.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, limits: Limits) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def generate(self, rid: str, prompt: Prompt, sampling: Sampling) -> Stream: ...
    async def prefill(
        self, rid: str, prompt: Prompt, sampling: Sampling, on_page: Callable[[int, bytes], None]
    ) -> Handover: ...
    def resume(
        self, rid: str, prompt: Prompt, sampling: Sampling, handover: Handover, pages: Sequence[bytes]
    ) -> Stream: ...
    def abort(self, rid: str) -> None: ...
    async def encode(self, image: Image) -> Tensor: ...
    def load(self) -> Load: ...
    def flush_cache(self) -> bool: ...
