"""Dialogues as token ids with a weight for every token that is to be predicted, and batches of them.

The tricky idea: of a dialogue only the answers can be predicted; questions and idle text count a little, so that the
model learns the language without spending itself on what is chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from epd_workers.reference.model import image
from epd_workers.reference.model.tokenizer import ImageSlot, Message
from epd_workers.reference.training import scene as scenes
from epd_workers.reference.training import story
from epd_workers.reference.training.scene import Scene, Thing
from epd_workers.reference.training.story import Fact
from epd_workers.reference.training.vocabulary import COLOURS, NAMES, SHAPES
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


class Mention(NamedTuple):
    """A place where the text mentions a fact, for the first time or again.

    Attributes:
        before: Position of the token that the mention's last word follows.
        stated: Position of that word in the first mention.
        name: Index of the person that the fact is about, in `NAMES`.
        topic: Index of its topic, in `story.TOPICS`.
    """

    before: int
    stated: int
    name: int
    topic: int


@dataclass(frozen=True)
class Sample:
    """One dialogue: ids, the weight of each one's prediction, the mentions of facts, and which tokens look where."""

    ids: list[int]
    weights: list[float]
    mentions: tuple[Mention, ...] = ()
    aims: tuple[tuple[int, int], ...] = ()


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
        mentions: Dialogue and fields of each `Mention`, [n, 5] int64.
        aims: Dialogue, token, and the earlier token that it should look at, [n, 3] int64.
        pictures: One per dialogue, or none at all.
    """

    ids: Tensor
    image: Tensor
    weights: Tensor
    mentions: Tensor
    aims: Tensor
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
        drawn = [Scene.draw(rng, size, held=False) for _ in range(count)]
        samples = []
        for scene in drawn:
            asked = scene.turns(rng)
            rng.shuffle(asked)
            opening = self.prompt(varied(asked[0].question, rng), system_prompt(rng), plan)
            samples.append(self._looking(self.sample(opening, asked[:turns], rng), asked[:turns], scene, plan))
        return self.collate(samples, self.pictures(drawn, rng))

    def _looking(self, sample: Sample, turns: Sequence[Turn], scene: Scene, plan: Plan) -> Sample:
        """Add at which cell each word of an answer should look."""
        start = sample.ids.index(self._tokenizer.image_id) + 1
        cells = [_cell(scene, thing, plan, self._vision) for thing in scene.things]
        tokens = [start + line * (plan.cells[1] + 1) + column for line, column in cells]
        parted = {*self._tokenizer.encode(","), *self._tokenizer.encode(" and")}
        aims = []
        for turn, end in zip(turns, self._ends(sample), strict=True):
            part, first = 0, end + 1 - len(self.answer(turn))
            for at in range(first, end - 1):
                if sample.ids[at] in parted:
                    part += 1
                elif turn.about:
                    aims += [(at - 1, tokens[thing]) for thing in turn.about[part]]
        return Sample(sample.ids, sample.weights, (), tuple(aims))

    def _ends(self, sample: Sample) -> list[int]:
        """Positions of the answers' ends."""
        pairs = enumerate(zip(sample.ids, sample.weights, strict=True))
        return [i for i, (token, weight) in pairs if weight == ANSWER_WEIGHT and token == self._tokenizer.eos_id]

    def some_pictures(self, rng: Random, count: int) -> Pictures:
        """Pictures of one size for training."""
        size = scenes.size(rng)
        return self.pictures([Scene.draw(rng, size, held=False) for _ in range(count)], rng)

    def pictures(self, drawn: Sequence[Scene], rng: Random) -> Pictures:
        """Draw scenes of one size."""
        plan = image.plan(drawn[0].width, drawn[0].height, self._vision)
        patches = torch.stack([image.patches(scene.image(rng), plan) for scene in drawn])
        return Pictures(patches, plan, torch.stack([_cells(scene, plan, self._vision) for scene in drawn]))

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
        repeated = [fact for fact in known if rng.random() < restated]
        rng.shuffle(repeated)
        idle: list[str] = []
        length = sum(self.length(fact.statement) for fact in (*known, *repeated))
        while length < tokens:
            idle.append(story.idle(rng))
            length += self.length(idle[-1])
        sentences: list[Fact | str] = [*known, *idle]
        rng.shuffle(sentences)
        sentences += repeated
        text = " ".join(part if isinstance(part, str) else part.statement for part in sentences)
        asked = rng.sample(known, turns)
        first = varied(asked[0].turn.question, rng)
        if rng.random() < _SYSTEM_STORY:
            opening = self.prompt(first, text, None)
        else:
            opening = self.prompt(f"{text} {first}", system_prompt(rng), None)
        sample = self.sample(opening, [fact.turn for fact in asked], rng)
        return self._with_mentions(sample, sentences, asked, text)

    def _with_mentions(self, sample: Sample, sentences: list[Fact | str], asked: list[Fact], text: str) -> Sample:
        """Add the mentions of facts, and let restated facts count."""
        at = _find(sample.ids, self._tokenizer.encode(text))
        stated: dict[Fact, int] = {}
        mentions = []
        weights = list(sample.weights)
        for i, part in enumerate(sentences):
            fact = part if isinstance(part, Fact) else None
            at += len(self._tokenizer.encode((" " if i else "") + (fact.statement if fact else str(part))))
            if fact:
                # Behind the last word stands the full stop.
                word = at - 2
                if fact in stated:
                    weights[word] = RESTATED_WEIGHT
                mentions.append(_mention(fact, word - 1 if fact in stated else word, stated.setdefault(fact, word)))
        mentions += [_mention(fact, end - 3, stated[fact]) for fact, end in zip(asked, self._ends(sample), strict=True)]
        aims = tuple((mention.before, mention.stated) for mention in mentions if mention.before > mention.stated)
        return Sample(sample.ids, weights, tuple(mentions), aims)

    def collate(self, samples: Sequence[Sample], pictures: Pictures | None) -> Batch:
        """Pad to the longest, with weight 0."""
        most = max(len(sample.ids) for sample in samples)
        pad = self._tokenizer.pad_id
        ids = torch.tensor([sample.ids + [pad] * (most - len(sample.ids)) for sample in samples])
        weights = torch.tensor([sample.weights + [0.0] * (most - len(sample.ids)) for sample in samples])
        image_at = ids == self._tokenizer.image_id
        mentions = torch.tensor(
            [(i, *mention) for i, sample in enumerate(samples) for mention in sample.mentions], dtype=torch.int64
        )
        aims = torch.tensor([(i, *aim) for i, sample in enumerate(samples) for aim in sample.aims], dtype=torch.int64)
        counted = weights.masked_fill(image_at, 0)
        return Batch(ids, image_at, counted, mentions.view(-1, 5), aims.view(-1, 3), pictures)


def _cells(scene: Scene, plan: Plan, vision: VisionConfig) -> Tensor:
    """What stands in each cell, as `Pictures.cells` says."""
    cells = torch.zeros(*plan.cells, 3, dtype=torch.int64)
    for thing in scene.things:
        numbers = SHAPES.index(thing.shape) + 1, list(COLOURS).index(thing.colour) + 1, thing.place
        cells[_cell(scene, thing, plan, vision)] = torch.tensor(numbers)
    return cells.flatten(0, 1)


def _cell(scene: Scene, thing: Thing, plan: Plan, vision: VisionConfig) -> tuple[int, int]:
    """Line and column of the cell that holds a thing's centre."""
    width, height = plan.size
    scale = min(width / scene.width, height / scene.height)
    side = plan.patch * vision.downsample_ratio
    x = (width - scene.width * scale) / 2 + thing.x * scene.width * scale
    y = (height - scene.height * scale) / 2 + thing.y * scene.height * scale
    return min(int(y / side), plan.cells[0] - 1), min(int(x / side), plan.cells[1] - 1)


def _mention(fact: Fact, before: int, stated: int) -> Mention:
    return Mention(before, stated, NAMES.index(fact.name), story.TOPICS.index(fact.topic))


def _find(ids: list[int], run: list[int]) -> int:
    """Where a run of ids begins."""
    return next(i for i in range(len(ids)) if ids[i : i + len(run)] == run)
