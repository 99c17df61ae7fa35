"""The windows of one request suffice for whatever it publishes, adopts or runs again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.reference.cache.disk import StoredPage
from epd_workers.reference.cache.sequence import Sequence
from epd_workers.reference.engine.job import Job
from epd_workers.reference.engine.memory import Memory
from epd_workers.reference.engine.prefetch import Prefetched
from epd_workers.reference.engine.request import Prompt, Step
from epd_workers.reference.engine.scheduler import Scheduler
from epd_workers.reference.engine.store import Stores
from tests.reference.returning.deployment import Windows, returning, space_of
from tests.support.reference.engines import SHORT, check_clean, text
from tests.support.reference.small import WINDOW

if TYPE_CHECKING:
    from epd_workers.reference.engine.job import Event
    from epd_workers.reference.model.loaded import LoadedModel


@pytest.mark.parametrize(
    ("page_size", "replay"), [(2, None), (6, None), (2, "0.5.23"), (4, "0.5.23"), (6, "0.5.23"), (16, "0.5.23")]
)
def test_a_request_holds_few_windows_and_hands_in_all_that_may_be_asked_for(
    model: LoadedModel, page_size: int, replay: str | None
) -> None:
    given: dict[str, Any] = {"page_size": page_size, "chunked_prefill_size": 9, "replay": replay}
    windows, rerun = Windows(space_of(model, **given)), WINDOW if replay else 1
    engine = Scheduler(model, returning(**given, max_running_requests=1), Stores(windows))
    pool, log = engine._memory.pool, list["Event"]()
    least = pool.geometry.window_pages_per_request(9)
    assert least <= pool.window_pages.count <= least + WINDOW // page_size + 2
    asked = (text(50), [*text(50), *text(12, 1)], text(62, 3), [*text(62, 3), 5])

    def boundaries(end: int) -> set[int]:
        """Those that a text which goes on after `end` tokens may come back to."""
        return {at for at in range(page_size, end + 1, page_size) if at + page_size > end + 1 - rerun}

    for ids in asked:
        windows.given.clear()
        engine.submit(Job("a", "generate", Prompt(ids), replace(SHORT, max_new_tokens=8), 0, log.append))
        while engine.load().running:
            engine.step()
        assert len(windows.given) == len(set(windows.given))
        assert set(windows.given) == {(at, False) for at in boundaries(len(ids)) | boundaries(len(ids) + 7)}
    assert engine.replay().adopted == 2
    assert [event.finish for event in log if isinstance(event, Step) and event.finish] == ["length"] * len(asked)
    check_clean(engine._memory)


@pytest.mark.parametrize("left", [3, 4, 5])
def test_pages_from_a_store_are_of_use_only_where_those_of_the_tree_end(model: LoadedModel, left: int) -> None:
    """Pages may go from the tree while what follows them is fetched."""
    bounds = returning()
    memory, key = Memory(model.geometry(4, "fp4"), bounds), text(40)
    sequence, page = Sequence(memory.pool), StoredPage(bytes(memory.geometry.page_bytes), replayed=False)
    memory.reserve(sequence, 4 * left)
    sequence.advance(4 * left)
    memory.keep(sequence, key, "", 0)
    sequence.release()
    start = memory.begin(sequence, key, "", Prefetched(first=4, pages=[page] * 3))
    assert (start.hit, start.stored) == {3: (12, 0), 4: (28, 3), 5: (28, 2)}[left]
    assert sequence.length == start.hit
    sequence.release()
    check_clean(memory)
