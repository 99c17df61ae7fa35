from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.model.tokenizer import BYTES, Tokenizer
from epd_workers.reference.training import scene as scenes
from epd_workers.reference.training import story, vocabulary
from epd_workers.reference.training.scene import Scene
from epd_workers.reference.training.vocabulary import COLOURS, NUMBERS, PLACES_IN_PICTURE, SHAPES
from epd_workers.reference.training.world import varied

seeds = st.integers(0, 2**32)


def scene(seed: int, *, held: bool) -> Scene:
    rng = Random(seed)
    return Scene.draw(rng, scenes.size(rng), held=held)


def truth(drawn: Scene, question: str) -> str:
    """The answer, worked out from the things alone and from the words of the question."""
    words = question.rstrip("?.").split()
    shapes = [shape for shape in SHAPES if shape in words or f"{shape}s" in words or f"{shape}es" in words]
    colours = [colour for colour in COLOURS if colour in words]
    fits = [t for t in drawn.things if (not shapes or t.shape in shapes) and (not colours or t.colour in colours)]
    place = next((i for i in (0, 2, 6, 8, 1, 3, 4, 5, 7) if question.endswith(f"{PLACES_IN_PICTURE[i]}?")), None)
    if "many" in words:
        return NUMBERS[len(fits)]
    if words[0] in {"Is", "Do"}:
        return "Yes" if fits else "No"
    if words[0] == "Where":
        assert len(fits) == 1, "the question must have one answer"
        return PLACES_IN_PICTURE[fits[0].place].capitalize()
    if shapes:
        assert len(fits) == 1, "the question must have one answer"
        return fits[0].colour.capitalize()
    if place is not None:
        fits = [t for t in drawn.things if t.place == place]
        return f"{'An' if fits[0].colour == 'orange' else 'A'} {fits[0].name}" if fits else "Nothing"
    parts = [t.words for t in sorted(drawn.things, key=lambda t: t.place)]
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return text[0].upper() + text[1:]


@settings(max_examples=150)
@given(seeds, st.booleans())
def test_every_question_about_a_picture_has_the_one_answer_given(seed: int, held: bool) -> None:
    drawn = scene(seed, held=held)
    assert len({thing.place for thing in drawn.things}) == len(drawn.things)
    for turn in drawn.turns(Random(seed)):
        assert turn.answer == truth(drawn, turn.question) + ".", turn


@settings(max_examples=20)
@given(seeds)
def test_the_same_seed_draws_the_same_picture(seed: int) -> None:
    first, second = scene(seed, held=False), scene(seed, held=False)
    assert first == second
    assert np.array_equal(np.asarray(first.image(Random(1))), np.asarray(second.image(Random(1))))
    assert first.turns(Random(2)) == second.turns(Random(2))


@settings(max_examples=100)
@given(seeds)
def test_a_thing_is_drawn_where_and_as_its_words_say(seed: int) -> None:
    drawn = scene(seed, held=False)
    pixels = np.asarray(drawn.image(Random(seed)), dtype=float)
    for thing in drawn.things:
        x, y = int(thing.x * drawn.width), int(thing.y * drawn.height)
        # A triangle's centre and a cross's are inside it, too.
        distances = {c: np.abs(pixels[y, x] - np.array(rgb)).sum() for c, rgb in COLOURS.items()}
        assert distances[thing.colour] < 130
        assert (y * 3 // drawn.height) * 3 + x * 3 // drawn.width == thing.place


@settings(max_examples=100)
@given(seeds)
def test_training_never_sees_what_is_held_out(seed: int) -> None:
    rng = Random(seed)
    ours, theirs = scene(seed, held=False), scene(seed, held=True)
    assert [t.words for t in ours.things] != [t.words for t in theirs.things]
    assert (ours.held_out, theirs.held_out) == (False, True)
    known = {fact.statement for fact in story.facts(rng, 12, held=False)}
    asked = {fact.statement for fact in story.facts(rng, 12, held=True)}
    assert not known & asked


@settings(max_examples=100)
@given(seeds, st.booleans())
def test_no_two_facts_of_a_story_contradict_each_other(seed: int, held: bool) -> None:
    actual = story.facts(Random(seed), 12, held=held)
    assert len({fact.turn.question for fact in actual}) == 12
    for fact in actual:
        message = fact.statement.rstrip(".").split()
        assert fact.turn.answer.rstrip(".").split()[-1] == message[-1]
        assert set(fact.turn.answer.rstrip(".").lower().split()) <= {word.lower() for word in message}


@settings(max_examples=50)
@given(seeds)
def test_idle_sentences_state_no_fact(seed: int) -> None:
    words = set(story.idle(Random(seed)).rstrip(".").split())
    assert not words & {*vocabulary.NAMES, *vocabulary.ITEMS, *vocabulary.ROOMS, *vocabulary.FOODS, *vocabulary.TOWNS}


@settings(max_examples=100)
@given(seeds, st.sampled_from(["Where is the red circle?", "Describe the picture."]))
def test_a_varied_question_keeps_its_words(seed: int, question: str) -> None:
    actual = varied(question, Random(seed)).lower().replace(", please", "").rstrip("?.")
    assert actual == question.lower().rstrip("?.")


def test_the_words_of_the_world_are_pieces_of_the_packaged_tokenizer() -> None:
    tokenizer = Tokenizer.default()
    for piece in vocabulary.pieces():
        (number,) = tokenizer.encode(piece)
        assert number >= BYTES
    assert tokenizer.vocab_size == vocabulary.SIZE


@pytest.mark.parametrize("held", [False, True])
def test_an_answer_is_a_few_pieces(held: bool) -> None:
    tokenizer = Tokenizer.default()
    for seed in range(20):
        for turn in scene(seed, held=held).turns(Random(seed)):
            ids = tokenizer.encode(turn.answer)
            assert sum(token < BYTES and chr(token).isalpha() and token != ord("A") for token in ids) == 0, turn
