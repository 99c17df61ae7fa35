"""Byte-level pieces as tokens, read from a checkpoint's `tokenizer.json`, and the chat template.

Ids 0..255 are the bytes themselves, the next few are markers that no text can produce, pieces of text follow.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BYTES: Final = 256
MARKERS: Final = ("<bos>", "<eos>", "<image>", "<system>", "<user>", "<assistant>", "<pad>", "<noise>")
_PACKAGED: Final = Path(__file__).parents[1] / "checkpoint" / "tokenizer.json"


class BadTokenizer(ValueError):
    """A tokenizer file that this engine cannot use; the message lists every fault."""


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

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes; markers are silent."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What an unfinished character leaves."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """Text to ids and back, and the chat template.

    Args:
        model: A byte-level one.

    Attributes:
        vocab_size: Number of ids, those without a text included.

    Raises:
        BadTokenizer: Its first ids are not the bytes and the markers, or its ids have gaps.
    """

    bos_id, eos_id, image_id = range(BYTES, BYTES + 3)
    pad_id, noise_id = range(BYTES + 6, BYTES + 8)
    roles = ("system", "user", "assistant")

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        names = {number: name for name, number in model.get_vocab().items()}
        self.vocab_size = len(names)
        self._model = model
        faults = []
        if sorted(names) != list(range(len(names))):
            faults.append("the ids have gaps: must be 0, 1, 2, ... without one missing")
        wrong = [i for i in range(BYTES) if names.get(i) != _LETTERS[i]]
        if wrong:
            faults.append(f"id {wrong[0]} is {names.get(wrong[0])!r}: ids 0..255 must be the bytes")
        wrong = [i for i, name in enumerate(MARKERS, BYTES) if names.get(i) != name]
        if wrong:
            name = MARKERS[wrong[0] - BYTES]
            faults.append(f"id {wrong[0]} is {names.get(wrong[0])!r}: must be {name!r}")
        if faults:
            raise BadTokenizer("; ".join(faults))
        first = BYTES + len(MARKERS)
        self._names = tuple(names[i] for i in range(len(names)))
        self._bytes = (
            *(bytes([i]) for i in range(BYTES)),
            *(b"" for _ in MARKERS),
            *(_spelled(name) for name in self._names[first:]),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a `tokenizer.json`.

        Raises:
            BadTokenizer: There is no such file, or it cannot be used.
        """
        try:
            model = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a missing or damaged file
            raise BadTokenizer(f"{path} cannot be read as a tokenizer: {error}") from error
        try:
            return cls(model)
        except BadTokenizer as error:
            raise BadTokenizer(f"{path}: {error}") from error

    @classmethod
    @lru_cache(maxsize=1)
    def default(cls) -> Self:
        """The packaged checkpoint's."""
        return cls.load(_PACKAGED)

    def encode(self, text: str) -> list[int]:
        """Pieces and bytes; lone surrogates (possible in JSON) become '?'. Never yields a marker id."""
        clean = text.encode("utf-8", "replace").decode()
        ids: list[int] = self._model.encode(clean, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of complete ids."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """One id alone, for log-probability reports: markers by name, partial characters as U+FFFD."""
        text = self._bytes[token_id]
        return text.decode("utf-8", "replace") if text else self._names[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes an id adds to the answer; none for markers and for ids outside the vocabulary."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

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


def byte_letters() -> tuple[str, ...]:
    """The letter that stands for each byte in a byte-level vocabulary: itself if visible, else one above U+00FF.

    Source: GPT-2, encoder.py, bytes_to_unicode.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    return tuple(chr(byte) if byte in visible else chr(BYTES + hidden.index(byte)) for byte in range(BYTES))


_LETTERS: Final = byte_letters()
_BYTE_OF: Final = {letter: byte for byte, letter in enumerate(_LETTERS)}


def _spelled(name: str) -> bytes:
    """The bytes of a piece; none if its name is not written in byte letters (an id without a text)."""
    return bytes(_BYTE_OF[letter] for letter in name) if set(name) <= set(_BYTE_OF) else b""
