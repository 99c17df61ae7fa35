"""Engine versions that have rules here, oldest first, and what a version without rules of its own falls back to.

Two of the three are commits before the release, named as the images built from them are known. A release number below
the first one with DeepSeek-V4.1 is refused under either policy: no rules could make it serve the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Policy = Literal["Strict", "Nearest"]

KNOWN: Final[tuple[str, ...]] = ("dsv41-2026-09", "dsv41-37ae292e", "0.5.23")
"""SGLang versions with rules: commits 006cbb66 and 37ae292e of sgl-project/sglang, then the release."""

_RELEASES: Final[tuple[str, ...]] = ("0.5.23",)
_PRE_RELEASE: Final[dict[str, int]] = {"a": -3, "b": -2, "rc": -1}
NUMBER: Final = "[0-9]{1,18}"
"""One number of a release: as many digits as every integer type that judges it holds."""
_RELEASE: Final = re.compile(rf"({NUMBER})\.({NUMBER})\.({NUMBER})(?:(a|b|rc)({NUMBER}))?(?:\.post({NUMBER}))?")
_SHORT: Final = re.compile(rf"{NUMBER}\.{NUMBER}")

ReleaseKey = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Resolved:
    """The profile that judges a version.

    Attributes:
        version: One of `KNOWN`.
        approximate: The version has no rules of its own; those of the nearest lower release stand in.
    """

    version: str
    approximate: bool


@dataclass(frozen=True)
class Refusal:
    """No profile may judge this version; the message says which versions could."""

    message: str


def rank(version: str) -> int:
    """Position of a known version, oldest first.

    Raises:
        ValueError: `version` is not one of `KNOWN`; a programming error, as user input passes `resolve` first.
    """
    return KNOWN.index(version)


def release_key(version: str) -> ReleaseKey | None:
    """Sort key of a release number (`0.5.23`, `0.5.24rc1`, `0.5.23.post1`); None for anything else."""
    match = _RELEASE.fullmatch(version)
    if match is None:
        return None
    major, minor, patch, stage, number, post = match.groups()
    return int(major), int(minor), int(patch), _PRE_RELEASE.get(stage, 0), int(number or 0), int(post or 0)


def resolve(version: str, policy: Policy) -> Resolved | Refusal:
    """The profile for spec.engine.version.

    Args:
        version: What the user wrote.
        policy: spec.engine.versionPolicy.
    """
    if version in KNOWN:
        return Resolved(version, approximate=False)
    known = " or ".join(f'"{name}"' for name in KNOWN)
    start = f'spec.engine.version "{version}"'
    key = release_key(version)
    if key is None:
        return Refusal(f"{start} {_no_release(version, known)}")
    lower = [(release_key(name) or key, name) for name in _RELEASES]
    lower = [(other, name) for other, name in lower if other < key]
    if not lower:
        commits = " or ".join(f'"{name}"' for name in KNOWN if name not in _RELEASES)
        return Refusal(f'{start} does not serve DeepSeek-V4.1: use "{_RELEASES[0]}" or newer, or the commit {commits}')
    if policy == "Strict":
        return Refusal(
            f"{start} has no rules in this release: use {known}, "
            'or set spec.engine.versionPolicy to "Nearest" to be judged by the nearest lower release'
        )
    return Resolved(max(lower)[1], approximate=True)


def _no_release(version: str, known: str) -> str:
    """What is wrong with a text that is neither a known version nor a release number."""
    bare = version[1:]
    if version[:1] in {"v", "V"} and (bare in KNOWN or release_key(bare)):
        return f'is not a release number: drop the leading "{version[0]}" and write "{bare}"'
    if _SHORT.fullmatch(version):
        return f'is only the beginning of a release number: write it in full, as in "{version}.0"'
    return f"is neither a known SGLang version nor a release number X.Y.Z: use {known}"
