from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.engine.text import TextStream
from epd_workers.reference.model.tokenizer import Tokenizer

TOKENIZER = Tokenizer.default()
ALPHABET = st.text("ab€", max_size=12)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3)


def run(text: str, stop: list[str], min_tokens: int = 0) -> tuple[list[str], str | None]:
    stream, pieces = TextStream(TOKENIZER, stop, min_tokens), []
    for token in text.encode():
        pieces.append(stream.push(token))
        if stream.matched is not None:
            break
    return [*pieces, stream.finish()], stream.matched


@settings(max_examples=300)
@given(ALPHABET, STOPS)
def test_text_ends_where_the_first_completed_stop_begins(text: str, stop: list[str]) -> None:
    pieces, matched = run(text, stop)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    if not ends:
        assert ("".join(pieces), matched) == (text, None)
        return
    first = min(end for end, _, _ in ends)  # characters come one by one: the stop that completes first ends the text
    start = min(start for end, start, _ in ends if end == first)
    assert "".join(pieces) == text[:start]
    assert matched in {s for end, begin, s in ends if (end, begin) == (first, start)}


@given(ALPHABET, STOPS)
def test_nothing_is_held_back_that_no_stop_can_claim(text: str, stop: list[str]) -> None:
    stream, shown = TextStream(TOKENIZER, stop), ""
    for end, character in enumerate(text, 1):
        shown += "".join(map(stream.push, character.encode()))
        if stream.matched is not None:
            return
        held = text[len(shown) : end]
        assert text.startswith(shown)
        assert not held or any(s.startswith(held) for s in stop)


def test_unfinished_character_comes_out_as_a_replacement() -> None:
    stream = TextStream(TOKENIZER, ["x"])
    assert [stream.push(i) for i in b"a\xe2\x82"] == ["a", "", ""]
    assert stream.finish() == "�"


def test_stop_before_the_least_length_is_text() -> None:
    assert run("ab ab", ["ab"], min_tokens=2) == (["", "ab", " ", "", "", ""], "ab")
    assert run("aac", ["a", "ab"], min_tokens=2) == (["", "a", "ac", ""], None)


def test_a_stop_may_straddle_the_least_length() -> None:
    assert run("ab", ["ab"], min_tokens=1) == (["", "", ""], "ab")


def test_markers_are_silent() -> None:
    stream = TextStream(TOKENIZER, ["ab"])
    assert [stream.push(i) for i in (97, Tokenizer.eos_id, 98)] == ["", "", ""]
    assert stream.matched == "ab"
