from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.engine.request import InvalidRequest, Sampling
from epd_workers.reference.engine.sampler import History, choose, log_softmax, penalize, ranked, uniform

LOGITS = np.array([0.0, 3.0, 1.0, 2.0, -1.0])
DRAWS = [(i + 0.5) / 2000 for i in range(2000)]


def frequencies(sampling: Sampling) -> dict[int, float]:
    return {token: n / len(DRAWS) for token, n in Counter(choose(LOGITS, sampling, d) for d in DRAWS).items()}


def test_draws_follow_the_distribution() -> None:
    expected = np.exp(log_softmax(LOGITS / 2))
    for token, share in frequencies(Sampling(temperature=2.0)).items():
        assert share == pytest.approx(expected[token], abs=0.002)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=0), {1}),
        (Sampling(temperature=1e-300), {1}),
        (Sampling(top_k=1), {1}),
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_k=99), {0, 1, 2, 3, 4}),
        (Sampling(top_p=1e-9), {1}),
        (Sampling(top_p=0.7), {1, 3}),
        (Sampling(min_p=1.0), {1}),
        (Sampling(min_p=0.1), {1, 2, 3}),
        (Sampling(top_k=3, top_p=0.99, min_p=0.3), {1, 3}),
    ],
)
def test_filters(sampling: Sampling, kept: set[int]) -> None:
    assert set(frequencies(sampling)) == kept


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=30),
    st.floats(0, 100),
    st.floats(1e-6, 1),
    st.floats(0, 1),
    st.integers(1, 40),
    st.floats(0, 1, exclude_max=True),
)
def test_a_barred_token_is_never_chosen(
    values: list[float], temperature: float, top_p: float, min_p: float, top_k: int, draw: float
) -> None:
    logits = np.array([-np.inf, *values, -np.inf])
    sampling = Sampling(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    assert 1 <= choose(logits, sampling, draw) <= len(values)


def test_penalties() -> None:
    history = History(5, [0, 4])
    history.add(1)
    history.add(1)
    repeated = penalize(LOGITS, Sampling(repetition_penalty=2.0), history)
    assert repeated.tolist() == [0.0, 1.5, 1.0, 2.0, -2.0]
    counted = penalize(LOGITS, Sampling(frequency_penalty=0.5, presence_penalty=0.25), history)
    assert counted.tolist() == [0.0, 1.75, 1.0, 2.0, -1.0]
    assert penalize(LOGITS, Sampling(), history).tolist() == LOGITS.tolist()


def test_ranked_puts_equal_ones_in_order_of_id() -> None:
    assert [i for i, _ in ranked(np.array([1.0, 2.0, 1.0, 2.0]), 3)] == [1, 3, 0]


def test_random_numbers_are_a_function_of_seed_and_index() -> None:
    values = [uniform(3, i) for i in range(2000)]
    assert values[:2] == [uniform(3, 0), uniform(3, 1)] != [uniform(4, 0), uniform(4, 1)]
    assert all(0 <= value < 1 for value in values)
    assert np.mean(values) == pytest.approx(0.5, abs=0.02)


def test_every_bad_parameter_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampling(
            max_new_tokens=0,
            min_new_tokens=1,
            temperature=float("nan"),
            top_p=0,
            top_k=0,
            min_p=2,
            stop=("",),
            top_logprobs=21,
            frequency_penalty=3,
            presence_penalty=-3,
            repetition_penalty=0,
        )
    fields = [part.split(" is ")[0] for part in str(caught.value).split("; ")]
    assert fields == [
        "max_new_tokens",
        "min_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "top_logprobs",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    ]
