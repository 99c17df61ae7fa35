"""A request that goes while its lookups are being made leaves none of them behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import pytest
from typing_extensions import override

from epd_workers.reference.cache.disk import StoredPage
from epd_workers.reference.engine.prefetch import Prefetch, Prefetched
from epd_workers.reference.engine.store import Stores
from tests.reference.returning.deployment import Windows, space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.swapool.lookup import Lookup

CHAINS = [bytes([number]) * 32 for number in range(5)]


class Leaving(Windows):
    """Windows and pages in whose middle the request goes."""

    def __init__(self, model: LoadedModel, during: Literal["fetch", "begin", ""]) -> None:
        super().__init__(space_of(model))
        self.page = StoredPage(bytes(model.geometry(4, "fp4").page_bytes), replayed=False)
        self.during, self.read = during, 0
        self.wakes = threading.Semaphore(0)
        self.prefetch = Prefetch(Stores(self, self), model.geometry(4, "fp4"), 4, self.wakes.release)  # type: ignore[arg-type] # `put` is never called

    @property
    def ready(self) -> bool:
        return self.during != "fetch"

    @property
    def pages(self) -> Sequence[StoredPage]:
        self.read += 1
        return [self.page] * 3

    def fetch(self, chains: Sequence[bytes], done: Callable[[], None]) -> Leaving:
        assert list(chains) == CHAINS[1:]
        if self.during == "fetch":
            self.prefetch.take()
        done()
        return self

    @override
    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> Lookup:
        if self.during == "begin":
            self.prefetch.take()
        return super().begin(chain, position, done)


@pytest.mark.parametrize("during", ["fetch", "begin", ""])
def test_nothing_is_left_of_a_request_that_goes_meanwhile(
    model: LoadedModel, during: Literal["fetch", "begin", ""]
) -> None:
    stores = Leaving(model, during)
    stores.prefetch.start(CHAINS, matched=4, longest=19)
    assert stores.prefetch.ready
    assert stores.wakes.acquire(blocking=False)
    assert stores.read > 0  # taking what has come ends the prefetch
    assert [key.position for key in stores.asked] == ([] if during == "fetch" else [16])
    actual = stores.prefetch.take()
    assert actual == (Prefetched(1, (stores.page,) * 3, 16) if not during else Prefetched(1, position=actual.position))
    verdicts = stores.pool.metrics.registry.get_sample_value("swapool_get_total", {"result": "miss"})
    assert verdicts == len(stores.asked)
