"""What the synthetic world is made of: dialogues, and which contents are kept from training."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

HELD_OUT_ONE_IN: Final = 8
SYSTEM_PROMPTS: Final = (
    "You see a picture. Answer the question.",
    "Answer the question, please.",
    "You keep it short.",
)
_PLAIN: Final = 0.7
_LOWER: Final = 0.1
_UNMARKED: Final = 0.1
_PLEASE: Final = 0.05


@dataclass(frozen=True)
class Turn:
    """A question, its one right answer and what it tests.

    Attributes:
        question: With its mark.
        answer: With its full stop.
        kind: What it tests.
        about: For each part of the answer, split at commas and "and", the numbers of the things in the picture to look
            at.
    """

    question: str
    answer: str
    kind: str
    about: tuple[tuple[int, ...], ...] = ()


def held_out(*content: str) -> bool:
    """Whether a content belongs to the held-out set: one in `HELD_OUT_ONE_IN`, by a hash of its words."""
    digest = hashlib.sha256("\n".join(content).encode()).digest()
    return digest[0] % HELD_OUT_ONE_IN == 0


def varied(question: str, rng: Random) -> str:
    """The question as people type it: at times without capital or question mark, at times with a please."""
    if rng.random() < _PLEASE:
        question = f"{question[:-1]}, please{question[-1]}"
    if rng.random() < _LOWER:
        question = question[0].lower() + question[1:]
    return question.rstrip("?.") if rng.random() < _UNMARKED else question


def system_prompt(rng: Random) -> str | None:
    """A system prompt, or none."""
    return None if rng.random() < _PLAIN else rng.choice(SYSTEM_PROMPTS)


def joined(parts: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
