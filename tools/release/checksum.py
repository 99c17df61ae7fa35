"""SHA256SUMS: what `sha256sum --check` reads."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "SHA256SUMS"


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: Path) -> None:
    """Write the sums of every other file in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != NAME)
    text = "".join(f"{sha256(path)}  {path.name}\n" for path in files)
    (folder / NAME).write_text(text, encoding="utf-8")


def faults(folder: Path) -> list[str]:
    """What is wrong with the sums of a folder: a file that is missing, unlisted or different."""
    lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    there = {path.name: sha256(path) for path in folder.iterdir() if path.name != NAME}
    result = [f"{NAME}: {name} is listed and is not there" for name in sorted(listed.keys() - there)]
    result += [f"{NAME}: {name} is not listed" for name in sorted(there.keys() - listed)]
    return result + [
        f"{name}: its SHA-256 is not the one in {NAME}"
        for name in sorted(listed.keys() & there)
        if listed[name] != there[name]
    ]
