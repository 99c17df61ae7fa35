from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epd_workers.reference.model import image
from epd_workers.reference.model.config import SHIPPED
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.training.sample import ANSWER_WEIGHT, RESTATED_WEIGHT, TEXT_WEIGHT, Batch, Writer
from epd_workers.reference.training.scene import Scene
from epd_workers.reference.training.vocabulary import COLOURS, FOODS, PLACES_IN_PICTURE, ROOMS, SHAPES, TOWNS

TOKENIZER = Tokenizer.default()
WRITER = Writer(TOKENIZER, SHIPPED.vision)
ASSISTANT = 261


def answers(batch: Batch) -> list[list[str]]:
    """The runs of tokens that count fully, as text, by dialogue."""
    actual = []
    for ids, weights in zip(batch.ids.tolist(), batch.weights.tolist(), strict=True):
        runs: list[list[int]] = [[]]
        for token, weight in zip(ids, weights, strict=True):
            if weight == ANSWER_WEIGHT:
                runs[-1].append(token)
            elif runs[-1]:
                runs.append([])
        actual.append([TOKENIZER.decode(run) for run in runs if run])
    return actual


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_only_answers_count_fully_and_each_ends(seed: int) -> None:
    batch = WRITER.story_batch(Random(seed), 2, 60, 4, 0.5)
    full = batch.weights == ANSWER_WEIGHT
    before = torch.roll(batch.ids, 1, 1)
    opened = full & (before == ASSISTANT)
    closed = full & (batch.ids == TOKENIZER.eos_id)
    assert opened.sum(1).tolist() == closed.sum(1).tolist() == [4, 4]
    assert all(len(dialogue) == 4 for dialogue in answers(batch))
    assert not batch.weights[batch.ids == TOKENIZER.pad_id].any()
    assert batch.pictures is None
    assert not batch.image.any()


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_a_restated_fact_counts_where_it_repeats_itself(seed: int) -> None:
    batch = WRITER.story_batch(Random(seed), 2, 60, 4, 1.0)
    words = {f" {word}" for word in (*ROOMS, *FOODS, *TOWNS)}
    for ids, weights in zip(batch.ids.tolist(), batch.weights, strict=True):
        for at in (weights == RESTATED_WEIGHT).nonzero().flatten().tolist():
            assert TOKENIZER.token_text(ids[at]) in words
            stop = [i for i in range(at) if ids[i : i + 2] == ids[at - 1 : at + 1]]
            assert stop, "it stands earlier, too"


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_pictures_stand_at_their_places(seed: int) -> None:
    batch = WRITER.picture_batch(Random(seed), 3, 3)
    assert batch.pictures is not None
    plan = batch.pictures.plan
    assert batch.image.sum(1).tolist() == [plan.span] * 3
    assert torch.equal(batch.image, batch.ids == TOKENIZER.image_id)
    assert not batch.weights[batch.image].any()
    assert set(batch.weights.unique().tolist()) <= {0.0, ANSWER_WEIGHT, torch.tensor(TEXT_WEIGHT).item()}
    assert batch.pictures.patches.shape == (3, plan.grid[0] * plan.grid[1], 3 * 14 * 14)
    assert batch.pictures.cells.shape == (3, plan.cells[0] * plan.cells[1], 3)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([(126, 126), (300, 150), (96, 112)]))
def test_cells_say_what_stands_where(seed: int, size: tuple[int, int]) -> None:
    rng = Random(seed)
    scene = Scene.draw(rng, size, held=False)
    actual = WRITER.pictures([scene], rng).cells[0]
    held = actual[actual[:, 0] > 0].tolist()
    messages = [(SHAPES[shape - 1], list(COLOURS)[colour - 1], place) for shape, colour, place in held]
    assert messages == [(thing.shape, thing.colour, thing.place) for thing in scene.things]


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_what_is_mentioned_again_was_stated_before(seed: int) -> None:
    batch = WRITER.story_batch(Random(seed), 2, 60, 4, 0.5)
    later = batch.mentions[batch.mentions[:, 1] != batch.mentions[:, 2]].tolist()
    assert len(later) >= 8
    for row, before, stated, *_ in later:
        ids = batch.ids[row].tolist()
        word = TOKENIZER.token_text(ids[stated])
        assert stated < before
        # "asks for" may open an answer: For plums.
        assert word == TOKENIZER.token_text(ids[before + 1])
        assert TOKENIZER.token_text(ids[stated + 1]) == TOKENIZER.token_text(ids[before + 2]) == "."
    assert batch.aims.tolist() == [mention[:3] for mention in later]


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_each_word_of_an_answer_looks_at_its_thing(seed: int) -> None:
    batch = WRITER.picture_batch(Random(seed), 2, 6)
    assert batch.pictures is not None
    # In narrower pictures two places can share a cell.
    assume(min(batch.pictures.plan.grid) >= 8)
    columns = batch.pictures.plan.cells[1]
    for row, before, cell in batch.aims.tolist():
        ids = batch.ids[row].tolist()
        line, column = divmod(cell - ids.index(TOKENIZER.image_id) - 1, columns + 1)
        shape, colour, place = batch.pictures.cells[row, line * columns + column].tolist()
        word = TOKENIZER.token_text(ids[before + 1]).strip().lower()
        assert shape > 0
        assert word not in SHAPES or word == SHAPES[shape - 1]
        assert word not in COLOURS or word == list(COLOURS)[colour - 1]
        assert word not in {"top", "bottom", "left", "right", "middle"} or word in PLACES_IN_PICTURE[place]


def test_a_batch_follows_from_its_seed() -> None:
    first, second = (WRITER.picture_batch(Random(5), 2, 2) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert first.pictures is not None
    assert second.pictures is not None
    assert torch.equal(first.pictures.patches, second.pictures.patches)


@pytest.mark.parametrize("system", [None, "You keep it short."])
def test_a_prompt_is_the_chat_template(system: str | None) -> None:
    plan = image.plan(126, 126, SHIPPED.vision)
    ids = WRITER.prompt("What is this?", system, plan)
    start = [256, 259, *TOKENIZER.encode(system), 257] if system else [256]
    assert ids == [*start, 260, *[258] * plan.span, *TOKENIZER.encode("What is this?"), 257, 261]
