"""What must hold for a request before it may enter: every fault is listed, nothing is computed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from epd_workers.reference.cache.wire import window_range
from epd_workers.reference.engine.request import InvalidRequest, PromptTooLong
from epd_workers.reference.model.interface import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.engine.job import Piece, PieceKind
    from epd_workers.reference.engine.request import Handover, Prompt
    from epd_workers.reference.model.interface import ModelConfig


def check_prompt(prompt: Prompt, config: ModelConfig, image_id: int, *, embedded: bool) -> None:
    """Check ids, images and length.

    Args:
        prompt: What came in.
        config: The model's sizes.
        image_id: The placeholder of an image row.
        embedded: Whether every placeholder needs an embedding (all but the decode leg).

    Raises:
        PromptTooLong: No room is left for one token of an answer.
        InvalidRequest: Anything else.
    """
    ids = prompt.token_ids
    if len(ids) >= config.context_length:
        raise PromptTooLong(
            f"prompt has {len(ids)} tokens: the context holds {config.context_length}, answer included; shorten it"
        )
    faults = [] if ids else ["prompt is empty: must have at least one token"]
    foreign = sorted({i for i in ids if not 0 <= i < config.vocab_size})
    if foreign:
        faults.append(f"prompt has token ids {foreign[:8]}: must be 0 to {config.vocab_size - 1}")
    covered: set[int] = set()
    for number, image in enumerate(prompt.images):
        shape, span = tuple(image.embeddings.shape), range(image.start, image.start + len(image.embeddings))
        if len(shape) != 2 or shape[1] != config.hidden_size:
            faults.append(f"images[{number}].embeddings is {shape}: must be [tokens, {config.hidden_size}]")
        inside = span and span.start >= 0 and span.stop <= len(ids) and covered.isdisjoint(span)
        if not (inside and all(ids[at] == image_id for at in span)):
            faults.append(f"images[{number}] covers {span}: must be image placeholders of its own inside the prompt")
        covered.update(span)
    missing = sum(token == image_id and at not in covered for at, token in enumerate(ids)) if embedded else 0
    if missing:
        faults.append(f"prompt has {missing} image placeholders without an image: send the image with it")
    if faults:
        raise InvalidRequest("; ".join(faults))


def check_handover(
    handover: Handover, pieces: Sequence[Piece], *, token_ids: Sequence[int], geometry: Geometry, image_id: int
) -> None:
    """Check that what prefill handed over belongs to this model and this prompt.

    Args:
        handover: What prefill said.
        pieces: What it sent.
        token_ids: The prompt here.
        geometry: Of the caches here.
        image_id: The placeholder of an image row.

    Raises:
        LayoutMismatch: Other weights, formats, sizes or page size.
        InvalidRequest: Other prompt, or pieces are missing.
    """
    tokens = len(token_ids)
    here, there = (geometry.layout, geometry.page_size), (handover.layout, handover.page_size)
    if here != there:
        raise LayoutMismatch(f"prefill's layout and page size are {there}: decode's are {here}; start both alike")
    if handover.prompt_tokens != tokens:
        raise InvalidRequest(f"prefill ran {handover.prompt_tokens} prompt tokens: decode sees {tokens} in its prompt")
    expected = expected_pieces(tokens, geometry)
    arrived = Counter((piece.kind, piece.index) for piece in pieces)
    faults = [
        f"pieces {problem}: {_listed(names)}"
        for problem, names in (
            ("missing", [name for name in expected if name not in arrived]),
            ("not asked for", [name for name in arrived if name not in expected]),
            ("sent twice", [name for name, count in arrived.items() if count > 1]),
        )
        if names
    ]
    for number, picture in enumerate(handover.pictures):
        span = range(picture.start, picture.start + picture.tokens)
        if not (span and span.start >= 0 and span.stop <= tokens and all(token_ids[at] == image_id for at in span)):
            faults.append(f"prefill says pictures[{number}] covers {span}: must be image placeholders of the prompt")
    if handover.pages != -(-tokens // geometry.page_size):
        faults.append(f"prefill says {handover.pages} pages: {tokens} tokens need {-(-tokens // geometry.page_size)}")
    if faults:
        raise InvalidRequest("; ".join(faults) + "; send the prompt to prefill again")
    wrong = sorted({(p.kind, len(p.data), size) for p in pieces if len(p.data) != (size := expected[p.kind, p.index])})
    if wrong:
        sizes = "; ".join(
            f"a {kind} piece of prefill has {there} bytes: decode's have {here}" for kind, there, here in wrong
        )
        raise LayoutMismatch(f"{sizes}; start both alike")


def expected_pieces(tokens: int, geometry: Geometry) -> dict[tuple[PieceKind, int], int]:
    """What a prefill of this many tokens sends: bytes by kind and index, in order."""
    size = geometry.page_size
    windows = window_range(tokens, 0, size, geometry.window)
    state = geometry.state_bytes(tokens)
    return {
        **{("page", index): geometry.page_bytes for index in range(-(-tokens // size))},
        **{("window", index): geometry.window_page_bytes for index in windows},
        **({("state", 0): state} if state else {}),
    }


def _listed(names: Sequence[tuple[PieceKind, int]]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(f"{kind} {index}" for kind, index in names[:8]) + more
