"""Bytes as tokens: ids 0..255 are bytes, the few above are markers that no text can produce."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BYTES = 256
_MARKERS = ("<bos>", "<eos>", "<image>", "<system>", "<user>", "<assistant>")


@dataclass(frozen=True)
class ImageSlot:
    """Where image number `index` of a request stands."""

    index: int


Part = int | str | ImageSlot
"""A marker id, a text, or the place of an image."""


@dataclass(frozen=True)
class Message:
    """One chat message: a role of `Tokenizer.roles` and its texts and images in order."""

    role: str
    content: tuple[str | ImageSlot, ...]


class Detokenizer:
    """Turns ids into text as they come: text comes out once its UTF-8 bytes are complete, invalid bytes as U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes; markers are silent."""
        return self._decoder.decode(bytes([token_id])) if 0 <= token_id < _BYTES else ""

    def finish(self) -> str:
        """What an unfinished character leaves."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """Text to ids and back, and the chat template."""

    vocab_size = _BYTES + len(_MARKERS)
    bos_id, eos_id, image_id = range(_BYTES, _BYTES + 3)
    roles = ("system", "user", "assistant")

    def encode(self, text: str) -> list[int]:
        """UTF-8 bytes; lone surrogates (possible in JSON) become '?'. Never yields a marker id."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of complete ids."""
        detokenizer = Detokenizer()
        return "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()

    def token_text(self, token_id: int) -> str:
        """One id alone, for log-probability reports: markers by name, partial characters as U+FFFD."""
        return _MARKERS[token_id - _BYTES] if token_id >= _BYTES else bytes([token_id]).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes an id adds to the answer; none for markers."""
        return bytes([token_id]) if token_id < _BYTES else b""

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> tuple[Part, ...]:
        """Chat template: <bos>, then <role> content <eos> per message, then <assistant> to answer.

        Args:
            messages: At least one.
            generate: End with the marker that opens the answer.

        Raises:
            ValueError: No message, or a role outside `roles`.
        """
        if not messages:
            raise ValueError("messages is []: must hold at least one message")
        faults = [
            f"messages[{i}].role is {message.role!r}: must be one of {', '.join(self.roles)}"
            for i, message in enumerate(messages)
            if message.role not in self.roles
        ]
        if faults:
            raise ValueError("; ".join(faults))
        parts: list[Part] = [self.bos_id]
        for message in messages:
            parts += [self._role_id(message.role), *message.content, self.eos_id]
        return (*parts, self._role_id("assistant")) if generate else tuple(parts)

    def _role_id(self, role: str) -> int:
        return self.image_id + 1 + self.roles.index(role)
