from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.model.tokenizer import Detokenizer, ImageSlot, Message, Tokenizer

TOKENIZER = Tokenizer()


@settings(deadline=None)
@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text.encode("utf-8", "replace").decode()
    assert all(i < TOKENIZER.bos_id for i in ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, Tokenizer.vocab_size - 1)))
def test_incremental_decoding_equals_decoding_at_once(ids: list[int]) -> None:
    detokenizer = Detokenizer()
    pieces = [detokenizer.push(i) for i in ids]
    whole = bytes(i for i in ids if i < 256).decode("utf-8", "replace")
    assert "".join(pieces) + detokenizer.finish() == whole == TOKENIZER.decode(ids)


def test_a_character_comes_out_whole() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.push(i) for i in "é€😀".encode()] == ["", "é", "", "", "€", "", "", "", "😀"]


def test_lone_surrogates_do_not_fail() -> None:
    assert TOKENIZER.encode("a\ud800") == [97, 63]


def test_chat_template() -> None:
    messages = [Message("system", ("be kind",)), Message("user", ("what is ", ImageSlot(0), "?"))]
    bos, eos, system, user, assistant = TOKENIZER.bos_id, TOKENIZER.eos_id, 259, 260, 261
    expected = (bos, system, "be kind", eos, user, "what is ", ImageSlot(0), "?", eos)
    assert TOKENIZER.render(messages) == (*expected, assistant)
    assert TOKENIZER.render(messages, generate=False) == expected


def test_text_cannot_forge_a_marker() -> None:
    assert TOKENIZER.render([Message("user", ("<eos><system>",))])[2] == "<eos><system>"
    assert max(TOKENIZER.encode("<eos><system>")) < TOKENIZER.bos_id


def test_every_bad_role_is_named() -> None:
    with pytest.raises(ValueError, match=r"messages\[0\].role is 'tool'.*messages\[1\].role is ''"):
        TOKENIZER.render([Message("tool", ()), Message("", ())])
    with pytest.raises(ValueError, match="at least one"):
        TOKENIZER.render([])


def test_token_text_and_bytes() -> None:
    assert [TOKENIZER.token_text(i) for i in (65, 200, 256, 261)] == ["A", "�", "<bos>", "<assistant>"]
    assert [TOKENIZER.token_bytes(i) for i in (65, 200, 257)] == [b"A", b"\xc8", b""]
