"""The builder: buildah with a store of its own below the cache folder."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import apt, packages, program, tally
from tools.images.program import run
from tools.images.recipe import ImageError
from tools.packages import Job
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.progress import Step

OWN_IMAGES = (
    "Or build the images elsewhere (docker build -f images/operator.Containerfile .), push them to a registry, "
    "and name them in the chart's values (images.operator, images.router, images.worker)."
)
KEPT = 2
"""Sets of dependencies per image; two, so that going back and forth between two branches builds nothing."""
DRIVERS: tuple[tuple[str, ...], ...] = (
    ("--storage-driver", "overlay"),
    ("--storage-driver", "overlay", "--storage-opt", "overlay.mount_program=/usr/bin/fuse-overlayfs"),
    ("--storage-driver", "vfs"),
)
"""From the fastest to the one that works everywhere but copies each layer."""


def cache_folder() -> Path:
    """The folder for what outlives a checkout."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "epd" / "images"


@dataclass(frozen=True)
class Store:
    """A place for images and their layers.

    Attributes:
        folder: where the store, its logs and what it remembers lie.
        driver: options that choose how layers are put on top of each other.
    """

    folder: Path
    driver: tuple[str, ...]

    @property
    def log(self) -> Path:
        """The output of all programs so far."""
        return self.folder / "build.log"

    def argv(self, *arguments: str) -> list[str]:
        """A buildah command on this store."""
        places = ("--root", str(self.folder / "store"), "--runroot", str(self.folder / "run"))
        return ["buildah", *places, *self.driver, *arguments]

    def has(self, image: str) -> bool:
        """True if the store holds an image of this name."""
        argv = self.argv("inspect", "--type", "image", "--format", "{{.FromImageID}}", image)
        return program.run(argv).returncode == 0

    def tidy(self) -> None:
        """Remove what interrupted builds have left; for the one who holds the lock.

        Raises:
            ImageError: buildah failed.
        """
        run(self.argv("rm", "--all"), self.log)

    def prune(self, name: str) -> None:
        """Remove an image's old layers: all but the two newest sets of dependencies, and what was built on them.

        Raises:
            ImageError: buildah failed.
        """
        argv = self.argv("images", "--noheading", "--format", "{{.Name}}:{{.Tag}}")
        listed = program.run(argv).stdout.split()
        below = [image for image in listed if image.startswith(f"localhost/epd-{name}-dependencies:")]
        tops = [image for image in listed if image.startswith(f"localhost/epd-{name}:")]
        if old := below[KEPT:]:
            run(self.argv("rmi", "--force", *tops, *old), self.log)

    def build(
        self,
        containerfile: Path,
        context: Path,
        image: str,
        *options: str,
        step: Step | None = None,
    ) -> None:
        """Build one stage into one layer.

        Args:
            containerfile: what to do.
            context: where its COPY lines take their files from.
            image: the name of the result in the store.
            options: further arguments of buildah.
            step: is told how far it is.

        Raises:
            ImageError: the build failed.
        """
        run(
            self.argv(
                # chroot: needs no user namespace and no runtime, and works inside virtual machines and containers.
                "bud", "--isolation", "chroot", "--network", "host", "--layers=false", "--file", str(containerfile),
                "--tag", image, *options, str(context),
            ),
            self.log, step, tally.Image(),
        )  # fmt: skip

    def push(self, image: str, target: str, *, tls: bool, fast: bool) -> str:
        """Push an image; layers that the registry holds do not move.

        Args:
            image: its name in the store.
            target: its name in the registry.
            tls: False for plain HTTP.
            fast: compress by zstd, a third of gzip's time at the same size (measured on the worker image); every
                containerd of the last years reads it, but not every registry's tools do.

        Returns:
            The digest of its manifest.

        Raises:
            ImageError: the push failed.
        """
        digest = self.folder / "digest"
        options = [f"--tls-verify={str(tls).lower()}", "--digestfile", str(digest)]
        if fast:
            options += ["--compression-format", "zstd", "--compression-level", "1"]
        run(self.argv("push", *options, image, f"docker://{target}"), self.log)
        return digest.read_text().strip()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other builds out: two of them would do the same work twice."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def provide(*, base: bool) -> None:
    """Install what this machine lacks to build images.

    Args:
        base: whether the base image is made here, too.

    Raises:
        ImageError: not root, or something cannot be installed; the message lists all of it and the ways out.
    """
    jobs = (Job.IMAGES, Job.BASE) if base else (Job.IMAGES,)
    lacking = packages.missing(*jobs)
    faults = [] if packages.root() else ["Building images needs root (buildah's chroot isolation, debootstrap)."]
    faults += [obstacle] if (obstacle := apt.obstacle(lacking)) is not None else []
    if faults:
        raise ImageError("\n".join([*faults, OWN_IMAGES]))
    try:
        apt.provide(lacking)
    except Unfit as error:
        raise ImageError(f"{error}\n{OWN_IMAGES}") from error


def open_store(folder: Path) -> Store:
    """Open the store with the first driver that works on this file system, and remember which.

    Raises:
        ImageError: none works.
    """
    remembered = folder / "driver"
    folder.mkdir(parents=True, exist_ok=True)
    if remembered.exists():
        return Store(folder, tuple(remembered.read_text().splitlines()))
    message = ""
    for driver in DRIVERS:
        store = Store(folder, driver)
        done = program.run(store.argv("images", "--quiet"))
        if done.returncode == 0:
            remembered.write_text("\n".join(driver))
            return store
        shutil.rmtree(folder / "store", ignore_errors=True)
        message = done.stderr.strip()
    raise ImageError(f"buildah cannot keep images below {folder}: {message}")
