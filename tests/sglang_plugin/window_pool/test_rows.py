"""Rows that leave one ring and arrive in another are the same, byte for byte, in every layer and arrangement."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_sglang.window_pool import rows
from epd_sglang.window_pool.extent import WINDOW
from tests.support.engine_requests import PAGE, V41, EngineRing

LAYERS = 3


def captured(ring: EngineRing, first: int) -> bytes:
    capture = rows.Capture(first, LAYERS)
    for layer in range(LAYERS):
        capture.take(ring, layer)
    return capture.depart(None).data()


@settings(max_examples=20)
@given(st.booleans(), st.integers(0, 300), st.integers(0, 3), st.integers(1, 8), st.integers(0, 2**31))
def test_a_window_arrives_as_it_left(interleaved: bool, first: int, slot: int, page: int, seed: int) -> None:
    layout, end = V41(is_interleaved=interleaved), page * PAGE
    source, target = (EngineRing(LAYERS + 1, 4, rows, layout, seed) for rows in (first + WINDOW + 5, 0))
    data = captured(source, first)
    rows.adopt(target, slot, end, data, LAYERS)
    positions = torch.arange(end - WINDOW, end)
    for layer in range(LAYERS):
        assert torch.equal(target.held(layer, slot, positions), source.rows[layer, first : first + WINDOW])
        tagged = (target.tags[layer] >= 0).nonzero()
        assert torch.equal(tagged.flatten(), target.row_loc(slot, positions).sort().values)
        assert torch.equal(target.tags[layer, target.row_loc(slot, positions)], positions)
    assert (target.tags[LAYERS] == -1).all()
    assert not target.state.kv_buffer[LAYERS].any()


def test_what_leaves_is_what_the_key_promises() -> None:
    ring = EngineRing(LAYERS, 1, 400, V41())
    data = captured(ring, 100)
    assert len(data) == LAYERS * WINDOW * 528
    assert data == ring.rows[:, 100 : 100 + WINDOW].numpy().tobytes()
