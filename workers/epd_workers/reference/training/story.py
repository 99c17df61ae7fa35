"""Texts that state facts somewhere among idle sentences, and the questions that ask for them far behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epd_workers.reference.training.vocabulary import (
    DEEDS,
    FOODS,
    ITEMS,
    KINDS,
    MOODS,
    NAMES,
    ROOMS,
    THINGS,
    TOWNS,
)
from epd_workers.reference.training.world import Turn, held_out

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

TOPICS: Final = (*ITEMS, "ask", "live")
_KEEP_SHARE: Final = 0.6
_NOISE_WORD: Final = 0.04


@dataclass(frozen=True)
class Fact:
    """A statement and the question it answers.

    Attributes:
        name: The person it is about.
        topic: What it says about them; no two facts of a story share name and topic.
        statement: Its last word is the answer's.
        turn: The question.
    """

    name: str
    topic: str
    statement: str
    turn: Turn

    @property
    def held_out(self) -> bool:
        """Whether it is kept from training."""
        return held_out(self.statement)


def fact(rng: Random, *, held: bool) -> Fact:
    """A fact of one of the two sets."""
    while True:
        made = _fact(rng)
        if made.held_out == held:
            return made


def _fact(rng: Random) -> Fact:
    name = rng.choice(NAMES)
    if rng.random() < _KEEP_SHARE:
        kind, item, room = rng.choice(KINDS), rng.choice(ITEMS), rng.choice(ROOMS)
        turn = Turn(f"Where does {name} keep the {kind} {item}?", f"In the {room}.", "keep")
        return Fact(name, item, f"{name} keeps the {kind} {item} in the {room}.", turn)
    if rng.random() < 0.5:
        food = rng.choice(FOODS)
        turn = Turn(f"What does {name} ask for?", f"For {food}.", "ask")
        return Fact(name, "ask", f"{name} asks for {food}.", turn)
    town = rng.choice(TOWNS)
    return Fact(name, "live", f"{name} lives in {town}.", Turn(f"Where does {name} live?", f"In {town}.", "live"))


def facts(rng: Random, count: int, *, held: bool) -> list[Fact]:
    """Facts about different subjects, so that every question has one answer."""
    made: dict[tuple[str, str], Fact] = {}
    while len(made) < count:
        new = fact(rng, held=held)
        made.setdefault((new.name, new.topic), new)
    return list(made.values())


def idle(rng: Random) -> str:
    """A sentence that states nothing anybody asks for."""
    first, second = rng.sample(THINGS, 2)
    if rng.random() < _NOISE_WORD:
        first = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 7)))
    if rng.random() < 0.5:
        return f"The {first} was {rng.choice(MOODS)} and the {second} {rng.choice(DEEDS)}."
    return f"Then the {first} {rng.choice(DEEDS)} on the {rng.choice(MOODS)} {second}."


def prose(rng: Random, tokens: int, count: Callable[[str], int]) -> str:
    """Idle sentences, each with a space in front, of at least so many tokens."""
    text, length = [], 0
    while length < tokens:
        text.append(" " + idle(rng))
        length += count(text[-1])
    return "".join(text)
