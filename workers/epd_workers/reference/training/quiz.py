"""Held-out questions: what evaluation asks, in groups that are counted apart."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from epd_workers.reference.model import image
from epd_workers.reference.training import scene as scenes
from epd_workers.reference.training import story
from epd_workers.reference.training.scene import Scene

if TYPE_CHECKING:
    from PIL.Image import Image

    from epd_workers.reference.model.config import VisionConfig
    from epd_workers.reference.training.sample import Writer
    from epd_workers.reference.training.world import Turn

DISTANCES: Final = ((150, 250), (250, 500), (500, 1000))
_FACTS: Final = 10
_BEFORE: Final = 40


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        group: What it is counted under, "image ..." or "recall ...".
        prompt: Ids up to the answer.
        answer: The only right text.
        picture: What the image positions show; None without.
    """

    group: str
    prompt: list[int]
    answer: str
    picture: Image | None


def image_cases(writer: Writer, vision: VisionConfig, count: int, seed: int) -> list[Case]:
    """Questions about held-out pictures, one each, the kinds in turn."""
    rng = Random(f"{seed}/image")  # noqa: S311 - a repeatable quiz
    cases: list[Case] = []
    kinds = ("describe", "colour", "where", "count", "exists", "at")
    while len(cases) < count:
        scene = Scene.draw(rng, scenes.size(rng), held=True)
        turn = _of_kind(scene.turns(rng), kinds[len(cases) % len(kinds)])
        if turn is None:
            continue
        plan = image.plan(scene.width, scene.height, vision)
        prompt = writer.prompt(turn.question, None, plan)
        cases.append(Case(f"image {turn.kind}", prompt, turn.answer, scene.image(rng)))
    return cases


def recall_cases(writer: Writer, count: int, seed: int) -> list[Case]:
    """Questions about held-out facts, the ranges of distances (tokens from fact to question) in turn."""
    rng = Random(f"{seed}/recall")  # noqa: S311 - a repeatable quiz
    cases = []
    for i in range(count):
        low, high = DISTANCES[i % len(DISTANCES)]
        asked, *others = story.facts(rng, 1 + _FACTS, held=True)
        later = [fact.statement for fact in others]
        length, aim = sum(map(writer.length, later)), rng.randint(low, high)
        while length < aim:
            later.append(story.idle(rng))
            length += writer.length(later[-1])
        rng.shuffle(later)
        before = story.prose(rng, _BEFORE, writer.length).strip()
        text = " ".join((before, asked.statement, *later, asked.turn.question))
        prompt = writer.prompt(text, None, None)
        cases.append(Case(f"recall {low}-{high}", prompt, asked.turn.answer, None))
    return cases


def _of_kind(turns: list[Turn], kind: str) -> Turn | None:
    return next((turn for turn in turns if turn.kind == kind), None)
