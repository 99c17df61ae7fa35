"""A request in the engine's terms, whichever route it came by: jobs, each one answer to one prompt in one room."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from epd_workers.reference.engine.request import Sampling
from epd_workers.reference.model.tokenizer import ImageSlot, Message, Part, Tokenizer
from epd_workers.reference.serving.errors import ApiError, invalid
from epd_workers.reference.serving.schema import Body, ChatBody, ChatMessage, CompletionBody, GenerateBody, ImageUrl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAKE_HOST = "2.2.2.2"
COMPLETION_TOKENS = 16
IMAGE_MARK = "<image>"
Value = TypeVar("Value")


@dataclass(frozen=True)
class Rendezvous:
    """Where prefill and decode of one job meet: the prefill's bootstrap table and the room."""

    host: str
    port: int | None
    room: int

    @property
    def fake(self) -> bool:
        """Whether there is no peer: a health check or a warm-up."""
        return self.host == FAKE_HOST


@dataclass(frozen=True)
class PromptParts:
    """A prompt before its images are encoded: parts with slots, and the URL of the image of each slot."""

    parts: tuple[Part, ...]
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One answer to compute.

    Attributes:
        index: Its place in the answer's list of choices.
        prompt: Which of the request's prompts it answers.
        sampling: How.
        rendezvous: Where it meets its other half; None on a server that does all by itself.
    """

    index: int
    prompt: int
    sampling: Sampling
    rendezvous: Rendezvous | None


@dataclass(frozen=True)
class Work:
    """All of one request: every prompt is answered ``len(jobs) / len(prompts)`` times.

    Attributes:
        prompts: The prompts.
        jobs: The answers to compute.
        salt: Only prompts of the same salt share caches.
    """

    prompts: tuple[PromptParts, ...]
    jobs: tuple[Job, ...]
    salt: str = ""


@dataclass(frozen=True)
class Rules:
    """What this server accepts: its tokenizer, its model's name, whether a room is needed, and how many images."""

    tokenizer: Tokenizer
    model: str
    needs_room: bool
    vision: bool
    max_images: int


def chat_work(body: ChatBody, rules: Rules) -> Work:
    """Read a chat.

    Raises:
        ApiError: The request is wrong (400) or names another model (404).
    """
    _check_model(body.model, rules)
    images: list[str] = []
    messages = [_message(message, images) for message in body.messages]
    prompt = PromptParts(rules.tokenizer.render(messages), tuple(images))
    sampling = _sampling(
        {
            **_common(body),
            "max_new_tokens": body.max_completion_tokens or body.max_tokens,
            "seed": body.seed,
            "min_new_tokens": body.min_tokens,
            "logprobs": body.logprobs,
            "top_logprobs": body.top_logprobs,
        }
    )
    return _work(body, [prompt], sampling, body.n or 1, rules)


def completion_work(body: CompletionBody, rules: Rules) -> Work:
    """Read a text completion; raises as `chat_work`."""
    _check_model(body.model, rules)
    prompts = [_text_prompt(prompt, (), rules.tokenizer, "prompt") for prompt in _prompts(body.prompt)]
    top = int(body.logprobs or 0)
    sampling = _sampling(
        {
            **_common(body),
            "max_new_tokens": COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
            "seed": body.seed,
            "min_new_tokens": body.min_tokens,
            "logprobs": body.logprobs is not None and body.logprobs is not False,
            "top_logprobs": top,
        }
    )
    return _work(body, prompts, sampling, body.n or 1, rules)


def generate_work(body: GenerateBody, rules: Rules) -> Work:
    """Read a native request; raises as `chat_work`."""
    given = body.text if body.text is not None else body.input_ids
    assert given is not None
    images = (body.image_data,) if isinstance(body.image_data, str) else tuple(body.image_data or ())
    name = "text" if body.text is not None else "input_ids"
    texts = _prompts(given)
    if images and len(texts) > 1:
        raise invalid("image_data goes with a single prompt", "image_data")
    prompts = [_text_prompt(text, images, rules.tokenizer, name) for text in texts]
    params = body.sampling_params
    fields = {} if params is None else {**_common(params), "seed": params.sampling_seed}
    if params is not None:
        fields |= {"max_new_tokens": params.max_new_tokens, "min_new_tokens": params.min_new_tokens}
    start = -1 if body.logprob_start_len is None else body.logprob_start_len
    sampling = _sampling(
        {
            **fields,
            "logprobs": body.return_logprob,
            "top_logprobs": body.top_logprobs_num if body.return_logprob else 0,
            "prompt_logprobs": bool(body.return_logprob) and start >= 0,
        }
    )
    return _work(body, prompts, sampling, (params.n if params else 1) or 1, rules)


def _check_model(model: str, rules: Rules) -> None:
    if model not in {"", rules.model}:
        message = f"model {model!r} is not served here, {rules.model!r} is"
        raise ApiError(404, message, code="model_not_found", param="model")


def _work(body: Body, prompts: Sequence[PromptParts], sampling: Sampling, n: int, rules: Rules) -> Work:
    for prompt in prompts:
        if prompt.images and not rules.vision:
            raise invalid("this deployment has no image encoder: send text only", "messages", "images_not_supported")
        if len(prompt.images) > rules.max_images:
            count = len(prompt.images)
            raise invalid(f"the request has {count} images, at most {rules.max_images} are accepted", "messages")
    count = len(prompts) * n
    meetings = _rendezvous(body, count, rules)
    jobs = [Job(i, i // n, _choice(sampling, i % n), meetings[i]) for i in range(count)]
    return Work(tuple(prompts), tuple(jobs), body.salt)


def _choice(sampling: Sampling, choice: int) -> Sampling:
    # One seed for n choices would give n equal answers.
    return sampling if sampling.seed is None else dataclasses.replace(sampling, seed=sampling.seed + choice)


def _rendezvous(body: Body, count: int, rules: Rules) -> list[Rendezvous | None]:
    if not rules.needs_room:
        return [None] * count
    if body.bootstrap_room is None:
        raise invalid(
            "bootstrap_room is missing: this server does one half of a request, ask the router instead",
            "bootstrap_room",
            "missing_bootstrap_room",
        )
    rooms = _each("bootstrap_room", body.bootstrap_room, count)
    if count > 1 and not isinstance(body.bootstrap_room, list):
        raise invalid(f"bootstrap_room is one number for {count} answers: give a list", "bootstrap_room")
    if len(set(rooms)) != count:
        raise invalid("bootstrap_room names a room twice: every answer needs its own", "bootstrap_room")
    hosts = _each("bootstrap_host", body.bootstrap_host, count)
    ports = _each("bootstrap_port", body.bootstrap_port, count)
    faults = [f"bootstrap_port {port}" for port in ports if port is not None and not 0 < port < 65536]
    faults += ["bootstrap_room below 0" for room in rooms if room < 0]
    faults += ["bootstrap_host missing" for host in hosts if not host]
    if faults:
        raise invalid(f"the rendezvous cannot be used: {', '.join(faults)}", "bootstrap_room")
    return [Rendezvous(str(host), port, room) for host, port, room in zip(hosts, ports, rooms, strict=True)]


def _each(name: str, value: Value | list[Value], count: int) -> list[Value]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise invalid(f"{name} has {len(value)} entries, the request has {count} answers", name)
    return value


def _common(body: Any) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos")
    penalties = ("frequency_penalty", "presence_penalty", "repetition_penalty")
    return {name: getattr(body, name) for name in (*names, *penalties)}


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    given = {name: value for name, value in fields.items() if value is not None}
    stop = given.get("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    given["stop_token_ids"] = tuple(given.get("stop_token_ids", ()))
    if given.get("top_k") == 0:
        given["top_k"] = -1
    return Sampling(**given)


def _message(message: ChatMessage, images: list[str]) -> Message:
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str) or message.content is None:
        return Message(role, (message.content or "",))
    content: list[str | ImageSlot] = []
    for part in message.content:
        if part.image_url is not None and part.type == "image_url":
            content.append(ImageSlot(len(images)))
            images.append(part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url)
        else:
            content.append(part.text or "")
    return Message(role, tuple(content))


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Turn one prompt or several, in text or ids, into a list of prompts."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    return [item for item in given if not isinstance(item, int)]


def _text_prompt(given: str | list[int], images: tuple[str, ...], tokenizer: Tokenizer, name: str) -> PromptParts:
    """Put images where the prompt marks them, or before a text that marks none."""
    if not given:
        raise invalid(f"{name} has an empty prompt: give a text or token ids", name)
    if isinstance(given, str):
        pieces: list[Any] = re.split(f"({re.escape(IMAGE_MARK)})", given) if images else [given]
        slots = pieces.count(IMAGE_MARK)
        mark: Any = IMAGE_MARK
        head: list[Part] = [tokenizer.bos_id]
        if not slots:
            pieces, slots = [mark] * len(images) + pieces, len(images)
    else:
        wrong = [item for item in given if not 0 <= item < tokenizer.vocab_size]
        if wrong:
            raise invalid(f"{name} has ids {wrong[:5]} outside 0..{tokenizer.vocab_size - 1}", name)
        pieces, mark, head = list(given), tokenizer.image_id, []
        slots = pieces.count(mark)
    if slots != len(images):
        raise invalid(f"{name} marks {slots} images, the request has {len(images)}", name)
    order = iter(range(slots))
    parts = [ImageSlot(next(order)) if piece == mark else piece for piece in pieces if piece != ""]
    return PromptParts((*head, *parts), images)
