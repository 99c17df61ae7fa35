"""Prefill here, decode there, and the next turn at another prefill server: what decode left is found, too."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_workers.reference.engine.request import Handover, InvalidRequest, Prompt
from epd_workers.reference.engine.store import Stores
from epd_workers.reference.model.replay import PRESETS
from tests.reference.returning.deployment import Reference, Windows, folder, grown, same, served, space_of
from tests.support.reference.engines import picture, text

if TYPE_CHECKING:
    from epd_workers.reference.model.loaded import LoadedModel

TALK = Prompt([*text(9), *[258] * 5, *text(16, 1)], [picture(9, 5, 3)], salt="a tenant's user")
BOUNDS: dict[str, Any] = {"replay": "0.5.23", "chunked_prefill_size": 16}


def sent(handover: Handover) -> Handover:
    return Handover.from_json(json.loads(json.dumps(handover.to_json())))


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 30),
    st.integers(1, 20),
    st.integers(1, 22),
    st.fixed_dictionaries(
        {"page_size": st.sampled_from([2, 4, 6]), "replay": st.sampled_from([None, *PRESETS])},
        optional={"chunked_prefill_size": st.sampled_from([5, 16])},
    ),
)
def test_the_next_turn_finds_the_answer(
    model: LoadedModel, tokens: int, new: int, words: int, given: dict[str, Any]
) -> None:
    prompt = Prompt(TALK.token_ids[:tokens], TALK.images if tokens >= 14 else [], TALK.salt)
    if 258 in prompt.token_ids and not prompt.images:
        prompt = Prompt(prompt.token_ids[:9], salt=TALK.salt)

    async def main() -> None:
        reference, windows = Reference(model, **given), Windows(space_of(model, **given))
        decoding = given | {"encoder_replay": False}
        with folder(model, **given) as pages:
            stores = Stores(windows, pages)
            async with (
                served(model, stores, **given) as one,
                served(model, stores, **decoding) as decode,
                served(model, stores, **given) as other,
            ):
                handover, pieces = await one.prefill(prompt, new)
                steps = await decode.resume(prompt, sent(handover), pieces, new)
                assert pages.drain(10)
                turn = grown(prompt, [step.token_id for step in steps], words, seed=9)
                hit = reference.adopts(len(prompt.token_ids) + new - 1, len(turn.token_ids))
                assert (await other.generate(turn))[0].cached_tokens == hit
                assert other.adopted == (hit > 0)
                assert same(other.seen, reference.uninterrupted(turn, 3, hit))

    asyncio.run(main())


@pytest.mark.parametrize("missing", ["windows", "pages"])
async def test_decode_leaves_both_or_neither(model: LoadedModel, missing: str) -> None:
    windows = Windows(space_of(model, **BOUNDS))
    with folder(model, **BOUNDS) as pages:
        stores = Stores(None if missing == "windows" else windows, None if missing == "pages" else pages)
        async with served(model, Stores(), **BOUNDS) as prefill, served(model, stores, **BOUNDS) as decode:
            handover, pieces = await prefill.prefill(TALK, 20)
            assert len(await decode.resume(TALK, handover, pieces, 20)) == 20
        assert pages.drain(10)
        assert (windows.given, pages.stats.stored) == ([], 0)


async def test_decode_leaves_nothing_of_an_approximate_run_nor_of_one_that_does_not_say(model: LoadedModel) -> None:
    windows = Windows(space_of(model, **BOUNDS))
    with folder(model, **BOUNDS) as pages:
        stores = Stores(windows, pages)
        async with served(model, Stores(), **BOUNDS) as prefill, served(model, stores, **BOUNDS) as decode:
            await prefill.prefill(TALK)
            replayed, pieces = await prefill.prefill(TALK, 20)
            assert not replayed.exact
            await decode.resume(TALK, replayed, pieces, 20)
        silent = replayed.to_json()
        del silent["exact"]
        assert not sent(Handover.from_json(silent)).exact
        assert pages.drain(10)
        assert (windows.given, pages.stats.stored) == ([], 0)


async def test_a_handover_with_pictures_elsewhere_is_refused(model: LoadedModel) -> None:
    async with served(model, Stores(), **BOUNDS) as prefill:
        handover, pieces = await prefill.prefill(TALK)
        reported = handover.to_json()
        reported["pictures"] = [{**reported["pictures"][0], "start": 3}]
        with pytest.raises(InvalidRequest, match=r"pictures\[0\] covers range\(3, 8\)"):
            await prefill.resume(TALK, Handover.from_json(reported), pieces)
        reported["pictures"] = [{**reported["pictures"][0], "digest": "no"}]
        with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
            Handover.from_json(reported)
