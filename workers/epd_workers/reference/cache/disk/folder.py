"""Page files: where they are, how one is written and read, and which of them are removed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from epd_workers.reference.cache.disk.page import HEADER, StoredPage, judge, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from epd_workers.reference.cache.disk.tally import Got

_SPACE: Final = re.compile("[0-9a-f]{32}")
_SHELF: Final = re.compile("[0-9a-f]{2}")
_PAGE: Final = re.compile(r"[0-9a-f]{32,128}(\.replayed)?")
_FILE: Final = re.compile(rf"{_PAGE.pattern}|part\.[0-9a-f]{{16}}")
# Some file systems allocate space in whole blocks.
BLOCK: Final = 4096
# Use is recorded this coarsely: a page that many read is written to once a minute, not at every read.
TOUCH: Final = 60.0
# Nobody writes one page for that long; a writer that does finds the file gone, which costs the page.
ABANDONED: Final = 600.0


@dataclass(frozen=True)
class Swept:
    """What a sweep found and did.

    Attributes:
        held: Bytes that are left.
        aged: Pages removed for their age.
        crowded: Pages removed for room.
    """

    held: int
    aged: int
    crowded: int


def occupied(size: int) -> int:
    """Bytes that a file of `size` bytes takes on disk."""
    return -(-size // BLOCK) * BLOCK


def horizon(used: Sequence[int], sizes: Sequence[int], most: int, rest: int) -> int:
    """Return the moment: what was last used then or before has to go, least recently used first.

    Args:
        used: When each file was last used.
        sizes: Bytes of each.
        most: Bytes that may stay as they are.
        rest: Bytes to come down to if there are more.

    Returns:
        A moment before all of `used` if nothing has to go.
    """
    total = sum(sizes)
    if total <= most or not used:
        return min(used, default=0) - 1
    moments, weights = np.asarray(used, dtype=np.int64), np.asarray(sizes, dtype=np.int64)
    order = np.argsort(moments, kind="stable")
    left = total - np.cumsum(weights[order])
    return int(moments[order[int(np.argmax(left <= rest))]])


class Folder:
    """The files of all servers that share a folder; this server's own are those of its space.

    Whatever else lies there is left alone, and a link in a page's place is not a page.

    Args:
        root: The folder.
        space: Digest of what a page's bytes depend on besides the tokens: 16 bytes.
        page_bytes: Bytes of a page.
        seconds: A page that nobody used for that long is gone.
        clock: Unix seconds.
    """

    def __init__(
        self, root: Path, space: bytes, page_bytes: int, seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.root = root
        self.file_bytes = HEADER + page_bytes
        self._space = space
        self._page_bytes = page_bytes
        self._seconds = seconds
        self._clock = clock

    def create(self) -> None:
        """Make the folder if it is not there.

        Raises:
            OSError: It cannot be made.
        """
        self.root.mkdir(parents=True, exist_ok=True)

    def path(self, chain: bytes, *, replayed: bool) -> Path:
        """Return a page's file. Exact and approximate pages have names of their own: neither can replace the other."""
        name = chain.hex()
        return self.root / self._space.hex() / name[:2] / (f"{name}.replayed" if replayed else name)

    def read(self, chain: bytes) -> tuple[Got, StoredPage | None]:
        """Return a page, the exact one if there are both, and how that went.

        Raises:
            OSError: The file system fails, which says nothing about the page.
        """
        verdict: Got = "miss"
        for replayed in (False, True):
            path = self.path(chain, replayed=replayed)
            content = self._load(path)
            page = judge(self._space, chain, self._page_bytes, content) if isinstance(content, bytes) else None
            if page is not None and page.replayed == replayed:
                return "hit", page
            if content != "miss":
                verdict = "expired" if content == "expired" else "mismatch"
                _remove(path)
        return verdict, None

    def write(self, chain: bytes, page: StoredPage) -> bool:
        """Store a page; False if it is there already, or an exact one is where this one is approximate.

        Raises:
            OSError: It could not be stored.
        """
        exact, approximate = (self.path(chain, replayed=replayed) for replayed in (False, True))
        if self._holds(exact) or (page.replayed and self._holds(approximate)):
            return False
        content = seal(self._space, chain, page) + page.data
        self._place(approximate if page.replayed else exact, content)
        if not page.replayed:
            _remove(approximate)
        return True

    def sweep(self, most: int, rest: int) -> Swept:
        """Remove what is too old; and, of all spaces together, what is too much, least recently used first.

        Args:
            most: Bytes that may stay.
            rest: Bytes to come down to if there are more.

        Raises:
            OSError: The folder cannot be listed.
        """
        now = self._clock()
        used, sizes = array("q"), array("q")
        for entry, info in self._files():
            if info.st_mtime < now - ABANDONED and not _PAGE.fullmatch(entry.name) and _remove(entry.path):
                continue
            if info.st_mtime > now + TOUCH:
                _touch(entry.path, now)
            used.append(min(info.st_mtime_ns, int(now * 1e9)))
            sizes.append(occupied(info.st_size))
        oldest = int(max(0.0, now - self._seconds) * 1e9)
        last = max(horizon(used, sizes, most, rest), oldest)
        if min(used, default=last + 1) > last:
            return Swept(sum(sizes), 0, 0)
        return self._remove_until(last, oldest)

    def _remove_until(self, last: int, oldest: int) -> Swept:
        """Remove what was last used at `last` or before; what was at `oldest` or before would have gone anyway."""
        held = aged = crowded = 0
        for entry, info in self._files():
            moment = info.st_mtime_ns
            if moment > last or not _remove(entry.path):
                held += occupied(info.st_size)
            elif moment <= oldest:
                aged += 1
            else:
                crowded += 1
        return Swept(held, aged, crowded)

    def _files(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Every file of every server in the folder; shelves that have long been empty are cleared away."""
        with os.scandir(self.root) as spaces:
            names = [each.path for each in spaces if _SPACE.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
        for space in names:
            for shelf, _ in _listed(space, _SHELF, stat.S_ISDIR):
                yield from _listed(shelf.path, _FILE, stat.S_ISREG)
                self._clear(shelf.path)
            self._clear(space)

    def _clear(self, path: str) -> None:
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < self._clock() - ABANDONED:  # noqa: PTH116 - many of them, and short of time
                os.rmdir(path)  # noqa: PTH106 - the same

    def _load(self, path: Path) -> bytes | Got:
        """Return a file's content, or why there is none worth reading."""
        try:
            # What is not a regular file must neither be followed nor waited for.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return "miss"
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                return "mismatch"
            raise
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode) or info.st_size != self.file_bytes:
                return "mismatch"
            now = self._clock()
            if info.st_mtime < now - self._seconds:
                return "expired"
            content = _read(handle, self.file_bytes)
            if abs(now - info.st_mtime) > TOUCH:
                _touch(handle, now)
            return content
        finally:
            os.close(handle)

    def _holds(self, path: Path) -> bool:
        """Whether this page's file is there, and looks whole and young; it has been used just now."""
        try:
            info = path.stat(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        now = self._clock()
        if not stat.S_ISREG(info.st_mode) or info.st_size != self.file_bytes or info.st_mtime < now - self._seconds:
            return False
        if abs(now - info.st_mtime) > TOUCH:
            _touch(path, now)
        return True

    def _place(self, path: Path, content: bytes) -> None:
        """Let the file appear, whole or not at all.

        Nothing is forced to the medium: after a power cut the checksum shows what arrived there.
        """
        part = path.parent / f"part.{secrets.token_hex(8)}"
        try:
            handle = _create(part)
        except FileNotFoundError:
            for folder in (path.parent.parent, path.parent):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
            handle = _create(part)
        try:
            try:
                _write(handle, content)
            finally:
                os.close(handle)
            part.rename(path)
        except OSError:
            _remove(part)
            raise


def _listed(
    path: str, names: re.Pattern[str], kind: Callable[[int], bool]
) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """What has such a name and is of this kind; what vanishes meanwhile, or may not be listed, is passed over."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            if not names.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if kind(info.st_mode):
                    yield entry, info


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)


def _write(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _read(handle: int, size: int) -> bytes:
    """Return `size` bytes, or fewer if the file ends before."""
    content = os.read(handle, size)
    while len(content) < size and (more := os.read(handle, size - len(content))):
        content += more
    return content


def _touch(file: int | Path | str, now: float) -> None:
    """Record a use, if this server may."""
    with contextlib.suppress(OSError):
        os.utime(file, (now, now))


def _remove(path: Path | str) -> bool:
    """Remove a file, if it is there and this server may; whether it is gone."""
    try:
        os.unlink(path)  # noqa: PTH108 - the paths of a scan are text
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
