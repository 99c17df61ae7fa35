"""Which windows are adopted, which are published, and what is known of their exactness."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from epd_sglang.window_pool.exactness import ExactPages
from epd_sglang.window_pool.extent import WINDOW
from epd_sglang.window_pool.lookups import Lookups, Verdict
from epd_sglang.window_pool.outbox import Outbox
from epd_sglang.window_pool.pool import EnginePool, Publishing
from epd_sglang.window_pool.request import Chains
from tests.support.engine_requests import PAGE, V41, EngineBatch, EngineRequest, EngineRing, batch, request

LAYERS = 2
ROWS = bytes(LAYERS * WINDOW * 528)


@dataclass
class Shelf:
    """A pool that keeps what it is given, and counts."""

    active: bool = True
    windows: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    again: int = 0
    spared: int = 0

    def put(self, chain: bytes, position: int, data: bytes, *, replayed: bool) -> None:
        assert not replayed
        self.windows[chain, position] = data

    def replayed(self, tokens: int) -> None:
        self.again += tokens

    def avoided(self, tokens: int) -> None:
        self.spared += tokens


class Engine:
    """An engine's steps with a pool beside them.

    Attributes:
        shelf: The pool.
        answers: What lookups bring, by request.
    """

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.answers: dict[EngineRequest, Verdict] = {}
        self._chains = Chains(PAGE)
        lookups = Lookups(None, self._chains, self._answer, least=WINDOW)
        self._outbox = Outbox(self.shelf)
        publishing = Publishing(self.shelf, self._outbox, ExactPages(100))
        self.pool = EnginePool(lookups, self._chains, layers=LAYERS, page_size=PAGE, publishing=publishing)
        self._turn: EngineRequest | None = None

    def _answer(self, _: Verdict) -> Verdict:
        assert self._turn is not None
        return self.answers.get(self._turn, Verdict())

    def run(self, step: EngineBatch, *, layers: int = LAYERS + 1) -> list[tuple[int, int, int]]:
        """Run a step; the hits that were replayed."""
        replays = []
        for number, (one, prefix) in enumerate(zip(step.reqs, step.prefix_lens, strict=True)):
            if step.encoder_swa_reset[number] and prefix:
                self._turn = one
                self.pool.lookups.spares(one, prefix)
                replays.append((number, prefix - WINDOW, prefix))
        self.pool.begin()
        ring = EngineRing(LAYERS + 1, 4, WINDOW * len(replays) + sum(step.extend_lens), V41())
        left = self.pool.fill(step, ring, replays)
        for layer in range(layers):
            self.pool.committed(ring, layer)
        assert self._outbox.drain(5)
        return left

    def published(self, one: EngineRequest) -> list[int]:
        """Ends of a request's windows in the pool."""
        pages = [(end, self._chains.page_at(one, end)) for end in range(PAGE, len(one.origin_input_ids) + 1, PAGE)]
        return [end for end, chain in pages if (chain, end) in self.shelf.windows]


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_prompt_leaves_its_last_window_when_the_chunk_with_it_has_run(engine: Engine) -> None:
    one = request(1800)
    engine.run(batch((one, 0, 768, True)))
    engine.run(batch((one, 768, 768, False)))
    assert engine.published(one) == []
    engine.run(batch((one, 1536, 264, False)))
    assert engine.published(one) == [1792]
    assert all(len(data) == len(ROWS) for data in engine.shelf.windows.values())


def test_of_several_prompts_each_leaves_its_own(engine: Engine) -> None:
    some = [request(tokens, first=tokens) for tokens in (300, 100, 512)]
    engine.run(batch(*((one, 0, len(one.origin_input_ids), True) for one in some)))
    assert [engine.published(one) for one in some] == [[256], [], [512]]


def test_a_hit_whose_window_came_is_not_replayed_and_leaves_the_next(engine: Engine) -> None:
    first, second = request(768), request(1100)
    engine.run(batch((first, 0, 768, True)))
    engine.answers[second] = Verdict(768, ROWS)
    assert engine.run(batch((second, 768, 332, True))) == []
    assert engine.published(second) == [768, 1024]
    assert (engine.shelf.again, engine.shelf.spared) == (0, WINDOW)


def test_a_hit_without_a_window_is_replayed_and_leaves_none(engine: Engine) -> None:
    first, second, third = request(768), request(1100), request(1400)
    engine.run(batch((first, 0, 768, True)))
    assert engine.run(batch((second, 768, 332, True))) == [(0, 640, 768)]
    assert engine.published(second) == [768]
    assert (engine.shelf.again, engine.shelf.spared) == (WINDOW, 0)
    # The page behind 768 is approximate now, and what is computed behind it stays so, whatever window it begins with.
    engine.answers[third] = Verdict(1024, ROWS)
    assert engine.run(batch((third, 1024, 376, True))) == []
    assert engine.published(third) == [768]


def test_an_approximate_window_is_adopted_and_leaves_none(engine: Engine) -> None:
    first, second = request(768), request(1100)
    engine.run(batch((first, 0, 768, True)))
    engine.answers[second] = Verdict(768, ROWS, replayed=True)
    assert engine.run(batch((second, 768, 332, True))) == []
    assert engine.published(second) == [768]
    assert engine.shelf.spared == WINDOW


def test_pages_of_unknown_origin_count_as_inexact(engine: Engine) -> None:
    one = request(1100)
    engine.answers[one] = Verdict(768, ROWS)
    assert engine.run(batch((one, 768, 332, True))) == []
    assert engine.published(one) == []


def test_a_prompt_that_is_computed_again_from_its_start_is_exact_again(engine: Engine) -> None:
    first, second, third, fourth = request(768), request(1100), request(1100), request(1400)
    engine.run(batch((first, 0, 768, True)))
    engine.run(batch((second, 768, 332, True)))
    engine.run(batch((third, 0, 1100, True)))
    engine.answers[fourth] = Verdict(1024, ROWS)
    engine.run(batch((fourth, 1024, 376, True)))
    assert engine.published(fourth) == [768, 1024, 1280]


def test_replayed_rows_of_a_neighbour_do_not_shift_a_window(engine: Engine) -> None:
    first, hit, fresh = request(768), request(1000), request(256, first=5000)
    engine.run(batch((first, 0, 768, True)))
    engine.run(batch((hit, 768, 232, True), (fresh, 0, 256, True)))
    rows = EngineRing(LAYERS + 1, 4, WINDOW + 232 + 256, V41()).rows
    expected = rows[:LAYERS, WINDOW + 232 + 128 : WINDOW + 232 + 256].numpy().tobytes()
    assert engine.shelf.windows[Chains(PAGE).page_at(fresh, 256), 256] == expected


def test_nothing_of_a_step_is_taken_in_the_next(engine: Engine) -> None:
    one = request(256)
    engine.run(batch((one, 0, 256, True)), layers=1)
    engine.pool.begin()
    engine.pool.committed(EngineRing(LAYERS, 1, 1, V41()), LAYERS - 1)
    assert not engine.shelf.windows


def test_without_a_pool_at_the_moment_nothing_is_captured(engine: Engine) -> None:
    engine.shelf.active = False
    one = request(256)
    engine.run(batch((one, 0, 256, True)))
    assert not engine.shelf.windows


def test_a_prompt_of_embeddings_leaves_nothing(engine: Engine) -> None:
    one = request(256)
    one.input_embeds = [[0.0]]
    engine.run(batch((one, 0, 256, True)))
    assert not engine.shelf.windows
