"""A disk that hangs: threads, memory and everyone's patience are bounded."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from typing_extensions import override

from epd_workers.reference.cache.disk.tier import FETCHES, PENDING_BYTES, READERS
from tests.reference.cache.disk import are_stored, ask, chain, data, fill, opened
from tests.support.polling import until
from tests.support.swapool.windows import descriptors

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from epd_workers.reference.cache.disk import DiskPages, StoredPage
    from epd_workers.reference.cache.disk.tally import Got

BIG = 1 << 22


def threads() -> int:
    return sum(thread.name.startswith("kv-disk-") for thread in threading.enumerate())


class Hanging:
    """Stands between a tier and its folder, as a network file system whose server is gone does."""

    def __init__(self, pages: DiskPages) -> None:
        self.gate = threading.Event()
        self.asked: list[bytes] = []
        self._folder = pages._folder
        self.file_bytes = self._folder.file_bytes
        pages._folder = self  # type: ignore[assignment]

    def read(self, name: bytes) -> tuple[Got, StoredPage | None]:
        self.asked.append(name)
        self.gate.wait()
        return self._folder.read(name)

    def write(self, name: bytes, page: StoredPage) -> bool:
        self.gate.wait()
        return self._folder.write(name, page)


class Slow(threading.Event):
    """A gate that opens for everyone, but takes its time."""

    @override
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.2)


def test_a_fetch_waits_no_longer_than_its_patience(tmp_path: Path) -> None:
    with opened(tmp_path, patience=0.2) as pages:
        fill(pages, range(3))
        hanging = Hanging(pages)
        settled = []
        begun = time.monotonic()
        fetch = pages.fetch([chain(0), chain(1)], lambda: settled.append(1))
        assert 0.1 < fetch.deadline - begun < 1
        until(lambda: fetch.ready)
        assert time.monotonic() >= fetch.deadline
        assert not fetch.pages
        hanging.gate.set()
        until(lambda: are_stored(pages, range(3)) == [False] * 3)
        assert not fetch.pages, "one answer, whatever comes later"
    assert settled == [1]
    assert hanging.asked[0] == chain(0)
    assert hanging.asked.count(chain(1)) == 1, "nobody waited for the second page any more"


def test_who_leaves_is_not_read_for(tmp_path: Path) -> None:
    with opened(tmp_path, patience=60) as pages:
        fill(pages, range(3))
        hanging = Hanging(pages)
        settled = []
        fetches = [pages.fetch([chain(0), chain(1)], lambda: settled.append(1)) for _ in range(READERS + 3)]
        until(lambda: len(hanging.asked) == READERS)
        for fetch in fetches:
            assert not fetch.pages
        hanging.gate.set()
        assert ask(pages, [2]).pages
        assert hanging.asked == [chain(0)] * READERS + [chain(2)]
    assert len(settled) == READERS + 3


def test_a_slow_disk_is_read_no_longer_than_that_either(tmp_path: Path) -> None:
    """The answer is final by itself, with what has come: a window can still be looked up for these pages."""
    with opened(tmp_path, patience=0.7) as pages:
        fill(pages, range(9))
        hanging, final = Hanging(pages), threading.Event()
        hanging.gate = Slow()
        fetch = pages.fetch([chain(number) for number in range(9)], final.set)
        assert final.wait(10)
        assert 0 < len(fetch.pages) < 9
        assert len(hanging.asked) == len(fetch.pages) + 1


def test_nobody_waits_for_a_disk_that_is_known_to_hang(tmp_path: Path) -> None:
    with opened(tmp_path, patience=0.05) as pages:
        hanging = Hanging(pages)
        for number in range(READERS):
            pages.fetch([chain(number)], lambda: None)
        until(lambda: pages.stats.fault == "Stuck")
        assert pages.fetch([chain(9)], lambda: None).ready
        assert len(hanging.asked) == READERS
        hanging.gate.set()


def test_asking_early_is_an_answer(tmp_path: Path) -> None:
    """What was not there when the batch was built is not there later in the same request either."""
    with opened(tmp_path, patience=60) as pages:
        fill(pages, range(2))
        hanging = Hanging(pages)
        fetch = pages.fetch([chain(0)], lambda: None)
        assert not fetch.ready
        assert not fetch.pages
        assert fetch.ready
        hanging.gate.set()
        assert ask(pages, [1]).pages
        assert not fetch.pages


def test_a_storm_leaves_nothing_behind(tmp_path: Path) -> None:
    """1,000 fetches and 1,000 pages to a disk that hangs: the same threads, bounded memory, and then all is well."""
    before = threads()
    with opened(tmp_path, size=BIG, limit=1 << 30, patience=0.05) as pages:
        assert threads() == before + READERS + 1
        hanging = Hanging(pages)
        held, page = descriptors(), bytes(BIG)
        taken = sum(pages.put(chain(number), page, replayed=False) for number in range(1000))
        assert taken <= PENDING_BYTES // BIG + 1
        fetches = [pages.fetch([chain(0)], lambda: None) for _ in range(1000)]
        assert sum(fetch._final for fetch in fetches) >= 1000 - FETCHES - READERS
        until(lambda: pages.stats.fault == "Stuck")
        assert pages.fetch([chain(0)], lambda: None).ready, "nobody waits for a disk that is known to hang"
        assert threads() == before + READERS + 1
        assert pages.stats.dropped == 1000 - taken
        hanging.gate.set()
        until(lambda: not pages.stats.fault)
        assert pages.drain(10)
        assert pages.stats.stored == taken
        assert ask(pages, [0]).pages[0].data == page
        assert descriptors() == held
    assert threads() == before


def test_closing_does_not_wait_for_what_hangs(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        hanging = Hanging(pages)
        assert pages.put(chain(0), data(0), replayed=False)
        begun = time.monotonic()
        assert not pages.close(0.1)
        assert time.monotonic() - begun < 2
        assert not pages.put(chain(1), data(1), replayed=False)
        assert pages.fetch([chain(0)], lambda: None).ready
        assert pages.stats.dropped == 1
        hanging.gate.set()


def test_a_defect_ends_no_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as pages, caplog.at_level(logging.ERROR):
        fill(pages, range(2))

        def fail() -> None:
            raise RuntimeError("a defect")

        for _ in range(READERS + 1):
            pages.fetch([chain(0)], fail)
        pages.put(b"", data(0), replayed=False)
        fill(pages, [2])
        assert are_stored(pages, range(3)) == [False] * 3
    assert {record.message for record in caplog.records} == {"kv-disk-get: a task failed"}


def test_long_prompts_come_in_order_and_whole(tmp_path: Path) -> None:
    """2,000 pages, the last of which is gone."""
    with opened(tmp_path, size=1000, patience=20) as pages:
        page = bytes(1000)
        for number in range(1, 2000):
            while not pages.put(chain(number), page, replayed=False):
                assert pages.drain(10)
        assert pages.drain(10)
        answers = [pages.fetch([chain(number) for number in range(1, 2001)], lambda: None) for _ in range(3)]
        until(lambda: all(answer.ready for answer in answers), 20)
        assert [len(answer.pages) for answer in answers] == [1999] * 3
