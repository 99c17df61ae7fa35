"""The base image where no registry is reachable: a minimal Debian with Python, made by debootstrap."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools import packages, progress, tally
from tools.images.program import run
from tools.images.recipe import base_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.images.store import Store

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates", *packages.packages(packages.LIBRARIES))
"""Python, and the libraries of Mooncake, which an image build cannot fetch by itself: it knows no mirror."""
EMPTIED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/man",
    "usr/share/locale",
    "tmp",
    "proc",
    "sys",
    "dev",
)
"""Folders whose content an image does not need; licences (usr/share/doc) stay."""
OF_THE_HOST = ("etc/apt/sources.list", "etc/resolv.conf", "etc/hostname", "etc/hosts")
"""Files in which debootstrap leaves this machine's resolver and mirror."""


def base_image(store: Store, root: Path) -> str:
    """Make the base image unless the store holds it.

    Returns:
        Its name in the store.

    Raises:
        ImageError: debootstrap is missing or failed.
    """
    image = f"localhost/epd-base:{base_key(root)}"
    if store.has(image):
        return image
    with (
        progress.step(f"{'base':<8} making a minimal Debian ({SUITE}) with Python") as step,
        tempfile.TemporaryDirectory(dir=store.folder, prefix="base-") as folder,
    ):
        system, context = Path(folder, "system"), Path(folder, "context")
        context.mkdir()
        run(minimal(system, PACKAGES), store.log, step, tally.Debootstrap())
        strip(system)
        step.far("packing")
        run(["tar", "-C", str(system), "-cf", str(context / "rootfs.tar"), "."], store.log)
        store.build(root / "images" / "base.Containerfile", context, image)
    return image


def minimal(system: Path, include: Sequence[str] = ()) -> list[str]:
    """Return the command that makes a minimal Debian.

    Args:
        system: The folder that becomes its root.
        include: Packages beyond the smallest set that can install others.
    """
    mirror = [address] if (address := os.environ.get("EPD_DEBIAN_MIRROR")) else []
    included = [f"--include={','.join(include)}"] if include else []
    return ["debootstrap", "--variant=minbase", *included, SUITE, str(system), *mirror]


def strip(system: Path) -> None:
    """Remove from a root file system what no image needs and what says where it was made."""
    for name in EMPTIED:
        folder = system / name
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    for name in OF_THE_HOST:
        (system / name).unlink(missing_ok=True)
