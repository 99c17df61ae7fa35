"""Many conversations at once over two servers, some left early, with less memory than they would like."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from epd_workers.reference.engine.request import Aborted, Prompt
from epd_workers.reference.engine.store import Stores
from tests.reference.returning.deployment import SILENT, Windows, folder, grown, served, space_of
from tests.support.reference.engines import text

if TYPE_CHECKING:
    from epd_workers.reference.model.loaded import LoadedModel
    from tests.reference.returning.deployment import Server

BOUNDS: dict[str, Any] = {"chunked_prefill_size": 16}
CROWDED = {"max_running_requests": 2, "max_total_tokens": 160}


async def test_conversations_cross_each_other(model: LoadedModel) -> None:
    """Every run that says it is exact says what a server alone would say."""
    dice, exact = random.Random(7), list[tuple[Prompt, int]]()

    async def talk(number: int, servers: list[Server]) -> None:
        prompt = Prompt(text(20, number), salt=str(number % 2))
        for turn in range(4):
            server = dice.choice(servers)
            asked = server.engine.prefill(f"{number}", prompt, SILENT, lambda _: None)
            if dice.random() < 0.2:
                leaving = asyncio.create_task(asked)
                await asyncio.sleep(dice.random() / 50)
                server.engine.abort(f"{number}")
                try:
                    await leaving
                except Aborted:
                    continue
            else:
                handover = await asked
                if handover.exact:
                    exact.append((prompt, handover.first.token_id))
                prompt = grown(prompt, [handover.first.token_id], 9, seed=10 * number + turn)

    windows = Windows(space_of(model, **BOUNDS))
    with folder(model, **BOUNDS) as pages:
        stores = Stores(windows, pages)
        async with (
            served(model, stores, **BOUNDS, **CROWDED) as one,
            served(model, stores, **BOUNDS, **CROWDED) as other,
        ):
            await asyncio.gather(*(talk(number, [one, other]) for number in range(6)))
            assert one.adopted + other.adopted > 5
    assert len(exact) > 12
    async with served(model, Stores(), **BOUNDS) as alone:
        for prompt, token in exact:
            assert alone.engine.flush_cache()
            handover, _ = await alone.prefill(prompt)
            assert handover.first.token_id == token
