"""Pages to try the disk tier with, and servers of it that are processes of their own."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epd_workers.reference.cache.disk import DiskPages, Fetch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPACE = bytes(range(16))
OTHER = bytes(range(16, 32))
SIZE = 5000
# What a page of this size takes on disk, its header included.
TAKES = 8192
ROOT = Path(__file__).parents[3]


def chain(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def data(number: int, size: int = SIZE) -> bytes:
    """The bytes of this page and of no other."""
    return random.Random(number).randbytes(size)


@contextmanager
def opened(folder: Path, space: bytes = SPACE, size: int = SIZE, **options: Any) -> Iterator[DiskPages]:
    pages = DiskPages(folder, space, size, **{"limit": 1 << 26, "hours": 72, **options})
    try:
        assert pages.drain(5)
        yield pages
    finally:
        assert pages.close(5)


def fill(pages: DiskPages, numbers: Sequence[int], *, replayed: bool = False) -> None:
    for number in numbers:
        assert pages.put(chain(number), data(number), replayed=replayed)
    assert pages.drain(10)


def ask(pages: DiskPages, numbers: Sequence[int]) -> Fetch:
    """A fetch whose answer is final."""
    final = threading.Event()
    fetch = pages.fetch([chain(number) for number in numbers], final.set)
    assert final.wait(10)
    assert fetch.ready
    return fetch


def are_stored(pages: DiskPages, numbers: Sequence[int]) -> list[bool]:
    """Which of them, from the first on, are there, and whether they are marked. Whatever is there is right."""
    answer = ask(pages, numbers).pages
    assert [page.data for page in answer] == [data(number) for number, _ in zip(numbers, answer, strict=False)]
    return [page.replayed for page in answer]


def there(pages: DiskPages, numbers: Sequence[int]) -> set[int]:
    """Which of them are there, wherever."""
    return {number for number in numbers if are_stored(pages, [number])}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def used(folder: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files(folder))


def mount(*arguments: object) -> None:
    subprocess.run(["mount", "-t", *map(str, arguments)], check=True)


def remount(mode: str, folder: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def script(body: str, folder: Path, *arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A process that runs `body` with the names of this module, `folder`, and `arguments` from `sys.argv[2]` on."""
    code = f"from tests.reference.cache.disk import *\nfolder = Path(sys.argv[1])\n{body}"
    command = [*before, sys.executable, "-W", "error", "-c", code, str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def finished(process: subprocess.Popen[str]) -> None:
    """It has ended, and well."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
