"""Pictures of a few plain shapes on a light ground, and the questions about them that have exactly one answer.

Source of the idea: Johnson et al., CLEVR (2017): questions generated from a scene's own description.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image, ImageDraw

from epd_workers.reference.training.vocabulary import COLOURS, NUMBERS, PLACES_IN_PICTURE, SHAPES
from epd_workers.reference.training.world import Turn, held_out, joined

if TYPE_CHECKING:
    from random import Random

SIDES: Final = (112, 126, 126, 140, 150, 168, 168, 180, 200, 210, 240, 252, 300, 336)
MOST_OBJECTS: Final = 4
MIDDLE: Final = 4
_RADIUS: Final = (0.13, 0.155)
_LARGE: Final = (0.155, 0.3)
_JITTER: Final = 0.01
_TINT: Final = 25
_NOISE: Final = 6.0
_JPEG: Final = 0.15


@dataclass(frozen=True)
class Thing:
    """One object.

    Attributes:
        shape: Of `SHAPES`.
        colour: Of `COLOURS`.
        place: Index into `PLACES_IN_PICTURE`.
        radius: Of its outer circle, as a part of the shorter side.
        x: Of its centre, as a part of the width.
        y: Of its centre, as a part of the height.
    """

    shape: str
    colour: str
    place: int
    radius: float
    x: float
    y: float

    @property
    def name(self) -> str:
        """Colour and shape."""
        return f"{self.colour} {self.shape}"

    @property
    def words(self) -> str:
        """What its description says of it."""
        return f"{_a(self.name)} {PLACES_IN_PICTURE[self.place]}"


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn; things in reading order, no two in one place."""

    width: int
    height: int
    things: tuple[Thing, ...]

    @property
    def held_out(self) -> bool:
        """Whether it is kept from training: by shapes, colours and places alone."""
        return held_out(*(thing.words for thing in self.things))

    @classmethod
    def draw(cls, rng: Random, size: tuple[int, int], *, held: bool) -> Scene:
        """A scene of one of the two sets.

        Args:
            rng: Where chance comes from.
            size: (width, height), in pixels.
            held: Of the held-out set.
        """
        while True:
            count = rng.randint(1, MOST_OBJECTS)
            places = sorted(rng.sample(range(len(PLACES_IN_PICTURE)), count))
            scene = cls(*size, tuple(_thing(rng, place, alone=count == 1) for place in places))
            if scene.held_out == held:
                return scene

    def turns(self, rng: Random) -> list[Turn]:
        """Questions of every kind that has a certain answer here; two of the kinds that are hardest and shortest."""
        made = [self._at(rng), self._describe(rng)]
        for _ in range(2):
            made += [self._count(rng), self._exists(rng)]
        shapes = [thing.shape for thing in self.things]
        names = [thing.name for thing in self.things]
        single = [thing for thing in self.things if shapes.count(thing.shape) == 1]
        if single:
            made.append(self._colour(rng, rng.choice(single)))
        sole = [thing for thing in self.things if names.count(thing.name) == 1]
        if sole:
            thing = rng.choice(sole)
            name = thing.shape if thing in single and rng.random() < 0.5 else thing.name
            place = _sentence(PLACES_IN_PICTURE[thing.place])
            made.append(Turn(f"Where is the {name}?", place, "where", self._about(thing)))
        return list({turn.question: turn for turn in made}.values())

    def _describe(self, rng: Random) -> Turn:
        question = rng.choice((
            "What is in this picture?", "What is in the picture?", "Describe the picture.", "Describe this image.",
            "What do you see?", "What do you see in this picture?", "What is in the image?",
        ))  # fmt: skip
        return Turn(
            question,
            _sentence(joined([thing.words for thing in self.things])),
            "describe",
            tuple((i,) for i in range(len(self.things))),
        )

    def _count(self, rng: Random) -> Turn:
        shape = rng.choice((*(thing.shape for thing in self.things), rng.choice(SHAPES), "shape"))
        counted = tuple(i for i, thing in enumerate(self.things) if shape in {thing.shape, "shape"})
        plural = shape + ("es" if shape.endswith("s") else "s")
        question = rng.choice(("How many {} are there?", "How many {} do you see?", "How many {} are in the picture?"))
        return Turn(question.format(plural), f"{NUMBERS[len(counted)]}.", "count", (counted,))

    def _exists(self, rng: Random) -> Turn:
        thing = rng.choice(self.things)
        colour, shape = thing.colour, thing.shape
        if rng.random() < 0.5:
            colour, shape = rng.choice(((rng.choice(list(COLOURS)), shape), (colour, rng.choice(SHAPES))))
        same = tuple((other.colour == colour) + (other.shape == shape) for other in self.things)
        # Where none is both, each that is one of them has to be seen to be not the other.
        about = tuple(i for i, alike in enumerate(same) if alike == max(same))
        question = rng.choice(("Is there {}?", "Is there {} in the picture?", "Do you see {}?"))
        return Turn(question.format(_a(f"{colour} {shape}")), "Yes." if 2 in same else "No.", "exists", (about,))

    def _at(self, rng: Random) -> Turn:
        place = rng.choice(self.things).place if rng.random() < 0.75 else rng.randrange(len(PLACES_IN_PICTURE))
        there = [thing for thing in self.things if thing.place == place]
        answer = _sentence(_a(there[0].name)) if there else "Nothing."
        return Turn(f"What is {PLACES_IN_PICTURE[place]}?", answer, "at", self._about(there[0]) if there else ())

    def _colour(self, rng: Random, thing: Thing) -> Turn:
        question = rng.choice(("What colour is the {}?", "What color is the {}?", "Tell me the colour of the {}."))
        return Turn(question.format(thing.shape), f"{thing.colour.capitalize()}.", "colour", self._about(thing))

    def _about(self, thing: Thing) -> tuple[tuple[int, ...]]:
        return ((self.things.index(thing),),)

    def image(self, rng: Random) -> Image.Image:
        """The pixels, with a tint of its own for everything, noise, and at times the marks of JPEG."""
        ground = tuple(rng.randint(225, 255) for _ in range(3))
        picture = Image.new("RGB", (self.width, self.height), ground)
        brush = ImageDraw.Draw(picture)
        for thing in self.things:
            tint = tuple(min(255, max(0, value + rng.randint(-_TINT, _TINT))) for value in COLOURS[thing.colour])
            _paint(brush, thing, (self.width, self.height), tint, rng.uniform(-0.15, 0.15))
        noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, _NOISE), (*picture.size[::-1], 3))
        pixels = (np.asarray(picture, dtype=np.float32) + noise).clip(0, 255)
        picture = Image.fromarray(pixels.astype(np.uint8))
        if rng.random() < _JPEG:
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=rng.randint(60, 95))
            picture = Image.open(buffer).convert("RGB")
        return picture


def size(rng: Random) -> tuple[int, int]:
    """(width, height) of a picture, at most twice as long as wide."""
    while True:
        width, height = rng.choice(SIDES), rng.choice(SIDES)
        if max(width, height) <= 2 * min(width, height):
            return width, height


def _thing(rng: Random, place: int, *, alone: bool) -> Thing:
    line, column = divmod(place, 3)
    radius = rng.uniform(*(_LARGE if alone and place == MIDDLE and rng.random() < 0.7 else _RADIUS))
    x, y = ((part + 0.5) / 3 + rng.uniform(-_JITTER, _JITTER) for part in (column, line))
    return Thing(rng.choice(SHAPES), rng.choice(list(COLOURS)), place, radius, x, y)


def _paint(
    brush: ImageDraw.ImageDraw, thing: Thing, frame: tuple[int, int], tint: tuple[int, ...], turn: float
) -> None:
    """Draw a shape inside its circle, turned by an angle in radians (a cross and a circle show it hardly)."""
    width, height = frame
    x, y, r = thing.x * width, thing.y * height, thing.radius * min(frame)
    if thing.shape == "circle":
        brush.ellipse((x - r, y - r, x + r, y + r), fill=tint)
        return
    if thing.shape == "cross":
        arm = 0.3
        corners = [(arm, 1), (arm, arm), (1, arm), (1, -arm), (arm, -arm), (arm, -1)]
        outline = [*corners, *((-a, -b) for a, b in corners)]
    else:
        points, first = (4, math.pi / 4) if thing.shape == "square" else (3, -math.pi / 2)
        angles = [first + 2 * math.pi * i / points for i in range(points)]
        outline = [(math.cos(angle), math.sin(angle)) for angle in angles]
    cos, sin = math.cos(turn), math.sin(turn)
    brush.polygon([(x + r * (a * cos - b * sin), y + r * (a * sin + b * cos)) for a, b in outline], fill=tint)


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
