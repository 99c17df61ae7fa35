from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_sglang.replay_metrics.tally import WINDOW, Limits, Part, Tally, Work, decoder_work, encoder_work

LIMITS = Limits(
    encoder_layers=20, decoder_layers=20, encoder_replay=True, decoder_replay=True, prefix_cache=True, chunk=8192
)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A prompt's part of a step, as the engine lays it out."""
    rows, hit = draw(st.integers(1, 2000)), 256 * draw(st.integers(0, 4))
    replayed = draw(st.sampled_from([0, min(hit, WINDOW)]))
    return Part(rows, replayed, draw(st.sampled_from([min(WINDOW, rows + replayed), rows + replayed])), hit)


@given(st.lists(parts()))
def test_what_runs_and_what_is_spared_are_all_there_is(some: list[Part]) -> None:
    encoder, decoder = encoder_work(some, LIMITS), decoder_work(some, LIMITS)
    assert encoder.run + encoder.skipped == 20 * sum(part.rows + part.hit for part in some)
    assert decoder.run == 20 * sum(part.late for part in some)
    assert decoder.run + decoder.skipped == 20 * sum(max(part.late, part.rows) for part in some)


def test_replayed_rows_spare_nothing() -> None:
    """100 rows behind a hit: the late layers run 28 of the replayed rows as well, and none is spared."""
    assert decoder_work([Part(100, 128, 128, 512)], LIMITS) == Work(20 * 128, 0)
    assert encoder_work([Part(100, 128, 128, 512)], LIMITS) == Work(20 * 228, 20 * 384)


def test_a_hit_that_took_its_window_from_the_pool_is_spared_whole() -> None:
    assert encoder_work([Part(300, 0, 128, 512)], LIMITS) == Work(20 * 300, 20 * 512)


@pytest.mark.parametrize(
    ("limits", "step", "encoder", "decoder"),
    [
        (LIMITS, [], "NoPrefixHitYet", "NoLongPromptYet"),
        (LIMITS, [Part(100, 0, 100)], "NoPrefixHitYet", "NoLongPromptYet"),
        (LIMITS, [Part(300, 0, 128)], "NoPrefixHitYet", ""),
        (LIMITS, [Part(300, 0, 300)], "PromptLogprobs", "PromptLogprobs"),
        (LIMITS, [Part(300, 0, 300), Part(300, 0, 128)], "NoPrefixHitYet", ""),
        (LIMITS, [Part(50, 128, 128, 256)], "", "NoLongPromptYet"),
        (LIMITS, [Part(200, 0, 128, 256)], "", ""),
        (replace(LIMITS, decoder_replay=False), [Part(300, 0, 300)], "NoPrefixHitYet", "TurnedOff"),
        (replace(LIMITS, encoder_replay=False), [Part(300, 0, 128)], "TurnedOff", ""),
        (replace(LIMITS, prefix_cache=False), [], "NoPrefixCache", "NoLongPromptYet"),
        (replace(LIMITS, encoder_replay=False, chunk=128), [Part(128, 0, 128)], "TurnedOff", "ChunksWithinWindow"),
        (replace(LIMITS, chunk=None), [], "NoPrefixHitYet", "NoLongPromptYet"),
    ],
)
def test_a_half_that_spared_nothing_says_why(limits: Limits, step: list[Part], encoder: str, decoder: str) -> None:
    tally = Tally(limits)
    tally.count(step)
    assert (tally.encoder, tally.decoder) == (encoder, decoder)


def test_what_has_begun_to_run_stays_so() -> None:
    tally = Tally(LIMITS)
    tally.count([Part(300, 128, 128, 256)])
    tally.count([Part(300, 0, 300)])
    assert (tally.encoder, tally.decoder) == ("", "")
