"""How answers look on each route."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.engine.request import Step
    from epd_workers.reference.model.tokenizer import Tokenizer
    from epd_workers.reference.serving.record import Record
    from epd_workers.reference.serving.text import Delta


@dataclass
class Choice:
    """One answer, gathered from its deltas."""

    index: int
    text: str = ""
    steps: list[Step] = field(default_factory=list)
    token_ids: Sequence[int] = ()

    def add(self, delta: Delta) -> None:
        """Append what a step added."""
        self.text += delta.text
        self.steps.append(delta.step)
        self.token_ids = delta.token_ids

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that an earlier request had left in the cache."""
        return self.steps[0].cached_tokens if self.steps else 0

    @property
    def last(self) -> Step:
        """The newest step."""
        return self.steps[-1]


class Format(Protocol):
    """The JSON of one route."""

    def full(self, choices: Sequence[Choice], record: Record) -> Any:
        """Return the whole answer of a request that does not stream."""

    def chunks(self, delta: Delta, choice: Choice) -> list[Any]:
        """Return the events for one step; ``choice`` has it already."""

    def closing(self, choices: Sequence[Choice]) -> list[Any]:
        """Return the events after the last step."""


def usage(choices: Sequence[Choice], per_prompt: int) -> dict[str, Any]:
    """Count tokens as OpenAI does: a prompt once, however many answers it got."""
    prompt = sum(len(choice.token_ids) for choice in choices if choice.index % per_prompt == 0)
    completion = sum(len(choice.steps) for choice in choices)
    cached = sum(choice.cached_tokens for choice in choices if choice.index % per_prompt == 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def epd(record: Record) -> dict[str, Any]:
    """Return who served a request and for how long, as far as this server knows."""
    return {"request_id": record.id, "legs": record.all_legs()}


class _OpenAiFormat:
    """What chat and text completions share.

    Attributes of the constructor: the ``kind`` of object, an id and model to repeat, whether log-probabilities and a
    final usage event were asked for, and how many answers each prompt gets.
    """

    def __init__(
        self, *, kind: str, answer_id: str, model: str, tokenizer: Tokenizer, logprobs: bool, usage: bool, n: int
    ) -> None:
        self._head = {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._usage = usage
        self._n = n

    def closing(self, choices: Sequence[Choice]) -> list[Any]:
        """See `Format`."""
        return [self._chunk([], usage=usage(choices, self._n))] if self._usage else []

    def _answer(self, parts: list[dict[str, Any]], choices: Sequence[Choice], record: Record) -> dict[str, Any]:
        return {**self._head, "choices": parts, "usage": usage(choices, self._n), "epd": epd(record)}

    def _chunk(self, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        # With include_usage, OpenAI has a null usage in every chunk but the last.
        return {**self._head, "choices": parts, **({"usage": None} if self._usage else {}), **more}


class ChatFormat(_OpenAiFormat):
    """``/v1/chat/completions``."""

    def full(self, choices: Sequence[Choice], record: Record) -> Any:
        """See `Format`."""
        parts = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._content(choice.steps),
                "finish_reason": choice.last.finish,
            }
            for choice in choices
        ]
        return self._answer(parts, choices, record)

    def chunks(self, delta: Delta, choice: Choice) -> list[Any]:
        """See `Format`."""
        events = []
        if len(choice.steps) == 1:
            events.append(self._part(delta.index, {"role": "assistant", "content": ""}))
        logprobs = self._content([delta.step])
        if delta.text or logprobs or delta.finish:
            content = {"content": delta.text} if delta.text or logprobs else {}
            events.append(self._part(delta.index, content, logprobs, delta.finish))
        return events

    def _part(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> Any:
        return self._chunk([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])

    def _content(self, steps: Sequence[Step]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        content = [
            {
                **self._entry(step.token_id, step.logprob),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in step.top_logprobs],
            }
            for step in steps
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.token_text(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(self._tokenizer.token_bytes(token_id))}


class CompletionFormat(_OpenAiFormat):
    """``/v1/completions``."""

    def full(self, choices: Sequence[Choice], record: Record) -> Any:
        """See `Format`."""
        parts = [self._part(choice.index, choice.text, choice.steps, 0, choice.last.finish) for choice in choices]
        return self._answer(parts, choices, record)

    def chunks(self, delta: Delta, choice: Choice) -> list[Any]:
        """See `Format`."""
        if not (delta.text or delta.finish or self._logprobs):
            return []
        offset = sum(len(self._tokenizer.token_text(step.token_id)) for step in choice.steps[:-1])
        return [self._chunk([self._part(delta.index, delta.text, [delta.step], offset, delta.finish)])]

    def _part(self, index: int, text: str, steps: Sequence[Step], offset: int, finish: str | None) -> dict[str, Any]:
        logprobs = self._columns(steps, offset) if self._logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _columns(self, steps: Sequence[Step], offset: int) -> dict[str, Any]:
        text = self._tokenizer.token_text
        tokens = [text(step.token_id) for step in steps]
        offsets = [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))]
        return {
            "tokens": tokens,
            "token_logprobs": [step.logprob for step in steps],
            "top_logprobs": [{text(token): logprob for token, logprob in step.top_logprobs} for step in steps],
            "text_offset": offsets,
        }


class GenerateFormat:
    """``/generate``: SGLang's own, whose events repeat the text so far."""

    def __init__(self, *, answer_id: str, many: bool, logprobs: bool, start: int, record: Record) -> None:
        self._id = answer_id
        self._many = many
        self._logprobs = logprobs
        self._start = start
        self._record = record

    def full(self, choices: Sequence[Choice], record: Record) -> Any:
        """See `Format`."""
        answers = [self._answer(choice) for choice in choices]
        for answer in answers:
            answer["meta_info"]["epd"] = epd(record)
        return answers if self._many else answers[0]

    def chunks(self, delta: Delta, choice: Choice) -> list[Any]:
        """See `Format`."""
        if not (delta.text or delta.finish or len(choice.steps) == 1):
            return []
        return [self._answer(choice) | ({"index": choice.index} if self._many else {})]

    def closing(self, choices: Sequence[Choice]) -> list[Any]:  # noqa: ARG002 - the last event says it all
        """See `Format`."""
        return []

    def _answer(self, choice: Choice) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": f"{self._id}-{choice.index}" if self._many else self._id,
            "finish_reason": _reason(choice),
            "prompt_tokens": len(choice.token_ids),
            "completion_tokens": len(choice.steps),
            "cached_tokens": choice.cached_tokens,
            "e2e_latency": round(self._record.age, 6),
        }
        if self._logprobs:
            prompt = zip(choice.steps[0].prompt_logprobs, choice.token_ids, strict=False)
            meta["input_token_logprobs"] = [[logprob, token, None] for logprob, token in prompt][max(self._start, 0) :]
            # The router joins the prompt's list of prefill and the empty one of decode; the rest it takes from decode.
            meta["output_token_logprobs"] = [[step.logprob, step.token_id, None] for step in choice.steps]
            meta["output_top_logprobs"] = [
                [[logprob, token, None] for token, logprob in step.top_logprobs] for step in choice.steps
            ]
        return {"text": choice.text, "output_ids": [step.token_id for step in choice.steps], "meta_info": meta}


def _reason(choice: Choice) -> dict[str, Any] | None:
    last = choice.last
    match last.finish:
        case None:
            return None
        case "length":
            return {"type": "length", "length": len(choice.steps)}
        case _:
            return {"type": last.finish, "matched": last.matched_stop}
