"""The container images of a release, by digest: what `python -m tools.images push --json` printed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import yaml

from tools.images.recipe import NAMES, Options, recipe
from tools.release.error import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOCKS: Final[Mapping[str, str]] = {"operator": "operator", "router": "router", "worker": "workers"}
"""The lock file that an image's packages are installed from, by the image's name."""
BASE: Final = "the packages of Debian in the base image"
_REFERENCE: Final = re.compile(r"[^@\s]+:(?P<tag>[^@:/\s]+)@sha256:(?P<digest>[0-9a-f]{64})")


def read(path: Path, root: Path, options: Options) -> dict[str, str]:
    """The reference of each image by its name, each with the digest of an image that was built from these sources.

    Args:
        path: A JSON object: image name to reference, `REGISTRY/epd-NAME:TAG@sha256:DIGEST`.
        root: The sources.
        options: With which the images were built.

    Raises:
        ReleaseError: An image is missing or unknown, has no digest, or was built from other sources; all are named.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{path}: {error}: it must be what `python -m tools.images push --json` prints") from None
    if not isinstance(result, dict) or set(result) != set(NAMES):
        raise ReleaseError(f"{path}: must be an object with exactly the images {', '.join(NAMES)}")
    faults = [fault for name in NAMES if (fault := _fault(str(result[name]), recipe(root, name, options).tag))]
    if faults:
        raise ReleaseError("\n".join(f"{path}: {fault}" for fault in faults))
    return {name: result[name] for name in NAMES}


def _fault(reference: str, tag: str) -> str:
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        return f"{reference!r}: must be REGISTRY/NAME:TAG@sha256:DIGEST with 64 hexadecimal digits"
    if parts["tag"] != tag:
        return f"{reference}: was built from other sources: of these the tag is {tag}; run `make images` again"
    return ""


def digest(reference: str) -> str:
    """The 64 hexadecimal digits at the end of a reference."""
    return reference.rpartition(":")[2]


def values(references: Mapping[str, str]) -> str:
    """Values for the chart that install exactly these images."""
    note = "# The images of this release, by digest: helm install --values THIS-FILE\n"
    return note + yaml.safe_dump({"images": dict(references)}, sort_keys=False, width=200)
