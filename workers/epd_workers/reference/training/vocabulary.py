"""The words of the synthetic world, and the tokenizer file that knows each of them as one piece.

The tricky idea: pieces are looked up whole (`ignore_merges`), so a word of any length costs one id and no merge table
is needed; whatever is not a listed word is split into bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from epd_workers.reference.model.tokenizer import MARKERS, byte_letters

if TYPE_CHECKING:
    from pathlib import Path

COLOURS: Final = {
    "red": (220, 30, 30),
    "green": (30, 150, 50),
    "blue": (30, 70, 220),
    "yellow": (245, 210, 20),
    "purple": (140, 40, 170),
    "orange": (250, 130, 10),
    "black": (20, 20, 20),
    "brown": (120, 70, 30),
}
"""Names and RGB values."""
SHAPES: Final = ("circle", "square", "triangle", "cross")
PLACES_IN_PICTURE: Final = (
    "at the top left", "at the top", "at the top right",
    "at the left", "in the middle", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
"""Line by line."""
NUMBERS: Final = ("None", "One", "Two", "Three", "Four")
NAMES: Final = (
    "Mira", "Tom", "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ivan", "Julia",
    "Karl", "Lena", "Max", "Nora", "Oskar", "Paula", "Rosa", "Simon", "Tilda", "Viktor", "Wanda", "Yara",
)  # fmt: skip
KINDS: Final = ("silver", "golden", "old", "new", "small", "heavy")
ITEMS: Final = ("key", "letter", "map", "book", "lamp", "coin", "ring", "bell", "hat", "knife", "box", "clock")
ROOMS: Final = (
    "barn", "cellar", "attic", "garden", "kitchen", "tower", "church", "library",
    "harbour", "mill", "bakery", "school", "stable", "station", "garage", "museum",
)  # fmt: skip
FOODS: Final = (
    "tea", "bread", "honey", "apples", "cheese", "soup", "plums", "rice", "milk", "cake", "fish", "nuts",
)  # fmt: skip
TOWNS: Final = ("Lyon", "Turin", "Ghent", "Porto", "Basel", "Riga", "Oslo", "Cork", "Graz", "Brno")
THINGS: Final = ("wind", "road", "river", "sky", "night", "rain", "sun", "field", "bridge", "wall", "boat", "horse")
MOODS: Final = ("cold", "long", "dark", "warm", "quiet", "bright", "slow", "grey")
DEEDS: Final = ("slept", "waited", "turned", "moved", "stood", "fell", "rose", "sang")
_PLURALS: Final = ("circles", "squares", "triangles", "crosses")
_FUNCTION: Final = (
    "a", "an", "the", "in", "at", "of", "is", "are", "was", "there", "this", "picture", "image", "and", "on", "to",
    "it", "for", "do", "does", "you", "see", "keep", "keeps", "many", "colour", "color",
    "live", "lives", "ask", "asks", "what", "where", "how", "which", "me", "please", "shape", "shapes", "top",
    "bottom", "left", "right", "middle",
)  # fmt: skip
_OPENERS: Final = (
    "What", "Where", "How", "Is", "Do", "Describe", "Tell", "The", "An", "At", "In", "Yes", "No", "Nothing",
    "Answer", "You", "Then", "what", "where", "how", "is", "do", "describe", "tell", "For",
)  # fmt: skip
SIZE: Final = 512


def pieces() -> tuple[str, ...]:
    """Every word of two bytes or more that is one piece, with its leading space; the order is that of the ids."""
    inside = (
        *COLOURS, *SHAPES, *_PLURALS, *_FUNCTION, *NAMES, *KINDS, *ITEMS, *ROOMS, *FOODS, *TOWNS, *THINGS, *MOODS,
        *DEEDS, "The", "Then", "What", "Where", "How", "Is", "Describe", "Tell", "Do",
    )  # fmt: skip
    return tuple(
        dict.fromkeys((*_OPENERS, *NUMBERS, *NAMES, *map(str.capitalize, COLOURS), *(" " + word for word in inside)))
    )


def write(path: Path) -> None:
    """Write `tokenizer.json`: bytes at 0..255, markers, pieces, and ids without a text up to `SIZE`.

    Text is cut at spaces, between words and marks, so that no marker's name is ever looked up whole.
    """
    letters = byte_letters()
    names = [*letters, *MARKERS]
    names += ["".join(letters[byte] for byte in piece.encode()) for piece in pieces()]
    names += [f"<unused {i}>" for i in range(len(names), SIZE)]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], ignore_merges=True))
    words = Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
