from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.engine.request import Sampling, Step
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.serving.text import TextCutter

TOKENIZER = Tokenizer.default()
stops = st.lists(st.text("abc", min_size=1, max_size=3), max_size=3)


def answer(text: str, stops: list[str]) -> tuple[list[Step], str]:
    """The steps that an engine makes of a text of one-byte characters, and the text that a client may see."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                steps = [Step(ord(char)) for char in text[: end - 1]]
                return [*steps, Step(ord(text[end - 1]), finish="stop", matched_stop=stop)], text[: end - len(stop)]
    return [*(Step(ord(char)) for char in text), Step(257, finish="stop", matched_stop=257)], text


@given(st.text("abc", max_size=12), stops)
def test_pieces_join_to_the_text_before_the_stop(text: str, stops: list[str]) -> None:
    steps, expected = answer(text, stops)
    cutter = TextCutter(TOKENIZER, Sampling(stop=tuple(stops)))
    assert "".join(map(cutter.push, steps)) == expected


@given(st.text("abc", max_size=12), stops)
def test_text_is_held_back_only_while_a_stop_may_follow(text: str, stops: list[str]) -> None:
    steps, _ = answer(text, stops)
    cutter = TextCutter(TOKENIZER, Sampling(stop=tuple(stops)))
    shown = ""
    for number, step in enumerate(steps[:-1], 1):
        shown += cutter.push(step)
        held = text[len(shown) : number]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(st.text(max_size=10))
def test_characters_come_whole(text: str) -> None:
    data = text.encode("utf-8", "replace")
    cutter = TextCutter(TOKENIZER, Sampling())
    steps = [Step(byte) for byte in data] + [Step(257, finish="stop", matched_stop=257)]
    pieces = [cutter.push(step) for step in steps]
    assert "".join(pieces) == data.decode()
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_a_cut_character_ends_in_a_replacement() -> None:
    cutter = TextCutter(TOKENIZER, Sampling())
    assert [cutter.push(Step(0xE2)), cutter.push(Step(0x82, finish="length"))] == ["", "\ufffd"]


def test_a_stop_that_ends_inside_a_piece_cuts_the_piece() -> None:
    text = " the square is red"
    ids = TOKENIZER.encode(text)
    pieces = [TOKENIZER.decode([i]) for i in ids]
    at = next(n for n, piece in enumerate(pieces) if n and len(piece) > 2)
    stop = pieces[at - 1][-1] + pieces[at][:2]
    cutter = TextCutter(TOKENIZER, Sampling(stop=(stop,)))
    steps = [Step(i) for i in ids[:at]] + [Step(ids[at], finish="stop", matched_stop=stop)]
    assert "".join(map(cutter.push, steps)) == text[: text.index(stop)]
