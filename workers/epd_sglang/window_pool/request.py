"""What is used of the engine's requests, and the names of their tokens outside of this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from epd_workers.swapool.chain import chain

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence


class Request(Protocol):
    """What is used of the engine's `Req`.

    Source: SGLang 0.5.23, srt/managers/schedule_batch.py:1033.
    """

    origin_input_ids: array[int]
    output_ids: array[int]
    extra_key: str | None
    cache_salt: str | None
    input_embeds: object
    positional_embed_overrides: object
    prefix_len: int


def named(request: Request) -> bool:
    """Whether a request's tokens say what it reads: embeddings that a client sends have no name."""
    return request.input_embeds is None and request.positional_embed_overrides is None


def length(request: Request) -> int:
    """Tokens that are to run: the prompt's, and after a retraction also those of the answer so far."""
    return len(request.origin_input_ids) + len(request.output_ids)


class Chains:
    """Digests of requests' pages, as far as they have been asked for.

    Pictures are in them: the engine gives each picture's rows ids of their own, which follow from its pixels. So are
    `extra_key` and `cache_salt`, which keep prefixes apart in the engine, too. Source: SGLang 0.5.23,
    srt/mem_cache/radix_cache.py:245.

    Args:
        page_size: Tokens of a page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known: WeakKeyDictionary[Request, list[bytes]] = WeakKeyDictionary()

    def pages(self, request: Request) -> Sequence[bytes]:
        """Digest of everything up to the end of each full page that a request has now."""
        known = self._known.setdefault(request, [])
        done = len(known) * self._page_size
        tokens = request.origin_input_ids + request.output_ids
        before = known[-1] if known else b""
        known += chain(tokens[done:], self._page_size, _salt(request), before=before)
        return known

    def page_at(self, request: Request, end: int) -> bytes:
        """Digest of everything before a page boundary."""
        return self.pages(request)[end // self._page_size - 1]


def _salt(request: Request) -> str:
    return json.dumps([request.extra_key, request.cache_salt])
