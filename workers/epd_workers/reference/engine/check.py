"""What must hold for a request before it may enter: every fault is listed, nothing is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers.reference.engine.request import InvalidRequest, PromptTooLong
from epd_workers.reference.model.interface import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    handover: Handover, pages: Sequence[bytes], *, tokens: int, layout: str, page_size: int, page_bytes: int
) -> None:
    """Check that what prefill handed over belongs to this model and this prompt.

    Args:
        handover: What prefill said.
        pages: What it sent.
        tokens: Length of the prompt here.
        layout: The layout string here.
        page_size: Tokens per page here.
        page_bytes: Bytes per page here.

    Raises:
        LayoutMismatch: Other model, seed or page size.
        InvalidRequest: Other prompt, or pages are missing.
    """
    here, there = (layout, page_size), (handover.layout, handover.page_size)
    if here != there:
        raise LayoutMismatch(f"prefill's layout and page size are {there}: decode's are {here}; start both alike")
    if handover.prompt_tokens != tokens:
        raise InvalidRequest(f"prefill ran {handover.prompt_tokens} prompt tokens: decode sees {tokens} in its prompt")
    expected = -(-tokens // page_size)
    if not len(pages) == handover.pages == expected:
        raise InvalidRequest(f"{len(pages)} of {handover.pages} pages arrived: {tokens} tokens need {expected}")
    sizes = {len(page) for page in pages} - {page_bytes}
    if sizes:
        raise LayoutMismatch(f"pages of {sorted(sizes)} bytes arrived: this model's pages have {page_bytes}")
