from __future__ import annotations

import gc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from epd_sglang.window_pool.request import Chains, length, named
from tests.support.engine_requests import EngineRequest, request

PAGE = 4
tokens = st.lists(st.integers(0, 2**40), max_size=20)


def made(prompt: list[int], answer: list[int]) -> EngineRequest:
    return EngineRequest(array("q", prompt), array("q", answer))


@given(tokens, tokens)
def test_names_go_on_where_they_were_left(prompt: list[int], answer: list[int]) -> None:
    growing, chains = made(prompt, []), Chains(PAGE)
    before = list(chains.pages(growing))
    growing.output_ids.extend(answer)
    after = list(chains.pages(growing))
    assert after[: len(before)] == before
    assert after == list(Chains(PAGE).pages(made(prompt, answer)))
    assert len(after) == length(growing) // PAGE


@given(tokens, st.integers(0, 19), st.integers(0, 2**40))
def test_a_changed_token_changes_its_page_and_all_behind(prompt: list[int], place: int, token: int) -> None:
    changed = list(prompt)
    if place < len(prompt):
        changed[place] = token
    one, other = (Chains(PAGE).pages(made(each, [])) for each in (prompt, changed))
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        assert (a == b) == (prompt[: (index + 1) * PAGE] == changed[: (index + 1) * PAGE])


def test_salts_and_extra_keys_keep_texts_apart() -> None:
    texts = [made([1] * 4, []) for _ in range(4)]
    texts[1].cache_salt, texts[2].extra_key, texts[3].cache_salt, texts[3].extra_key = "a", "a", "b", "a"
    assert len({Chains(PAGE).page_at(text, 4) for text in texts}) == 4


def test_a_request_that_is_gone_is_forgotten() -> None:
    chains, short = Chains(PAGE), request(8)
    chains.pages(short)
    del short
    gc.collect()
    assert not chains._known


def test_embeddings_have_no_name() -> None:
    texts = [request(8) for _ in range(3)]
    texts[1].input_embeds, texts[2].positional_embed_overrides = [[0.0]], object()
    assert [named(text) for text in texts] == [True, False, False]
