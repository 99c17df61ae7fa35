"""Pages on disk: what comes back is what was stored, or nothing."""

from __future__ import annotations

import math
import os
import stat
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from epd_workers.reference.cache.disk import DiskPages, StoredPage
from epd_workers.reference.cache.disk.folder import Folder, horizon
from epd_workers.reference.cache.disk.page import HEADER, judge, seal
from tests.reference.cache.disk import (
    OTHER,
    SIZE,
    SPACE,
    TAKES,
    are_stored,
    chain,
    data,
    files,
    fill,
    opened,
    there,
    used,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_there_and_back(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        fill(pages, range(20))
        assert are_stored(pages, range(20)) == [False] * 20
        assert are_stored(pages, [3, 4, 99, 5]) == [False] * 2, "the leading ones only"
        assert not are_stored(pages, [99, 3])
        assert not are_stored(pages, [])
        stats = pages.stats
    assert (stats.stored, stats.read, stats.dropped, stats.evicted) == (20, 22, 0, 0)
    assert (stats.bytes, stats.fault) == (20 * TAKES, "")


def test_a_later_server_finds_them(tmp_path: Path) -> None:
    with opened(tmp_path / "of" / "all") as pages:
        fill(pages, range(5))
    with opened(tmp_path / "of" / "all") as pages:
        assert are_stored(pages, range(6)) == [False] * 5
        assert pages.stats.bytes == 5 * TAKES


def test_another_space_does_not(tmp_path: Path) -> None:
    with opened(tmp_path) as pages, opened(tmp_path, OTHER) as others:
        fill(pages, range(5))
        assert not are_stored(others, range(5))


@given(st.lists(st.booleans(), max_size=6))
def test_an_exact_page_stays(tmp_path_factory: pytest.TempPathFactory, marks: list[bool]) -> None:
    """Exact ones take the place of approximate ones, never the other way round."""
    folder = Folder(tmp_path_factory.mktemp("pages"), SPACE, SIZE, 3600)
    kept: StoredPage | None = None
    for replayed in marks:
        page = StoredPage(data(int(replayed)), replayed)
        better = kept is None or (kept.replayed and not replayed)
        assert folder.write(chain(0), page) == better
        kept = page if better else kept
    assert folder.read(chain(0)) == ("hit" if kept else "miss", kept)
    assert len(files(folder.root)) == bool(marks)


def test_what_went_wrong_in_the_meantime_does_not_matter(tmp_path: Path) -> None:
    """Of an exact page that did not survive, the approximate one is left: two servers wrote them at the same time."""
    folder = Folder(tmp_path, SPACE, SIZE, 3600)
    folder.write(chain(0), StoredPage(data(1), replayed=True))
    folder.path(chain(0), replayed=False).write_bytes(b"torn")
    assert folder.read(chain(0)) == ("hit", StoredPage(data(1), replayed=True))
    assert len(files(tmp_path)) == 1
    assert folder.write(chain(0), StoredPage(data(0), replayed=False))
    folder.path(chain(0), replayed=True).write_bytes(folder.path(chain(0), replayed=False).read_bytes())
    folder.path(chain(0), replayed=False).unlink()
    assert folder.read(chain(0)) == ("mismatch", None), "a file under the other mark's name was not written by us"


@given(st.data())
def test_only_exactly_this_page(draw: st.DataObject) -> None:
    """Whatever bits flip, however it is cut or extended, and under whichever other name: it is not this page."""
    size = draw.draw(st.integers(1, 200))
    page = StoredPage(data(1, size), draw.draw(st.booleans()))
    content = seal(SPACE, chain(1), page) + page.data
    assert judge(SPACE, chain(1), size, content) == page
    bit = draw.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    assert judge(SPACE, chain(1), size, bytes(flipped)) is None
    cut = draw.draw(st.integers(0, len(content) - 1))
    assert judge(SPACE, chain(1), size, content[:cut]) is None
    assert judge(SPACE, chain(1), max(cut - HEADER, 0), content[:cut]) is None
    assert judge(SPACE, chain(1), size, content + b"\0") is None
    assert judge(SPACE, chain(1), size + 1, content + b"\0") is None
    assert judge(SPACE, chain(2), size, content) is None
    assert judge(OTHER, chain(1), size, content) is None


def _torn(path: Path) -> None:
    os.truncate(path, 900)


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER + 17] ^= 4
    path.write_bytes(content)


def _holes(path: Path) -> None:
    """As after a power cut: the length has arrived, the bytes have not."""
    path.write_bytes(bytes(HEADER + SIZE))


def _another_page(path: Path) -> None:
    page = StoredPage(data(2), replayed=False)
    path.write_bytes(seal(SPACE, chain(2), page) + page.data)


def _another_space(path: Path) -> None:
    page = StoredPage(data(1), replayed=False)
    path.write_bytes(seal(OTHER, chain(1), page) + page.data)


def _link(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink()
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize(
    "spoil", [_torn, _longer, _flipped, _holes, _another_page, _another_space, _link, _pipe, _socket]
)
def test_what_is_not_a_page_is_removed(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    with opened(tmp_path) as pages:
        fill(pages, range(3))
        path = next(path for path in files(tmp_path) if path.name == chain(1).hex())
        spoil(path)
        assert are_stored(pages, range(3)) == [False]
        assert not os.path.lexists(path)
        fill(pages, [1])
        assert are_stored(pages, range(3)) == [False] * 3
        assert not pages.stats.fault


def test_a_folder_in_its_place_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        fill(pages, range(2))
        path = next(path for path in files(tmp_path) if path.name == chain(1).hex())
        path.unlink()
        path.mkdir()
        fill(pages, range(3))
        assert are_stored(pages, range(3)) == [False]
        assert pages.stats.fault == "Failing"
        assert path.is_dir()


def test_age(tmp_path: Path) -> None:
    """What nobody used for longer than the limit is gone; a use restarts the count."""
    with opened(tmp_path, hours=2) as pages:
        fill(pages, range(4))
        _age(tmp_path, {0: 3000, 1: 7100, 2: 7300, 3: 7300})
        assert there(pages, [0, 1, 2]) == {0, 1}
        assert len(files(tmp_path)) == 3
        _age(tmp_path, {0: 7300})
    with opened(tmp_path, hours=2) as pages:
        assert there(pages, range(4)) == {1}
        assert pages.stats.evicted == 2


def test_clocks_that_disagree(tmp_path: Path) -> None:
    """A page from the future is as good as any, and does not stay for ever."""
    with opened(tmp_path) as pages:
        fill(pages, range(2))
        _age(tmp_path, {0: -1e6, 1: -1e6})
        assert there(pages, [0]) == {0}
    with opened(tmp_path):
        assert all(path.stat().st_mtime < time.time() + 100 for path in files(tmp_path))


def test_reading_writes_rarely(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        fill(pages, range(2))
        _age(tmp_path, {0: 30, 1: 90})
        before = {path: path.stat().st_mtime_ns for path in files(tmp_path)}
        there(pages, range(2))
        touched = [path.name for path in files(tmp_path) if path.stat().st_mtime_ns != before[path]]
    assert touched == [chain(1).hex()]


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), max_size=30), st.integers(0, 100), st.integers(0, 100)
)
def test_the_horizon(entries: list[tuple[int, int]], one: int, other: int) -> None:
    """The least recently used go, as many as it takes, and only if there are too many."""
    most, rest = max(one, other), min(one, other)
    used, sizes = [moment for moment, _ in entries], [size for _, size in entries]
    last = horizon(used, sizes, most, rest)
    kept = sum(size for moment, size in entries if moment > last)
    if sum(sizes) <= most:
        assert kept == sum(sizes)
    else:
        assert kept <= rest
        assert kept + sum(size for moment, size in entries if moment == last) > rest


def test_the_limit(tmp_path: Path) -> None:
    """Three times what may be there: it never is, and what was used last stays."""
    with opened(tmp_path, limit=100 * TAKES) as pages:
        fill(pages, range(50))
        _age(tmp_path, dict.fromkeys(range(50), 1000))
        assert are_stored(pages, range(10)) == [False] * 10
        for start in range(50, 300, 5):
            fill(pages, range(start, start + 5))
            assert used(tmp_path) <= 100 * TAKES
        # Those that were read are younger than the forty, and older than what came since.
        assert there(pages, range(300)) >= set(range(230, 300))
        stats = pages.stats
    assert stats.stored == 300
    assert stats.evicted == 300 - len(files(tmp_path))
    assert stats.bytes == used(tmp_path)
    assert not stats.dropped


@pytest.mark.parametrize("hours", [1e9, 1e300, math.inf])
def test_the_limit_holds_however_long_pages_are_kept(tmp_path: Path, hours: float) -> None:
    for numbers in (range(30), range(30, 60)):
        with opened(tmp_path, limit=32 * TAKES, hours=hours) as pages:
            fill(pages, numbers)
            assert pages.stats.dropped == 0
    assert used(tmp_path) <= 32 * TAKES


def test_who_was_read_outlives_who_was_not(tmp_path: Path) -> None:
    with opened(tmp_path, limit=100 * TAKES) as pages:
        fill(pages, range(80))
        _age(tmp_path, dict.fromkeys(range(80), 1000))
        there(pages, range(40))
        fill(pages, range(80, 120))
        assert there(pages, range(120)) == {*range(40), *range(80, 120)}


def test_the_limit_is_the_folders(tmp_path: Path) -> None:
    """Pages of other spaces, say of last week's checkpoint, make room as well; what is nobody's page does not."""
    stranger = tmp_path / OTHER.hex() / "00" / "notes.txt"
    with opened(tmp_path, OTHER, limit=100 * TAKES) as others:
        fill(others, range(80))
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_bytes(bytes(90 * TAKES))
    (tmp_path / "notes.txt").write_text("mine")
    _age(tmp_path, dict.fromkeys(range(80), 1000))
    os.utime(stranger, (1, 1))
    with opened(tmp_path, limit=100 * TAKES) as pages:
        fill(pages, range(85))
        assert there(pages, range(85)) == set(range(85))
    with opened(tmp_path, OTHER) as others:
        assert not there(others, range(80))
    assert stranger.stat().st_size == 90 * TAKES
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_shelves_that_stand_empty_go(tmp_path: Path) -> None:
    with opened(tmp_path, OTHER) as others:
        fill(others, range(3))
    _age(tmp_path, dict.fromkeys(range(3), 1e6))
    for _ in range(3):  # a folder may go once what was in it has long gone
        for path in tmp_path.rglob("*"):
            if path.is_dir():
                os.utime(path, (1, 1))
        with opened(tmp_path) as pages:
            fill(pages, [7])
    assert [path.name for path in tmp_path.iterdir()] == [SPACE.hex()]


def test_what_was_never_finished(tmp_path: Path) -> None:
    """Of a dead writer's file nothing is left once nobody can be writing it any more."""
    with opened(tmp_path) as pages:
        fill(pages, [0])
    shelf = files(tmp_path)[0].parent
    old, young = shelf / "part.00112233445566aa", shelf / "part.00112233445566bb"
    for path, age in ((old, 700), (young, 500)):
        path.write_bytes(bytes(SIZE))
        os.utime(path, (time.time() - age,) * 2)
    with opened(tmp_path) as pages:
        assert pages.stats.bytes == 2 * TAKES
        assert pages.stats.evicted == 0
    assert sorted(path.name for path in shelf.iterdir()) == [chain(0).hex(), young.name]


def test_sizes_that_are_not_valid(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"space has 2 bytes.*page_bytes is 0.*hours is nan.*limit is 3: the file"):
        DiskPages(tmp_path, b"ab", 0, limit=3, hours=math.nan)


def test_a_page_of_another_size_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        assert not pages.put(chain(0), b"short", replayed=False)
        assert pages.stats.dropped == 1
        assert not files(tmp_path)


def test_metrics(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with opened(tmp_path, registry=registry) as pages:
        fill(pages, [0, 0, 1])
        are_stored(pages, [0, 1, 2])
    text = generate_latest(registry).decode()
    for line in (
        'kv_disk_put_total{result="stored"} 2.0',
        'kv_disk_put_total{result="known"} 1.0',
        'kv_disk_put_total{result="full"} 0.0',
        'kv_disk_get_total{result="hit"} 2.0',
        'kv_disk_get_total{result="miss"} 1.0',
        'kv_disk_bytes_total{dir="put"} 10000.0',
        'kv_disk_bytes_total{dir="get"} 10000.0',
        'kv_disk_evicted_total{reason="age"} 0.0',
        "kv_disk_held_bytes 16384.0",
    ):
        assert f"{line}\n" in text


def _age(root: Path, seconds: dict[int, float]) -> None:
    """Let pages be last used so many seconds ago."""
    now = time.time()
    for path in files(root):
        for number, age in seconds.items():
            if path.name == chain(number).hex():
                os.utime(path, (now - age, now - age))
