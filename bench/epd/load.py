"""The same requests for every topology, sent at set times whatever became of those before."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import aiohttp
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kind = Literal["text", "image"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MODEL: Final = "reference"
WORDS: Final = (20, 300)
SIDES: Final = (126, 336)
_SYLLABLES: Final = ("ka", "lo", "mi", "ne", "ru", "sa", "te", "vo")
_COLOURS: Final = ("red", "green", "blue", "orange", "purple", "black")


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        kind: With or without a picture.
        at: When to send it, seconds from the start.
        body: Of `/v1/chat/completions`.
    """

    kind: Kind
    at: float
    body: dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """What a client saw of one request.

    Attributes:
        kind: Of the request.
        first: Seconds from the time it was to be sent to its first token.
        gaps: Seconds between one token and the next.
        prompt_tokens: As the server counts them.
        fault: Why there is no whole answer; empty if there is one.
    """

    kind: Kind
    first: float = 0.0
    gaps: tuple[float, ...] = ()
    prompt_tokens: int = 0
    fault: str = ""


def requests(count: int, rate: float, tokens: int, seed: int) -> list[Request]:
    """Half text, half pictures, in random order, at the times of a Poisson process.

    No two prompts or pictures are alike, so that no cache answers.

    Args:
        count: How many.
        rate: Requests a second, on average.
        tokens: Of every answer, whatever the model would say.
        seed: Of all draws: equal arguments give equal requests.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    rng.shuffle(kinds)
    times = itertools.accumulate(rng.expovariate(rate) for _ in kinds)
    fixed = {"model": MODEL, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    # With log-probabilities every token is an event of its own, also one that is only a part of a character.
    fixed |= {"logprobs": True, "stream_options": {"include_usage": True}}
    return [
        Request(kind, at, fixed | {"messages": [{"role": "user", "content": _content(kind, rng)}]})
        for kind, at in zip(kinds, times, strict=True)
    ]


def _content(kind: Kind, rng: random.Random) -> str | list[dict[str, Any]]:
    if kind == "text":
        return " ".join("".join(rng.choices(_SYLLABLES, k=2)) for _ in range(rng.randint(*WORDS)))
    image = {"type": "image_url", "image_url": {"url": _picture(rng)}}
    return [image, {"type": "text", "text": "Describe the picture."}]


def _picture(rng: random.Random) -> str:
    """A disc of random size, colour and place on white, as a data URL."""
    width, height = rng.randint(*SIDES), rng.randint(*SIDES)
    image = Image.new("RGB", (width, height), "white")
    radius = rng.uniform(0.15, 0.3) * min(width, height)
    x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=rng.choice(_COLOURS))
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


async def drive(
    session: aiohttp.ClientSession, url: str, wanted: Sequence[Request], concurrency: int, tell: Callable[[int], None]
) -> list[Sample]:
    """Send all requests at their times and wait for all answers.

    Args:
        session: To send them with.
        url: Of the router.
        wanted: The requests.
        concurrency: Most at once; a request that must wait for its turn is late, which counts as waiting for its token.
        tell: Called with the number of finished requests, after each.
    """
    turns = asyncio.Semaphore(concurrency)
    start = time.perf_counter()
    done = itertools.count(1)

    async def one(request: Request) -> Sample:
        await asyncio.sleep(start + request.at - time.perf_counter())
        async with turns:
            sample = await ask(session, url, request, start + request.at)
        tell(next(done))
        return sample

    return await asyncio.gather(*(one(request) for request in wanted))


async def ask(session: aiohttp.ClientSession, url: str, request: Request, due: float) -> Sample:
    """Send a request and time the tokens of its answer; `due` is when it should have been sent."""
    times: list[float] = []
    prompt = 0
    try:
        async with session.post(f"{url}/v1/chat/completions", json=request.body) as answer:
            if answer.status != 200:
                return Sample(request.kind, fault=f"status {answer.status}: {(await answer.text())[:200]}")
            async for line in answer.content:
                now = time.perf_counter()
                event = _event(line)
                if "error" in event:
                    return Sample(request.kind, fault=str(event["error"])[:200])
                times += [now] * _tokens(event)
                prompt = (event.get("usage") or {}).get("prompt_tokens", prompt)
    except aiohttp.ClientError as error:
        return Sample(request.kind, fault=f"{type(error).__name__}: {error}")
    if len(times) != request.body["max_tokens"]:
        return Sample(request.kind, fault=f"{len(times)} tokens: {request.body['max_tokens']} were asked for")
    gaps = tuple(later - earlier for earlier, later in itertools.pairwise(times))
    return Sample(request.kind, times[0] - due, gaps, prompt)


def _event(line: bytes) -> dict[str, Any]:
    data = line.strip().removeprefix(b"data: ")
    if not line.startswith(b"data: ") or data == b"[DONE]":
        return {}
    event: dict[str, Any] = json.loads(data)
    return event


def _tokens(event: dict[str, Any]) -> int:
    """Tokens that came with an event."""
    return sum(len((choice.get("logprobs") or {}).get("content") or ()) for choice in event.get("choices", ()))
