"""The section of CHANGELOG.md that belongs to a version: the notes of its release."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.release.error import ReleaseError


@dataclass(frozen=True)
class Section:
    """What changed in a version.

    Attributes:
        date: The day of its release as YYYY-MM-DD; None says that it is not released.
        text: The section without its heading.
    """

    date: str | None
    text: str


def section(changelog: str, version: str) -> Section:
    """The section of a version in a changelog, which must be its newest one.

    Raises:
        ReleaseError: The newest section is another version's, has no date where one is due, or is empty.
    """
    _, heading, text, *_ = [*re.split(r"(?m)^## (.+)$", changelog, maxsplit=2), "", ""]
    match = re.fullmatch(r"(\S+) \((unreleased|\d{4}-\d\d-\d\d)\)", heading)
    if match is None or match[1] != version:
        raise ReleaseError(
            f"CHANGELOG.md: the newest section is {heading!r}: must be '{version} (unreleased)' or '{version} (DATE)', "
            "with DATE as YYYY-MM-DD"
        )
    if not text.strip():
        raise ReleaseError(f"CHANGELOG.md: the section of {version} is empty: say what changed")
    return Section(None if match[2] == "unreleased" else match[2], text.strip() + "\n")
