"""A turn that finds what earlier turns left computes the very logits of a conversation that nothing interrupted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_workers.reference.engine.request import Prompt
from epd_workers.reference.engine.store import Stores
from epd_workers.reference.model.replay import PRESETS
from tests.reference.returning.deployment import Reference, Windows, folder, grown, same, served, space_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.model.loaded import LoadedModel

CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
SETTINGS = st.fixed_dictionaries(
    {
        "chunked_prefill_size": st.sampled_from([5, 8, 9, 16, 40]),
        "page_size": st.sampled_from([2, 4, 6, 16]),
        "replay": st.sampled_from([None, *PRESETS]),
        "cache_type": st.sampled_from(["fp4", "bf16"]),
    }
)
# New words, rows of a picture before them, tokens of the answer, which server, and whether it only runs the prompt.
TURNS = st.lists(
    st.tuples(st.integers(1, 22), st.sampled_from([0, 0, 5]), st.integers(1, 8), st.integers(0, 1), st.booleans()),
    min_size=2,
    max_size=3,
)


@settings(CALM, max_examples=16)
@given(TURNS, SETTINGS, st.sampled_from(["", "someone"]))
def test_every_turn_goes_on_exactly_wherever_it_lands(
    model: LoadedModel, turns: Sequence[tuple[int, int, int, int, bool]], given: dict[str, Any], salt: str
) -> None:
    async def main() -> None:
        reference, windows = Reference(model, **given), Windows(space_of(model, **given))
        with folder(model, **given) as pages:
            stores = Stores(windows, pages)
            async with served(model, stores, **given) as one, served(model, stores, **given) as other:
                prompt, messages, ran = Prompt([], salt=salt), list[int](), 0
                for number, (words, rows, new, where, prompt_only) in enumerate(turns):
                    prompt = grown(prompt, messages, words, rows, number + 1)
                    server, tokens = (one, other)[where], len(prompt.token_ids)
                    adopted, hit = server.adopted, reference.adopts(ran, tokens)
                    if prompt_only:
                        handover, _ = await server.prefill(prompt)
                        messages, ran, cached = [handover.first.token_id], tokens, handover.first.cached_tokens
                        assert handover.exact
                    else:
                        steps = await server.generate(prompt, new)
                        messages = [step.token_id for step in steps]
                        ran, cached = tokens + new - 1, steps[0].cached_tokens
                    assert cached == hit
                    assert server.adopted - adopted == (hit > 0)
                    assert same(server.seen, reference.uninterrupted(prompt, 1 if prompt_only else new, hit))
                    assert pages.drain(10)
                assert windows.ran_again == 0

    asyncio.run(main())
