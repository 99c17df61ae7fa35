"""Dialogues as token ids with a weight for every token that is to be predicted, and batches of them.

The tricky idea: of a dialogue only the answers can be predicted; questions and idle text count a little, so that the
model learns the language without spending itself on what is chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from epd_workers.reference.model import image
from epd_workers.reference.model.tokenizer import ImageSlot, Message
from epd_workers.reference.training import scene as scenes
from epd_workers.reference.training import story
from epd_workers.reference.training.scene import Scene
from epd_workers.reference.training.vocabulary import COLOURS, SHAPES
from epd_workers.reference.training.world import system_prompt, varied

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from torch import Tensor

    from epd_workers.reference.model.config import VisionConfig
    from epd_workers.reference.model.image import Plan
    from epd_workers.reference.model.tokenizer import Tokenizer
    from epd_workers.reference.training.world import Turn

TEXT_WEIGHT: Final = 0.02
ANSWER_WEIGHT: Final = 1.0
RESTATED_WEIGHT: Final = 0.9
_SYSTEM_STORY: Final = 0.15


@dataclass(frozen=True)
class Sample:
    """One dialogue: ids and, for each, how much its prediction counts."""

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True)
class Pictures:
    """Pictures of one size.

    Attributes:
        patches: [batch, patches, 3 patch²].
        plan: Of all of them.
        cells: What stands in each cell [batch, cells, 3] int64: shape and colour (0: nothing, else the number plus
            one) and place of the object whose centre it holds.
    """

    patches: Tensor
    plan: Plan
    cells: Tensor


@dataclass(frozen=True)
class Batch:
    """Padded dialogues.

    Attributes:
        ids: [batch, tokens] int64.
        image: [batch, tokens], true at image positions.
        weights: [batch, tokens], of the prediction of each token from those before it.
        pictures: One per dialogue, or none at all.
    """

    ids: Tensor
    image: Tensor
    weights: Tensor
    pictures: Pictures | None


class Writer:
    """Turns dialogues into samples and batches."""

    def __init__(self, tokenizer: Tokenizer, vision: VisionConfig) -> None:
        self._tokenizer = tokenizer
        self._vision = vision

    def length(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text))

    def prompt(self, text: str, system: str | None, plan: Plan | None) -> list[int]:
        """Ids up to the place of the answer.

        Args:
            text: What the user says, behind the picture if there is one.
            system: The system prompt, if any.
            plan: Of the picture, if there is one.
        """
        slot = (ImageSlot(0),) if plan else ()
        messages = [Message("system", (system,))] if system else []
        ids: list[int] = []
        for part in self._tokenizer.render([*messages, Message("user", (*slot, text))]):
            if isinstance(part, ImageSlot):
                assert plan is not None
                ids += [self._tokenizer.image_id] * plan.span
            else:
                ids += [part] if isinstance(part, int) else self._tokenizer.encode(part)
        return ids

    def answer(self, turn: Turn) -> list[int]:
        """Ids of an answer and its end."""
        return [*self._tokenizer.encode(turn.answer), self._tokenizer.eos_id]

    def sample(self, opening: list[int], turns: Sequence[Turn], rng: Random) -> Sample:
        """A whole dialogue.

        Args:
            opening: The prompt that ends with the first question.
            turns: The questions (the first stands in the opening) and answers.
            rng: Varies the questions.
        """
        ids, weights = list(opening), [TEXT_WEIGHT] * len(opening)
        for i, turn in enumerate(turns):
            if i:
                # A later turn continues the same text: the template of a lone message, without <bos>.
                asked = self.prompt(varied(turn.question, rng), None, None)[1:]
                ids += asked
                weights += [TEXT_WEIGHT] * len(asked)
            answer = self.answer(turn)
            ids += answer
            weights += [ANSWER_WEIGHT] * len(answer)
        return Sample(ids, weights)

    def picture_batch(self, rng: Random, count: int, turns: int) -> Batch:
        """Dialogues about pictures of one size, each with at most so many turns."""
        size = scenes.size(rng)
        plan = image.plan(*size, self._vision)
        found = [Scene.draw(rng, size, held=False) for _ in range(count)]
        samples = []
        for one in found:
            asked = one.turns(rng)
            rng.shuffle(asked)
            asked = asked[:turns]
            samples.append(
                self.sample(self.prompt(varied(asked[0].question, rng), system_prompt(rng), plan), asked, rng)
            )
        return self.collate(samples, self.pictures(found, rng))

    def some_pictures(self, rng: Random, count: int) -> Pictures:
        """Pictures of one size for training."""
        size = scenes.size(rng)
        return self.pictures([Scene.draw(rng, size, held=False) for _ in range(count)], rng)

    def pictures(self, found: Sequence[Scene], rng: Random) -> Pictures:
        """Draw scenes of one size."""
        plan = image.plan(found[0].width, found[0].height, self._vision)
        patches = torch.stack([image.patches(one.image(rng), plan) for one in found])
        return Pictures(patches, plan, torch.stack([_cells(one, plan, self._vision) for one in found]))

    def story_batch(self, rng: Random, count: int, tokens: int, turns: int, restated: float) -> Batch:
        """Stories of about so many tokens with questions about them behind.

        Args:
            rng: Where chance comes from.
            count: Stories.
            tokens: Of each, without the questions.
            turns: Questions behind each.
            restated: Part of the facts that the story states a second time, which can then be predicted.
        """
        return self.collate([self._story(rng, tokens, turns, restated) for _ in range(count)], None)

    def _story(self, rng: Random, tokens: int, turns: int, restated: float) -> Sample:
        known = story.facts(rng, turns + rng.randint(0, turns // 2), held=False)
        sentences = [fact.statement for fact in known]
        again = [sentence for sentence in sentences if rng.random() < restated]
        length = sum(map(self.length, sentences + again))
        while length < tokens:
            sentences.append(story.idle(rng))
            length += self.length(sentences[-1])
        rng.shuffle(sentences)
        rng.shuffle(again)
        text = " ".join(sentences + again)
        asked = [fact.turn for fact in rng.sample(known, turns)]
        first = varied(asked[0].question, rng)
        if rng.random() < _SYSTEM_STORY:
            opening = self.prompt(first, text, None)
        else:
            opening = self.prompt(f"{text} {first}", system_prompt(rng), None)
        sample = self.sample(opening, asked, rng)
        for sentence in again:
            ids = self._tokenizer.encode(" " + sentence)
            start = _last(opening, ids)
            # The last word but for the full stop is what was said before.
            sample.weights[start + len(ids) - 2] = RESTATED_WEIGHT
        return sample

    def collate(self, samples: Sequence[Sample], pictures: Pictures | None) -> Batch:
        """Pad to the longest, with weight 0."""
        most = max(len(sample.ids) for sample in samples)
        pad = self._tokenizer.pad_id
        ids = torch.tensor([sample.ids + [pad] * (most - len(sample.ids)) for sample in samples])
        weights = torch.tensor([sample.weights + [0.0] * (most - len(sample.ids)) for sample in samples])
        image_at = ids == self._tokenizer.image_id
        return Batch(ids, image_at, weights.masked_fill(image_at, 0), pictures)


def _cells(one: Scene, plan: Plan, vision: VisionConfig) -> Tensor:
    """What stands in each cell, as `Pictures.cells` says."""
    lines, columns = plan.cells
    cells = torch.zeros(lines, columns, 3, dtype=torch.int64)
    width, height = plan.size
    scale = min(width / one.width, height / one.height)
    side = plan.patch * vision.downsample_ratio
    for thing in one.things:
        x = (width - one.width * scale) / 2 + thing.x * one.width * scale
        y = (height - one.height * scale) / 2 + thing.y * one.height * scale
        where = min(int(y / side), lines - 1), min(int(x / side), columns - 1)
        numbers = SHAPES.index(thing.shape) + 1, list(COLOURS).index(thing.colour) + 1, thing.place
        cells[where] = torch.tensor(numbers)
    return cells.flatten(0, 1)


def _last(ids: list[int], run: list[int]) -> int:
    """Where a run of ids stands last."""
    return next(i for i in range(len(ids) - len(run), -1, -1) if ids[i : i + len(run)] == run)
