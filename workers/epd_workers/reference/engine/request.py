"""What goes into the engine and what comes out: plain values, safe to send to another process."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from epd_workers.reference.cache.geometry import CacheType
from epd_workers.reference.model.replay import PRESETS, Work
from epd_workers.reference.model.tokenizer import ImageSlot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from epd_workers.reference.model.tokenizer import Part, Tokenizer

Finish = Literal["stop", "length", "abort"]
ReplayReason = Literal[
    "", "TurnedOff", "NoLongPromptYet", "NoPrefixHitYet", "PromptLogprobs", "ChunksWithinWindow", "NoPrefixCache"
]


class QueueFull(RuntimeError):
    """As many requests wait as may wait (HTTP 503)."""


class PromptTooLong(ValueError):
    """The request can never fit (HTTP 400)."""


class InvalidRequest(ValueError):
    """The request contradicts itself; the message lists every fault (HTTP 400)."""


class Aborted(RuntimeError):
    """The request was aborted before its prefill was done."""


class EngineFailed(RuntimeError):
    """The engine is stopped, or the model failed on this request (HTTP 500)."""


@dataclass(frozen=True)
class ImageRef:
    """An image known by its span length alone: its key/values come from elsewhere (the decode leg)."""

    tokens: int


@dataclass(frozen=True)
class ImageSpan:
    """An image inside a prompt.

    Attributes:
        start: Position of its first placeholder token.
        embeddings: [tokens, hidden] float32.
    """

    start: int
    embeddings: Tensor


@dataclass(frozen=True)
class Prompt:
    """What is to be answered.

    Attributes:
        token_ids: With one placeholder per image row.
        images: The rows themselves; none on the decode leg.
        salt: Prompts of different salts share nothing, whatever their tokens.
    """

    token_ids: Sequence[int]
    images: Sequence[ImageSpan] = ()
    salt: str = ""

    @staticmethod
    def build(
        tokenizer: Tokenizer, parts: Sequence[Part], images: Sequence[Tensor | ImageRef] = (), salt: str = ""
    ) -> Prompt:
        """Join rendered parts; slot i takes images[i].

        Args:
            tokenizer: Turns text into ids.
            parts: What `Tokenizer.render` returned, or any sequence of ids, texts and slots.
            images: Per slot index, embeddings [tokens, hidden] or, where they are not held here, an `ImageRef`.
            salt: Only requests with the same one share.

        Raises:
            InvalidRequest: A slot without image, or an image without slot.
        """
        ids: list[int] = []
        spans: list[ImageSpan] = []
        used: list[int] = []
        for part in parts:
            if isinstance(part, ImageSlot):
                used.append(part.index)
                image = images[part.index] if 0 <= part.index < len(images) else None
                if image is None:
                    continue
                if not isinstance(image, ImageRef):
                    spans.append(ImageSpan(len(ids), image))
                tokens = image.tokens if isinstance(image, ImageRef) else len(image)
                ids.extend([tokenizer.image_id] * tokens)
            else:
                ids.extend([part] if isinstance(part, int) else tokenizer.encode(part))
        if sorted(used) != list(range(len(images))):
            raise InvalidRequest(f"image slots are {used}, images are 0..{len(images) - 1}: give one image per slot")
        return Prompt(ids, spans, salt)


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens and when to stop; names and meanings as in SGLang.

    Attributes:
        max_new_tokens: Cut to what the context length leaves.
        min_new_tokens: End-of-text, stop ids and stop strings are out of reach before this many tokens.
        temperature: 0 is greedy.
        top_p: Keep the most likely tokens that together reach this probability.
        top_k: Keep this many; -1 keeps all.
        min_p: Keep tokens at least this fraction as likely as the most likely one.
        seed: Same seed, prompt and parameters give the same tokens; None draws one.
        stop: Strings that end the answer; also across token boundaries.
        stop_token_ids: Ids that end the answer, besides end-of-text.
        ignore_eos: Go on after end-of-text.
        logprobs: Report the chosen token's log-probability (model distribution, before penalties and temperature).
        top_logprobs: Report this many most likely tokens too.
        prompt_logprobs: Report the prompt's own log-probabilities with the first step.
        frequency_penalty: Subtracted per earlier occurrence in the answer.
        presence_penalty: Subtracted once per token that occurred in the answer.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or answer.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        rules = (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= self.max_new_tokens, "0 to max_new_tokens"),
            ("temperature", 0 <= self.temperature <= 1e6, "0 (greedy) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "-1 (all) or at least 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("stop", all(self.stop), "non-empty strings"),
            ("top_logprobs", 0 <= self.top_logprobs <= 20, "0 to 20"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "-2 to 2"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "-2 to 2"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 2, "above 0, at most 2"),
        )
        faults = [f"{name} is {getattr(self, name)!r}: must be {rule}" for name, good, rule in rules if not good]
        if faults:
            raise InvalidRequest("; ".join(faults))


@dataclass(frozen=True)
class Step:
    """One token of an answer.

    Attributes:
        token_id: The token; -1 in the step that reports an abort.
        logprob: Its log-probability (0.0 unless asked for).
        top_logprobs: (id, log-probability), most likely first.
        finish: Why the answer ends here, or None.
        matched_stop: The stop id or string that ended it.
        prompt_logprobs: On the first step, if asked for: one per prompt token, None for the first.
        cached_tokens: On the first step: prompt tokens whose global entries an earlier request had left.
    """

    token_id: int
    logprob: float = 0.0
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish: Finish | None = None
    matched_stop: int | str | None = None
    prompt_logprobs: tuple[float | None, ...] = ()
    cached_tokens: int = 0


@dataclass(frozen=True)
class Picture:
    """What distinguishes a picture from any other where its rows are not available.

    Attributes:
        start: Position of its first placeholder token.
        tokens: How many it has.
        digest: 64 hexadecimal digits of SHA-256 over its embeddings.
    """

    start: int
    tokens: int
    digest: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.digest):
            raise ValueError(f"digest is {self.digest!r}: must be 64 hexadecimal digits")


@dataclass(frozen=True)
class Handover:
    """Everything besides pieces, prompt and sampling that decode needs to go on exactly.

    Attributes:
        first: The token prefill chose.
        prompt_tokens: Tokens whose entries the pages hold.
        pages: How many pages were handed out, window pages not counted.
        page_size: Tokens per page.
        layout: Digest of everything that the bytes depend on.
        seed: The seed in use, also when the request named none.
        exact: Whether the entries are those of a run that nothing interrupted. Who does not say so is not believed:
            others would build on what is none.
        pictures: What stands in the prompt where decode sees placeholders.
    """

    first: Step
    prompt_tokens: int
    pages: int
    page_size: int
    layout: str
    seed: int
    exact: bool = False
    pictures: tuple[Picture, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Handover:
        """Inverse of `to_json`, also after a trip through text.

        Raises:
            InvalidRequest: A field is missing or unknown.
        """
        try:
            first = dict(data["first"])
            first["top_logprobs"] = tuple((int(i), float(p)) for i, p in first["top_logprobs"])
            first["prompt_logprobs"] = tuple(first["prompt_logprobs"])
            pictures = tuple(Picture(**picture) for picture in data.get("pictures", ()))
            return Handover(**{**data, "first": Step(**first), "pictures": pictures})
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"handover is not one of this version: {error!r}") from error


@dataclass(frozen=True)
class Limits:
    """What bounds an engine; see the command line flags of the same names.

    Attributes:
        page_size: Tokens in a page.
        max_total_tokens: Tokens in all pages.
        max_running_requests: Requests that hold pages at a time.
        max_queued_requests: Requests that may wait for pages.
        chunked_prefill_size: Prompt rows of a step, all requests together.
        cache_type: Format of the caches.
        replay: Name of the preset of decoder bounded replay; None runs every layer on every row. For decode, prefill's:
            it says which layers' windows a pool keeps.
        encoder_replay: On a prefix hit run the window's rows again instead of keeping windows.
        prefix_cache: Keep finished requests' pages for others.
        window_cache_tokens: Tokens whose windows are kept for others.
    """

    page_size: int = 64
    max_total_tokens: int = 65536
    max_running_requests: int = 16
    max_queued_requests: int = 64
    chunked_prefill_size: int = 512
    cache_type: CacheType = "fp4"
    replay: str | None = "0.5.23"
    encoder_replay: bool = False
    prefix_cache: bool = True
    window_cache_tokens: int = 32768

    def __post_init__(self) -> None:
        least = dict.fromkeys(
            ("page_size", "max_total_tokens", "max_running_requests", "max_queued_requests", "chunked_prefill_size"), 1
        )
        faults = [
            f"{name} is {getattr(self, name)}: must be at least {low}"
            for name, low in (least | {"window_cache_tokens": 0}).items()
            if getattr(self, name) < low
        ]
        if self.max_total_tokens < self.page_size:
            faults.append(f"max_total_tokens is {self.max_total_tokens}: must hold one page of {self.page_size}")
        if self.cache_type not in get_args(CacheType):
            faults.append(f"cache_type is {self.cache_type!r}: must be one of {', '.join(get_args(CacheType))}")
        if self.replay is not None and self.replay not in PRESETS:
            faults.append(f"replay is {self.replay!r}: must be None (off) or one of {', '.join(PRESETS)}")
        if faults:
            raise ValueError("; ".join(faults))


@dataclass(frozen=True)
class Load:
    """A consistent snapshot; running, waiting, encoding and used_tokens are 0 when idle.

    Attributes:
        running: Requests that hold pages.
        waiting: Requests in the queue.
        encoding: Images being encoded or waiting for it.
        used_tokens: Reserved tokens, in whole pages.
        max_total_tokens: Bound of used_tokens, in whole pages.
        prompt_tokens: Prompt tokens computed since the start.
        generated_tokens: Tokens chosen since the start.
        steps: Model steps since the start.
        cached_tokens: Tokens whose global entries the prefix tree holds, running requests' shared ones included.
        lookups: Requests that asked the tree since the start.
        hits: Of them, those that found a prefix.
        hit_tokens: Prompt tokens that they did not have to compute.
        evicted_pages: Global pages that the tree gave up for room since the start.
        evicted_window_pages: Window pages, likewise.
    """

    running: int
    waiting: int
    encoding: int
    used_tokens: int
    max_total_tokens: int
    max_running_requests: int
    max_queued_requests: int
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    cached_tokens: int = 0
    lookups: int = 0
    hits: int = 0
    hit_tokens: int = 0
    evicted_pages: int = 0
    evicted_window_pages: int = 0


@dataclass(frozen=True)
class ReplayState:
    """Whether bounded replay runs, and what it saved.

    A half is active once it has left something out, or gone on from a window that others left, and stays so.

    Attributes:
        decoder_active: Late layers were left out on some prompt's rows.
        decoder_reason: Why not; empty if active.
        preset: The rule in force; empty if decoder replay is off.
        encoder_active: Rows before a prefix hit's end were run again, or a window of the pool was adopted instead.
        encoder_reason: Why not; empty if active.
        work: Rows times layers of all prompts since the start.
        spared: Rows of prefix hits that the encoder half did not run again, of those hits where it ran some or adopted
            a window.
        adopted: Requests that went on from a window of the pool.
        avoided: Rows that they did not run thereby: what a replay would have run for them, less what they ran.
    """

    decoder_active: bool
    decoder_reason: ReplayReason
    preset: str
    encoder_active: bool
    encoder_reason: ReplayReason
    work: Work
    spared: int
    adopted: int = 0
    avoided: int = 0
