"""The names under which others find what was computed for the very same tokens, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.engine.job import Job
from epd_workers.reference.engine.prefix_key import Names, pictures, prefix_key
from epd_workers.reference.engine.request import Prompt
from epd_workers.swapool.chain import chain
from tests.support.reference.engines import SHORT, picture, text

KEYS = st.lists(st.one_of(st.integers(0, 3), st.integers(-3, -1), st.just(2**40), st.just(-(2**255))), max_size=12)


@given(KEYS, KEYS, st.sampled_from([1, 2, 3]), st.sampled_from(["", "a"]), st.sampled_from(["", "a", "\ud800"]))
def test_two_pages_have_one_name_only_if_all_before_them_is_the_same(
    one: list[int], other: list[int], size: int, salt: str, pepper: str
) -> None:
    left, right = chain(one, size, salt), chain(other, size, pepper)
    assert len(left) == len(one) // size
    assert len(set(left)) == len(left)
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        end = (index + 1) * size
        assert (a == b) == (one[:end] == other[:end] and salt == pepper)
    assert all(len(name) == 32 for name in left)


@given(KEYS, st.sampled_from([1, 2, 3]), st.integers(0, 12))
def test_a_chain_goes_on_where_it_was_left(key: list[int], size: int, pages: int) -> None:
    whole = chain(key, size, "salt")
    begun = whole[:pages]
    rest = chain(key[len(begun) * size :], size, "salt", before=begun[-1] if begun else b"")
    assert [*begun, *rest] == whole


def test_a_picture_counts_with_all_its_bits() -> None:
    ids = [1, 258, 258, 2]
    first, same, other = (Prompt(ids, [picture(1, 2, seed)]) for seed in (1, 1, 2))
    keys = [prefix_key(prompt.token_ids, pictures(prompt), 258) for prompt in (first, same, other)]
    assert keys[0] == keys[1] != keys[2]
    assert -(2**256) <= keys[0][1] < -(2**200)
    near = replace(pictures(first)[0], digest=f"{int(pictures(first)[0].digest, 16) ^ 1:064x}")
    assert chain(prefix_key(ids, [near], 258), 2) != chain(keys[0], 2)


def test_an_answer_is_named_as_the_next_prompt_will_name_it() -> None:
    prompt, message = Prompt(text(10), salt="s"), text(9, 1)
    names = Names(Job("a", "generate", prompt, SHORT, 0, print), 258, 4)
    assert len(names.chain()) == 2
    assert len(names.chain(message[:1])) == 2
    assert list(names.chain(message)) == chain([*prompt.token_ids, *message], 4, "s")
