"""One request as the engine holds it, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from epd_workers.reference.engine.request import Handover, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.reference.engine.request import Prompt, Sampling

Kind = Literal["generate", "prefill", "resume"]
PieceKind = Literal["page", "window", "state"]


@dataclass(frozen=True)
class Piece:
    """Some bytes on their way from prefill to decode.

    Attributes:
        kind: `page`: global entries of a page of tokens; `window`: window rows of a page, only for the last rows;
            `state`: what an odd length leaves pending.
        index: The page's place in the prompt; 0 for the state.
        data: The bytes, see `cache.wire`.
    """

    kind: PieceKind
    index: int
    data: bytes


Event = Step | Piece | Handover | Exception


@dataclass(frozen=True, eq=False)
class Job:
    """A request in the engine.

    Attributes:
        rid: Unique among the requests in the engine.
        kind: The whole answer, its prefill, or its decode.
        prompt: Token ids and image rows.
        sampling: The parameters, max_new_tokens already cut to the context.
        seed: The seed in use.
        emit: Takes the results in order; must not block.
        handover: What prefill handed over (resume only).
        pieces: What prefill sent (resume only); emptied once it is in the pages.
    """

    rid: str
    kind: Kind
    prompt: Prompt
    sampling: Sampling
    seed: int
    emit: Callable[[Event], None]
    handover: Handover | None = None
    pieces: list[Piece] = field(default_factory=list)

    @property
    def positions(self) -> int:
        """Most positions that will ever hold keys and values: the last token of an answer is never run."""
        prompt = len(self.prompt.token_ids)
        return prompt if self.kind == "prefill" else prompt + self.sampling.max_new_tokens - 1
