from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.model.tokenizer import (
    BYTES,
    MARKERS,
    BadTokenizer,
    Detokenizer,
    ImageSlot,
    Message,
    Tokenizer,
)

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = Tokenizer.default()
TEXTS = st.one_of(
    st.text(), st.lists(st.sampled_from([*MARKERS, " the", "the", " key", " ", "<unused 480>", "é"])).map("".join)
)


@given(TEXTS)
def test_text_survives_the_round_trip(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text.encode("utf-8", "replace").decode()
    assert not [i for i in ids if BYTES <= i < BYTES + len(MARKERS)]


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_incremental_decoding_equals_decoding_at_once(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.push(i) for i in ids]
    whole = b"".join(map(TOKENIZER.token_bytes, ids)).decode("utf-8", "replace")
    assert "".join(pieces) + detokenizer.finish() == whole == TOKENIZER.decode(ids)


def test_a_character_comes_out_whole() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push(i) for i in "é€😀".encode()] == ["", "é", "", "", "€", "", "", "", "😀"]


def test_lone_surrogates_do_not_fail() -> None:
    assert TOKENIZER.encode("b\ud800") == [98, 63]


def test_chat_template() -> None:
    messages = [Message("system", ("be kind",)), Message("user", ("what is ", ImageSlot(0), "?"))]
    bos, eos, system, user, assistant = TOKENIZER.bos_id, TOKENIZER.eos_id, 259, 260, 261
    expected = (bos, system, "be kind", eos, user, "what is ", ImageSlot(0), "?", eos)
    assert TOKENIZER.render(messages) == (*expected, assistant)
    assert TOKENIZER.render(messages, generate=False) == expected


def test_text_cannot_forge_a_marker() -> None:
    assert TOKENIZER.render([Message("user", ("<eos><system>",))])[2] == "<eos><system>"
    assert bytes(TOKENIZER.encode("<eos><system>")) == b"<eos><system>"


def test_every_bad_role_is_named() -> None:
    with pytest.raises(ValueError, match=r"messages\[0\].role is 'tool'.*messages\[1\].role is ''"):
        TOKENIZER.render([Message("tool", ()), Message("", ())])
    with pytest.raises(ValueError, match="at least one"):
        TOKENIZER.render([])


def test_token_text_and_bytes() -> None:
    assert [TOKENIZER.token_text(i) for i in (66, 200, 256, 261)] == ["B", "�", "<bos>", "<assistant>"]
    assert [TOKENIZER.token_bytes(i) for i in (66, 200, 257, 511, 512, -1)] == [b"B", b"\xc8", b"", b"", b"", b""]


def test_a_word_of_the_world_is_one_piece() -> None:
    ids = TOKENIZER.encode("Where does Mira keep the silver key?")
    assert [TOKENIZER.token_text(i) for i in ids] == [
        "Where",
        " does",
        " Mira",
        " keep",
        " the",
        " silver",
        " key",
        "?",
    ]
    assert min(ids[:-1]) >= BYTES + len(MARKERS)


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    path = tmp_path / "other.json"
    vocab = {"a": 0, "b": 1, "c": 4}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [])).save(str(path))
    with pytest.raises(BadTokenizer, match=r"gaps.*id 0 is 'a'.*id 256 is None: must be '<bos>'"):
        Tokenizer.load(path)
