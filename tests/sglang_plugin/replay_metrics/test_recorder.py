from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from epd_sglang.replay_metrics.metrics import Metrics
from epd_sglang.replay_metrics.recorder import Recorder
from epd_sglang.replay_metrics.tally import Limits, Tally
from epd_workers.registrar import engine_metrics
from epd_workers.registrar.server_info import Decoder, Encoder, Replay
from tests.support.engine_requests import batch, request

LIMITS = Limits(
    encoder_layers=4, decoder_layers=3, encoder_replay=True, decoder_replay=True, prefix_cache=True, chunk=768
)


class Seen:
    """A recorder, and what its metrics show."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.recorder = Recorder(Tally(LIMITS), Metrics(self._registry))

    def rows(self, half: str) -> tuple[float | None, float | None]:
        """Run and skipped."""
        name = "epd_replay_layer_rows_total"
        run, skipped = (self._registry.get_sample_value(name, {"half": half, "state": s}) for s in ("run", "skipped"))
        return run, skipped

    def read(self) -> Replay | None:
        """What the registrar makes of it."""
        return engine_metrics.parse(generate_latest(self._registry).decode()).replay

    def active(self, half: str, reason: str = "") -> float | None:
        return self._registry.get_sample_value("epd_replay_active", {"half": half, "reason": reason})


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_both_halves_are_there_before_the_first_prompt(seen: Seen) -> None:
    assert seen.active("encoder", "NoPrefixHitYet") == seen.active("decoder", "NoLongPromptYet") == 0
    assert seen.active("encoder") is None


def test_a_step_is_counted_as_it_ran(seen: Seen) -> None:
    hit, fresh = request(900), request(500)
    seen.recorder.begin()
    seen.recorder.folded([128, 0])
    seen.recorder.laid_out([128, 128])
    seen.recorder.end(batch((hit, 768, 132, True), (fresh, 0, 500, True)))
    assert seen.rows("encoder") == (4 * (128 + 132 + 500), 4 * (768 - 128))
    assert seen.rows("decoder") == (3 * 256, 3 * (4 + 372))
    assert seen.active("encoder") == seen.active("decoder") == 1


def test_a_later_chunk_is_no_hit_and_nothing_is_left_of_the_step_before(seen: Seen) -> None:
    test_a_step_is_counted_as_it_ran(seen)
    before = seen.rows("encoder"), seen.rows("decoder")
    seen.recorder.begin()
    seen.recorder.end(batch((request(900), 768, 100, False)))
    assert seen.rows("encoder") == (before[0][0] + 400, before[0][1])  # type: ignore[operator]
    assert seen.rows("decoder") == (before[1][0] + 300, before[1][1])  # type: ignore[operator]


def test_decode_rows_that_share_a_step_are_no_prompts(seen: Seen) -> None:
    step = batch((request(200), 0, 200, True), (request(10), 9, 1, False))
    step.decoding_reqs = step.reqs[1:]
    seen.recorder.begin()
    seen.recorder.laid_out([128, 1])
    seen.recorder.end(step)
    assert seen.rows("encoder") == (800, 0)
    assert seen.rows("decoder") == (384, 216)


def test_the_registrar_reads_what_is_counted(seen: Seen) -> None:
    idle = Replay(Decoder(False, "NoLongPromptYet", "", 0, 0), Encoder(False, "NoPrefixHitYet", 0))
    assert seen.read() == idle
    test_a_step_is_counted_as_it_ran(seen)
    assert seen.read() == Replay(Decoder(True, "", "", 3 * 256, 3 * 376), Encoder(True, "", 0))
