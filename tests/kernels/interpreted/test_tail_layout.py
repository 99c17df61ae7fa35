"""Tails: kernel and torch against rows written out one by one, and what must hold for every layout."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.tail_layout import launch, reference
from epd_kernels.tail_layout.policy import Policy
from tests.kernels.oracle_tail_layout import Part, places
from tests.kernels.ragged import ints, parts_of, tail_rows, tensors

if TYPE_CHECKING:
    from epd_kernels.tail_layout.reference import Layout

W = 128
CASES = {
    "no-requests": [],
    "no-rows": [Part(0, 0, 0, whole=False)],
    "no-rows-behind-tokens": [Part(0, 900, 0, whole=False)],
    "one-row": [Part(1, 1, 0, whole=False)],
    "shorter": [Part(127, 127, 0, whole=False)],
    "window": [Part(128, 128, 0, whole=False)],
    "longer": [Part(129, 129, 0, whole=False)],
    "short-last-chunk": [Part(100, 8292, 0, whole=False)],
    "shorter-than-window-in-all": [Part(30, 90, 0, whole=False)],
    "decode": [Part(1, 700, 0, whole=True)],
    "whole": [Part(300, 300, 0, whole=True)],
    "whole-behind-base": [Part(300, 900, 600, whole=True)],
    "replay": [Part(40, 640, 600, whole=False)],
    "empty-between": [
        Part(0, 5, 0, whole=False),
        Part(3, 3, 0, whole=False),
        Part(0, 0, 0, whole=True),
        Part(0, 7, 0, whole=False),
        Part(2, 9, 0, whole=False),
        Part(0, 1, 0, whole=False),
    ],
    "mixed": [Part(8192, 8192, 0, whole=False), *[Part(1, 300 + i, 0, whole=True) for i in range(9)]],
    "decode-batch": [Part(1, 1 + i, 0, whole=True) for i in range(64)],
    "many-blocks": [Part(i % 4, 10 * i + i % 4, 0, whole=i % 3 == 0) for i in range(71)],
}


def as_tensors(parts: list[Part], window: int, policy: Policy, capacity: int) -> Layout:
    actual, starts = places(parts, window, policy.value, capacity)
    return reference.Layout(
        rows=torch.tensor([one.row for one in actual], dtype=torch.int64),
        positions=ints([one.position for one in actual]),
        floors=ints([one.floor for one in actual]),
        requests=ints([one.request for one in actual]),
        starts=ints(starts),
    )


def assert_same(actual: Layout, wanted: Layout) -> None:
    for field in fields(wanted):
        one, other = getattr(actual, field.name), getattr(wanted, field.name)
        assert one.dtype == other.dtype, field.name
        assert one.tolist() == other.tolist(), field.name


def check(parts: list[Part], window: int, policy: Policy, padding: int) -> None:
    capacity = tail_rows(parts, window) + padding
    wanted = as_tensors(parts, window, policy, capacity)
    for operation in (reference.tail_layout, launch.tail_layout):
        actual = operation(*tensors(parts), window=window, policy=policy, capacity=capacity)
        assert_same(actual, wanted)


@pytest.mark.parametrize("padding", [0, 5, 300])
@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_oracle_on_every_edge(case: str, policy: Policy, padding: int) -> None:
    check(CASES[case], W, policy, padding)


@settings(max_examples=80)
@given(parts=parts_of(8, 20), policy=st.sampled_from(Policy), padding=st.integers(0, 9))
def test_equals_the_oracle_on_ragged_batches(parts: list[Part], policy: Policy, padding: int) -> None:
    check(parts, 8, policy, padding)


@settings(max_examples=40)
@given(parts=parts_of(8, 20), policy=st.sampled_from(Policy))
def test_what_holds_for_every_layout(parts: list[Part], policy: Policy) -> None:
    count = tail_rows(parts, 8)
    layout = launch.tail_layout(*tensors(parts), window=8, policy=policy, capacity=count)
    assert layout.starts[-1] == count
    assert (layout.floors >= 0).all()
    assert (layout.floors <= layout.positions).all()
    for request, part in enumerate(parts):
        span = slice(int(layout.starts[request]), int(layout.starts[request + 1]))
        assert (layout.requests[span] == request).all()
        assert (layout.rows[span].diff() == 1).all()
        assert (layout.positions[span].diff() == 1).all()
        if part.extend:
            assert layout.positions[span][-1] == part.length - 1


@settings(max_examples=25)
@given(parts=parts_of(8, 12), policy=st.sampled_from(Policy), data=st.data())
def test_permuting_requests_permutes_their_rows(parts: list[Part], policy: Policy, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(parts))))
    count = tail_rows(parts, 8)
    plain = launch.tail_layout(*tensors(parts), window=8, policy=policy, capacity=count)
    moved = launch.tail_layout(*tensors([parts[i] for i in order]), window=8, policy=policy, capacity=count)
    for name in ("positions", "floors"):
        blocks = [getattr(plain, name)[plain.starts[i] : plain.starts[i + 1]].tolist() for i in order]
        assert getattr(moved, name).tolist() == [value for block in blocks for value in block]


@pytest.mark.parametrize("policy", Policy)
def test_floors_rise_with_the_sequence(policy: Policy) -> None:
    parts = [Part(40, length, 0, whole=False) for length in range(40, 400, 15)]
    layout = launch.tail_layout(*tensors(parts), window=W, policy=policy, capacity=40 * len(parts))
    assert (layout.floors.view(-1, 40).diff(dim=0) >= 0).all()


def test_policies_differ_for_short_chunks_alone() -> None:
    short, long = [Part(100, 8292, 0, whole=False)], [Part(128, 8320, 0, whole=False)]

    def floors(parts: list[Part], policy: Policy) -> set[int]:
        layout = launch.tail_layout(*tensors(parts), window=W, policy=policy, capacity=tail_rows(parts, W))
        return set(layout.floors.tolist())

    assert floors(short, Policy.WINDOW) == {8292 - 128}
    assert floors(short, Policy.TAIL) == {8292 - 100}
    assert floors(long, Policy.WINDOW) == floors(long, Policy.TAIL) == {8320 - 128}


@pytest.mark.parametrize("batch", [0, 1, 3, 64, 500])
def test_is_one_launch(batch: int) -> None:
    parts = [Part(200, 200, 0, whole=False)] * batch
    _, launches = launch.launches_tail_layout(
        *tensors(parts), window=W, policy=Policy.WINDOW, capacity=tail_rows(parts, W)
    )
    assert len(launches) == 1


def test_takes_strided_inputs() -> None:
    parts = CASES["mixed"]
    capacity = tail_rows(parts, W)
    strided = [torch.stack((values, values), 1)[:, 0] for values in tensors(parts)]
    actual = launch.tail_layout(
        strided[0], strided[1], strided[2], strided[3], window=W, policy=Policy.WINDOW, capacity=capacity
    )
    assert_same(actual, as_tensors(parts, W, Policy.WINDOW, capacity))
