"""What a release is made from: the files that git tracks, and the commit that they belong to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools import program
from tools.program import Unfit
from tools.release.error import ReleaseError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Commit:
    """The commit that a working tree stands on.

    Attributes:
        id: Its hash, 40 hexadecimal digits.
        time: Seconds since 1970 at which it was made; everything in a release is as old.
        clean: Whether the tracked files are those of the commit.
        tags: The tags that point to it.
    """

    id: str
    time: int
    clean: bool
    tags: tuple[str, ...]


def commit(root: Path) -> Commit:
    """Ask git about the working tree at `root`.

    Raises:
        ReleaseError: It is no working tree of git, or has no commit.
    """
    name, time = git(root, "log", "-1", "--format=%H %ct").split()
    clean = not git(root, "status", "--porcelain", "--untracked-files=no").strip()
    return Commit(name, int(time), clean, tuple(git(root, "tag", "--points-at", "HEAD").split()))


def copy(root: Path, target: Path) -> None:
    """Copy the tracked files as they are in the working tree, and nothing else: no cache, no file forgotten there.

    Raises:
        ReleaseError: It is no working tree of git.
    """
    for name in git(root, "ls-files", "-z").split("\0"):
        source = root / name
        if name and source.is_file():  # a file that was removed and not yet committed is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def git(root: Path, *words: str) -> str:
    """Run git; its output.

    Raises:
        ReleaseError: It failed or is not there.
    """
    # Whoever the files belong to: in a container, and under sudo, that is often somebody else.
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *words]
    try:
        done = program.run(command)
    except Unfit:
        raise ReleaseError("git is not installed: a release is made from the files that git tracks") from None
    if done.returncode:
        raise ReleaseError(f"{root}: a release is made from a clone of the repository: {done.stderr.strip()}")
    return done.stdout
