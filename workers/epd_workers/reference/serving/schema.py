"""The bodies of the generation routes, as far as this engine reads them.

Fields of the protocols that it does not know are ignored: routers add many (``separate_reasoning``, ``no_logs``, ...).
Fields that would change the meaning of the answer in a way it cannot honour are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Ids = list[Annotated[int, Field(ge=0)]]
CONSTRAINTS = ("logit_bias", "json_schema", "regex", "ebnf", "structural_tag", "functions")


class Body(BaseModel):
    """What all generation routes share: the place in a disaggregated pair, the caller's names for request and caches.

    ``cache_salt`` and ``extra_key`` are SGLang's (0.5.23, ``entrypoints/openai/protocol.py``).
    """

    model_config = ConfigDict(extra="ignore")

    rid: Annotated[str, Field(max_length=256)] | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    extra_key: Annotated[str, Field(max_length=256)] | None = None
    stream: bool = False
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None

    @field_validator("stream", mode="before")
    @classmethod
    def _null_stream(cls, value: Any) -> Any:
        return False if value is None else value

    @property
    def salt(self) -> str:
        """The same for requests that may share caches; empty if this one says nothing about it."""
        messages = [self.cache_salt or "", self.extra_key or ""]
        return json.dumps(messages) if any(messages) else ""


class StreamOptions(BaseModel):
    """``stream_options`` of OpenAI."""

    include_usage: bool = False


class Unconstrained(BaseModel):
    """Refuses what steers the choice of tokens in a way this engine cannot: ignored, the answer would be wrong."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_constraints(cls, data: Any) -> Any:
        faults = [name for name in CONSTRAINTS if isinstance(data, Mapping) and data.get(name)]
        if faults:
            raise ValueError(f"{', '.join(faults)} cannot be honoured by this engine: leave out")
        return data


class Sampled(Unconstrained):
    """How tokens are chosen and when to stop, under the names that every route shares."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Ids | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None


class OpenAiBody(Sampled, Body):
    """What chat and text completions share."""

    model: str = ""
    n: Annotated[int, Field(ge=1, le=64)] | None = 1
    seed: int | None = None
    ignore_eos: bool | None = False
    min_tokens: int | None = 0
    repetition_penalty: float | None = None
    stream_options: StreamOptions | None = None


class ImageUrl(BaseModel):
    """The address of an image; ``detail`` has no meaning for this model."""

    url: str


class ContentPart(BaseModel):
    """A text or an image of a message."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None

    @model_validator(mode="after")
    def _complete(self) -> ContentPart:
        if self.type not in {"text", "image_url"}:
            raise ValueError(f"type {self.type!r} is not known here: must be text or image_url")
        if getattr(self, self.type) is None:
            raise ValueError(f"a part of type {self.type} must have the field {self.type}")
        return self


class ChatMessage(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None


class ResponseFormat(BaseModel):
    """The asked-for form of the answer; only free text exists here."""

    type: str = "text"


class ChatBody(OpenAiBody):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _supported(self) -> ChatBody:
        if self.tools and self.tool_choice != "none":
            raise ValueError("this model calls no tools: leave tools out, or give tool_choice none")
        if self.response_format is not None and self.response_format.type != "text":
            raise ValueError(f"response_format {self.response_format.type!r} is not supported: must be text")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs true")
        return self


class CompletionBody(OpenAiBody):
    """``POST /v1/completions``."""

    prompt: str | list[str] | Ids | list[Ids]
    max_tokens: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | bool | None = None
    echo: bool | None = False
    suffix: str | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _supported(self) -> CompletionBody:
        faults = [name for name, value in (("echo", self.echo), ("suffix", self.suffix)) if value]
        if self.best_of is not None and self.best_of != (self.n or 1):
            faults.append("best_of")
        if faults:
            raise ValueError(f"{', '.join(faults)} cannot be honoured by this engine: leave out")
        if not self.prompt:
            raise ValueError("prompt is empty: give a text or token ids")
        return self


class SamplingParams(Sampled):
    """``sampling_params`` of ``POST /generate``."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    n: Annotated[int, Field(ge=1, le=64)] | None = 1


class GenerateBody(Body):
    """``POST /generate``."""

    text: str | list[str] | None = None
    input_ids: Ids | list[Ids] | None = None
    image_data: str | list[str] | None = None
    sampling_params: SamplingParams | None = None
    return_logprob: bool | None = False
    logprob_start_len: int | None = -1
    top_logprobs_num: Annotated[int, Field(ge=0, le=20)] | None = 0

    @model_validator(mode="after")
    def _one_prompt(self) -> GenerateBody:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give text or input_ids, and only one of them")
        if not self.text and not self.input_ids:
            raise ValueError("the prompt is empty: give a text or token ids")
        return self
