"""A turn without its window runs the rows before it again: the stated approximation, no better and no worse."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_workers.reference.engine.prefix_key import pictures, prefix_key
from epd_workers.reference.engine.request import Prompt
from epd_workers.reference.engine.store import Stores
from epd_workers.reference.model.replay import PRESETS
from epd_workers.swapool.chain import chain
from tests.reference.returning.deployment import SILENT, Reference, Windows, folder, grown, same, served, space_of
from tests.support.reference.engines import picture, text
from tests.support.reference.small import WINDOW

if TYPE_CHECKING:
    from epd_workers.reference.cache.disk import DiskPages
    from epd_workers.reference.model.loaded import LoadedModel

SETTINGS = st.fixed_dictionaries(
    {
        "chunked_prefill_size": st.sampled_from([5, 9, 16, 40]),
        "page_size": st.sampled_from([2, 4, 6]),
        "replay": st.sampled_from([None, *PRESETS]),
    }
)
TALK = Prompt([*text(9), *[258] * 5, *text(21, 1)], [picture(9, 5, 3)])
BOUNDS: dict[str, Any] = {"replay": "0.5.23", "chunked_prefill_size": 16}


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(SETTINGS, st.integers(1, 22), st.sampled_from([0, 5]), st.booleans())
def test_a_lost_window_is_replayed(
    model: LoadedModel, given: dict[str, Any], words: int, rows: int, lands_elsewhere: bool
) -> None:
    """Whether its pages are in the tree or come from disk."""

    async def main() -> None:
        reference, lost = Reference(model, **given), Windows(space_of(model, **given), ttl=1e-3)
        with folder(model, **given) as pages:
            stores = Stores(lost, pages)
            async with served(model, stores, **given) as one, served(model, stores, **given) as other:
                tokens = [step.token_id for step in await one.generate(TALK, 4)]
                assert pages.drain(10)
                await asyncio.sleep(2e-3)
                server, prompt = other if lands_elsewhere else one, grown(TALK, tokens, words, rows, 7)
                hit = reference.replays(len(TALK.token_ids) + 3, len(prompt.token_ids))
                steps = await server.generate(prompt)
                assert steps[0].cached_tokens == hit
                assert same(server.seen, reference.replayed(prompt, 3, hit))
                assert (server.adopted, lost.ran_again, lost.spared) == (0, min(hit, WINDOW), 0)
                assert server.engine.replay().work.replayed == min(hit, WINDOW)

    asyncio.run(main())


def chain_of(prompt: Prompt) -> list[bytes]:
    return chain(prefix_key(prompt.token_ids, pictures(prompt), 258), 4)


async def marks(pages: DiskPages, prompt: Prompt) -> list[bool]:
    """Which of the prompt's pages on disk are marked."""
    assert pages.drain(10)
    done = threading.Event()
    fetch = pages.fetch(chain_of(prompt), done.set)
    assert await asyncio.to_thread(done.wait, 10)
    return [page.replayed for page in fetch.pages]


async def test_what_a_replay_leaves_is_marked_and_no_window_of_it_is_handed_in(model: LoadedModel) -> None:
    windows = Windows(space_of(model, **BOUNDS))
    longer = grown(TALK, [], 30)
    with folder(model, **BOUNDS) as pages:
        async with served(model, Stores(pages=pages), **BOUNDS) as one:
            assert (await one.prefill(TALK))[0].exact
            assert pages.drain(10)
        async with served(model, Stores(windows, pages), **BOUNDS) as two:
            assert not (await two.prefill(longer))[0].exact
            assert await marks(pages, longer) == [False] * 8 + [True] * 8
        async with served(model, Stores(windows, pages), **BOUNDS) as three:
            handover, _ = await three.prefill(grown(longer, [], 9))
            assert (handover.first.cached_tokens, handover.exact) == (64, False)
        assert windows.ran_again == 2 * WINDOW
        assert windows.given == []


async def test_an_exact_run_takes_the_place_of_an_approximate_one(model: LoadedModel) -> None:
    windows, longer = Windows(space_of(model, **BOUNDS), ttl=1e-3), grown(TALK, [], 30)
    with folder(model, **BOUNDS) as pages:
        async with served(model, Stores(windows, pages), **BOUNDS) as server:
            await server.prefill(TALK)
            await asyncio.sleep(2e-3)
            assert not (await server.prefill(longer))[0].exact
            assert any(await marks(pages, longer))
            windows.ttl = 300.0
            whole = replace(SILENT, max_new_tokens=1, prompt_logprobs=True)
            assert [step async for step in server.engine.generate("every row", longer, whole)]
            assert not any(await marks(pages, longer))
            assert (await server.prefill(grown(longer, [], 9)))[0].exact
            assert server.adopted == 1


async def test_windows_of_approximate_runs_are_handed_in_marked_where_that_is_wanted(model: LoadedModel) -> None:
    windows, longer = Windows(space_of(model, **BOUNDS), ttl=1e-3), grown(TALK, [], 30)
    async with served(model, Stores(windows, approximate=True), **BOUNDS) as server:
        await server.prefill(TALK)
        exact = len(windows.given)
        assert windows.given == [(28, False), (32, False)]
        await asyncio.sleep(2e-3)
        windows.ttl = 300.0
        assert not (await server.prefill(longer))[0].exact
        assert not (await server.prefill(grown(longer, [], 9)))[0].exact
        assert server.adopted == 1
        assert windows.given[exact:] == [(56, True), (60, True), (64, True), (64, True), (68, True), (72, True)]
