"""Servers that share a folder, come and go and die; folders that fill up, turn read-only and vanish."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

from epd_workers.reference.cache.disk.fault import HOLD, Fault
from tests.reference.cache.disk import (
    SPACE,
    TAKES,
    are_stored,
    ask,
    chain,
    data,
    files,
    fill,
    finished,
    opened,
    script,
    there,
    used,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# A name space of mounts of its own: whatever becomes of the test, nothing stays mounted.
PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")


def test_writers_that_are_killed_leave_whole_pages(tmp_path: Path) -> None:
    """Twelve servers killed in the middle of writing and of making room; the next one finds nothing that is torn."""
    body = """
import os, signal, time
for number in range(12):
    if not (child := os.fork()):
        with opened(folder, size=1 << 20, limit=40 << 20) as pages:
            for each in range(1000 * number, 1000 * number + 1000):
                while not pages.put(chain(each), data(each % 3, 1 << 20), replayed=each % 2 == 1):
                    pages.drain(1)
        os._exit(1)
    time.sleep(random.uniform(0.03, 0.2))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""
    finished(script(body, tmp_path))
    wanted = {chain(each).hex(): each for each in range(12000)}
    left = [path.name.removesuffix(".replayed") for path in files(tmp_path) if not path.name.startswith("part.")]
    assert len(left) > 12
    with opened(tmp_path, size=1 << 20, limit=1 << 30) as pages:
        for name in left:
            (page,) = ask(pages, [wanted[name]]).pages
            assert page.data == data(wanted[name] % 3, 1 << 20)
            assert page.replayed == (wanted[name] % 2 == 1)
        assert pages.stats.read == len(left)
        assert not pages.stats.fault
    assert used(tmp_path) <= 40 << 20


def test_two_servers_and_a_reader(tmp_path: Path) -> None:
    """One writes exact pages, one approximations of the same ones; a third reads all the while."""
    body = """
numbers = list(range(1000))
random.Random(sys.argv[2]).shuffle(numbers)
with opened(folder) as pages:
    for number in numbers:
        while not pages.put(chain(number), data(number + (sys.argv[2] == "1")), replayed=sys.argv[2] == "1"):
            assert pages.drain(10)
    assert pages.drain(20)
    assert not pages.stats.fault
"""
    writers = [script(body, tmp_path, "0"), script(body, tmp_path, "1")]
    exact: set[int] = set()
    with opened(tmp_path) as pages:
        while any(writer.poll() is None for writer in writers):
            for number in range(0, 1000, 7):
                for page in ask(pages, [number]).pages:
                    assert page.data == data(number + page.replayed)
                    assert page.replayed <= (number not in exact), "an approximation took the place of an exact page"
                    exact |= set() if page.replayed else {number}
        for writer in writers:
            finished(writer)
        assert are_stored(pages, range(1000)) == [False] * 1000
        assert not pages.stats.fault


def test_servers_keep_to_one_limit(tmp_path: Path) -> None:
    """Three servers that write ten times what may be there: together they never have more, and all is in order."""
    body = """
with opened(folder, limit=160 * 8192) as pages:
    for number in range(500 * int(sys.argv[2]), 500 * int(sys.argv[2]) + 500):
        fill(pages, [number])
    assert not pages.stats.fault
    assert pages.stats.stored == 500
"""
    servers = [script(body, tmp_path, str(number)) for number in range(3)]
    most = 0
    while any(server.poll() is None for server in servers):
        most = max(most, _used_now(tmp_path))
    for server in servers:
        finished(server)
    assert 100 * TAKES < most <= (160 + 3) * TAKES, "one page of each may be half written"
    with opened(tmp_path) as pages:
        left = there(pages, range(1500))
        assert len(left) == len(files(tmp_path)) > 100
        assert left & {499, 999, 1499}


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """The limit is 64 MiB, the disk has one: old pages make room, nothing fails. Then somebody else fills it."""
    body = """
import contextlib
mount("tmpfs", "-o", "size=1m", "tmpfs", folder)
with opened(folder) as pages:
    for number in range(300):
        fill(pages, [number])
        if number == 200:
            assert pages.stats.fault == "Full", pages.stats
    assert pages.stats.stored == 300 and not pages.stats.dropped, pages.stats
    assert pages.stats.evicted == 300 - len(files(folder))
    assert there(pages, range(300)) >= set(range(260, 300))
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            for path in files(folder):
                if path.name != "filler":
                    path.unlink()
    fill(pages, range(300, 310))
    assert pages.stats.fault == "Full" and pages.stats.dropped == 10, pages.stats
    assert not there(pages, range(300, 310))
    (folder / "filler").unlink()
    fill(pages, range(300, 310))
    assert there(pages, range(300, 310)) == set(range(300, 310))
"""
    finished(script(body, tmp_path, before=PRIVATE))


def test_a_disk_without_room_for_names(tmp_path: Path) -> None:
    body = """
mount("tmpfs", "-o", "size=64m,nr_inodes=150", "tmpfs", folder)
with opened(folder) as pages:
    for number in range(200):
        fill(pages, [number])
    assert pages.stats.fault == "Full" and pages.stats.dropped < 150, pages.stats
    assert there(pages, range(200))
"""
    finished(script(body, tmp_path, before=PRIVATE))


def test_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    body = """
mount("tmpfs", "tmpfs", folder)
with opened(folder) as pages:
    fill(pages, range(5))
    path = next(path for path in files(folder) if path.name == chain(3).hex())
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    remount("ro", folder)
    fill(pages, range(10))
    assert there(pages, range(10)) == {0, 1, 2, 4}
    assert pages.stats.fault == "ReadOnly" and pages.stats.dropped == 5, pages.stats
with opened(folder) as pages:
    assert there(pages, range(10)) == {0, 1, 2, 4}
    remount("rw", folder)
    assert not there(pages, [3])
    fill(pages, range(10))
    assert there(pages, range(10)) == set(range(10))
"""
    finished(script(body, tmp_path, before=PRIVATE))


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    """As when its volume is unmounted: pages are not to land on the disk below it."""
    folder = tmp_path / "pages"
    with opened(folder) as pages:
        fill(pages, range(5))
        shutil.rmtree(folder)
        assert not there(pages, range(5))
        fill(pages, range(5))
        assert pages.stats.fault == "Missing"
        assert pages.stats.dropped == 5
        assert not folder.exists()
        folder.mkdir()
        fill(pages, range(5))
        assert there(pages, range(5)) == set(range(5))


def test_what_was_in_the_folder_vanishes(tmp_path: Path) -> None:
    """As when somebody cleans up."""
    with opened(tmp_path) as pages:
        fill(pages, range(50))
        shutil.rmtree(next(tmp_path.iterdir()))
        assert not there(pages, range(5))
        fill(pages, range(5))
        assert there(pages, range(5)) == set(range(5))
        assert not pages.stats.fault


def test_somebody_cleans_up_all_the_time(tmp_path: Path) -> None:
    ended = threading.Event()

    def clean() -> None:
        while not ended.wait(0.002):
            for path in tmp_path.iterdir():
                shutil.rmtree(path, ignore_errors=True)

    cleaner = threading.Thread(target=clean)
    with opened(tmp_path, limit=50 * TAKES) as pages:
        cleaner.start()
        for number in range(300):
            fill(pages, [number])
            there(pages, [number, number - 1])
        ended.set()
        cleaner.join()
        fill(pages, range(5))
        assert there(pages, range(5)) == set(range(5))


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with opened(tmp_path / "file" / "pages") as pages:
        assert pages.stats.fault == "Missing"
        fill(pages, range(5))
        assert not there(pages, range(5))
        assert pages.stats.dropped == 5
        assert pages.stats.fault == "Missing"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_fault_is_a_slow_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It stays for a while, is logged when it changes, and one way of failing does not hide the other."""
    now = [0.0]
    fault = Fault(tmp_path, lambda: now[0])
    for _ in range(3):
        fault.failed("put", OSError(28, "No space left on device"))
        fault.worked("put")
        fault.worked("get")
    assert fault.word == "Full"
    assert len(caplog.messages) == 1
    fault.failed("get", OSError(5, "Input/output error"))
    now[0] += HOLD
    fault.worked("put")
    assert fault.word == "Failing"
    fault.worked("get")
    assert not fault.word


def _used_now(folder: Path) -> int:
    """Bytes in a folder that others change meanwhile: of pages that were there before the count and still are."""
    return TAKES * sum(path.exists() for path in list(folder.glob(f"{SPACE.hex()}/*/*")))
