"""Reads the hash-locked requirement files that requirements/lock.sh writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from tools.release.error import ReleaseError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Locked:
    """One package of a lock file.

    Attributes:
        name: Its normalized name.
        version: The one version that may be installed.
        marker: Where it is installed, as an environment marker; "" is everywhere.
        hashes: SHA-256 of every file that may be installed, one for each platform, in hexadecimal.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def read(path: Path) -> tuple[Locked, ...]:
    """The packages of a lock file, in its order.

    Raises:
        ReleaseError: A line is not `NAME==VERSION [; MARKER]` with SHA-256 hashes; all such lines are named.
    """
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    result, faults = [], []
    for line in lines:
        if line and not line.startswith("#"):
            try:
                result.append(_locked(line))
            except (InvalidRequirement, ValueError) as error:
                faults.append(f"{path.name}: {line[:60]}: {error}")
    if faults:
        raise ReleaseError("\n".join(faults))
    return tuple(result)


def _locked(line: str) -> Locked:
    words, *hashes = line.split("--hash=")
    wanted = Requirement(words.strip())
    (version,) = wanted.specifier
    if version.operator != "==" or not hashes or not all(one.startswith("sha256:") for one in hashes):
        raise ValueError("must be one version (==) with --hash=sha256: for every file; run requirements/lock.sh")
    digests = tuple(one.strip().removeprefix("sha256:") for one in hashes)
    return Locked(wanted.name, version.version, str(wanted.marker or ""), digests)
