from __future__ import annotations

import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.model.config import RELEASED, SHIPPED, TextConfig
from epd_workers.reference.model.engram_hash import (
    BadTokenMap,
    EngramHash,
    History,
    is_prime,
    multipliers,
    primes,
    table_rows,
    token_map,
)

TINY = replace(
    SHIPPED.text,
    vocab_size=40,
    engram_layer_ids=(1, 3),
    engram_vocab_size=50,
    engram_n_heads=3,
    engram_pad_token_id=7,
    engram_compressed_vocab_size=20,
)
TINY = replace(TINY, engram_num_embeddings=table_rows(TINY))
MAPPING = tuple(i % 20 for i in range(40))


def slow_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def slow_rows(config: TextConfig, mapping: tuple[int, ...], ids: list[int], image: list[bool]) -> list[list[list[int]]]:
    """The formula in Python integers, one column at a time: [layers][n][columns]."""
    answer = []
    used: list[int] = []
    for layer in config.engram_layer_ids:
        bound = (2**63 - 1) // config.engram_compressed_vocab_size // 2
        factors = [2 * int(r) + 1 for r in np.random.default_rng(10007 * layer).integers(0, bound, 4, dtype=np.int64)]
        sizes: list[int] = []
        for _ in range(3):
            candidate, taken = config.engram_vocab_size, 0
            while taken < config.engram_n_heads:
                if slow_prime(candidate) and candidate not in used:
                    used.append(candidate)
                    sizes.append(candidate)
                    taken += 1
                candidate += 1
        rows = []
        for p in range(len(ids)):
            row = []
            for column, size in enumerate(sizes):
                order = column // config.engram_n_heads + 1
                hashed = 0
                for s in range(order + 1):
                    dead = p < s or any(image[q] for q in range(p - s, p + 1))
                    hashed ^= mapping[config.engram_pad_token_id if dead else ids[p - s]] * factors[s]
                row.append(hashed % size + sum(sizes[:column]))
            rows.append(row)
        answer.append(rows)
    return answer


def test_the_released_primes() -> None:
    actual = primes(RELEASED.text)
    assert actual[0][0][0] == 16_000_057
    assert table_rows(RELEASED.text) == (384_006_168, 384_016_682) == RELEASED.text.engram_num_embeddings
    assert [len(order) for layer in actual for order in layer] == [8] * 6
    flat = [size for layer in actual for order in layer for size in order]
    assert len(set(flat)) == 48
    assert all(slow_prime(size) for size in flat)


def test_the_shipped_table_size() -> None:
    assert table_rows(SHIPPED.text) == SHIPPED.text.engram_num_embeddings


def test_primality_equals_trial_division() -> None:
    assert [n for n in range(20_000) if is_prime(n)] == [n for n in range(20_000) if slow_prime(n)]
    # Strong pseudoprimes to base 2, to 2 and 3, and to 2, 3 and 5.
    assert not any(is_prime(n) for n in (2047, 3277, 1_373_653, 25_326_001))
    with pytest.raises(ValueError, match="3215031751 is too large"):
        is_prime(3_215_031_751)


def test_factors_are_odd_and_fit() -> None:
    for layer in RELEASED.text.engram_layer_ids:
        drawn = multipliers(layer, 99092)
        assert all(factor % 2 == 1 and 0 < factor * 99091 < 2**63 for factor in drawn)
    assert multipliers(1, 99092) != multipliers(14, 99092)
    assert len(multipliers(1, 99092, 2)) == 2


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("ABC", "abc"),
        ("é", "E"),
        ("ﬁ", "fi"),
        ("①", "1"),
        (" \t\r\n", " "),
        ("\n", " "),
        (" word ", "Word"),
        ("a\t\tb", "A b"),
        ("\u3000x", "x"),
    ],
)
def test_texts_that_read_alike_share_an_id(text: str, same: str) -> None:
    assert token_map([text, same], ["r0", "r1"]) == ((0, 0), 1)


@pytest.mark.parametrize(("text", "other"), [(" ", ""), ("a b", "ab"), ("a", "b"), ("\x00", "\x01"), ("\u0301", "")])
def test_texts_that_stay_apart(text: str, other: str) -> None:
    assert token_map([text, other], ["r0", "r1"]) == ((0, 1), 2)


def test_parts_of_characters_are_told_apart_by_their_own_strings() -> None:
    texts = ["\ufffd", "\ufffd", "x", "\ufffd", "X"]
    assert token_map(texts, ["<0x80>", "<0x81>", "x", "<0x80>", "X"]) == ((0, 1, 2, 0, 2), 3)


@given(st.lists(st.text(st.characters(codec="latin-1", exclude_characters="\x1c\x1d\x1e\x1f\x85")), max_size=30))
@settings(max_examples=200)
def test_latin_vocabularies_equal_the_steps_in_plain_python(texts: list[str]) -> None:
    def key(text: str) -> str:
        wide = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
        plain = "".join(c for c in wide if unicodedata.category(c) != "Mn").lower()
        joined, gap = "", False
        for c in plain:
            if c not in " \t\r\n" or not gap:
                joined += " " if c in " \t\r\n" else c
            gap = c in " \t\r\n"
        return " " if joined == " " else joined.strip() or text

    keys = [key(text) for text in texts]
    order = list(dict.fromkeys(keys))
    assert token_map(texts, texts) == (tuple(order.index(k) for k in keys), len(order))


@given(st.data())
@settings(max_examples=60)
def test_rows_equal_the_formula(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=12))
    image = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    made, _ = EngramHash(TINY, MAPPING)(torch.tensor(ids), torch.tensor(image), History.empty(TINY))
    assert made.tolist() == slow_rows(TINY, MAPPING, ids, image)
    assert made.shape == (2, len(ids), 9)


@given(st.data())
@settings(max_examples=100)
def test_any_split_gives_the_same_rows_and_history(data: st.DataObject) -> None:
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=20)))
    image = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    hasher = EngramHash(TINY, MAPPING)
    whole, end = hasher(ids, image, History.empty(TINY))
    history, parts = History.empty(TINY), []
    for low, high in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        rows, history = hasher(ids[low:high], image[low:high], history)
        parts.append(rows)
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert history == end


def test_a_batch_of_whole_texts_equals_each_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 40, (2, 3, 9), generator=generator)
    image = torch.rand(2, 3, 9, generator=generator) < 0.2
    hasher = EngramHash(TINY, MAPPING)
    made = hasher.whole(ids, image)
    assert made.shape == (2, 2, 3, 9, 9)
    for i in range(2):
        for j in range(3):
            assert torch.equal(made[:, i, j], hasher(ids[i, j], image[i, j], History.empty(TINY))[0])


def test_released_rows_stay_in_their_sections() -> None:
    config = RELEASED.text
    mapping = [i % 99092 for i in range(config.vocab_size)]
    ids = torch.randint(0, config.vocab_size, (500,), generator=torch.Generator().manual_seed(1))
    made, _ = EngramHash(config, mapping)(ids, torch.zeros(500, dtype=torch.bool), History.empty(config))
    assert made.shape == (2, 500, 24)
    for layer, sizes in enumerate(primes(config)):
        low = 0
        for column, size in enumerate(size for order in sizes for size in order):
            assert ((made[layer, :, column] >= low) & (made[layer, :, column] < low + size)).all()
            low += size


def test_a_foreign_vocabulary_is_refused_with_every_fault() -> None:
    bad = replace(TINY, engram_num_embeddings=(1, 2), engram_pad_token_id=99)
    with pytest.raises(BadTokenMap) as caught:
        EngramHash(bad, MAPPING[:30])
    message = str(caught.value)
    assert "30 entries: vocab_size is 40" in message
    assert "engram_pad_token_id is 99" in message
    assert "engram_num_embeddings is [1, 2]: must be the prime sums" in message
    with pytest.raises(BadTokenMap, match="19 distinct texts: engram_compressed_vocab_size is 20"):
        EngramHash(TINY, [min(i, 18) for i in MAPPING])
