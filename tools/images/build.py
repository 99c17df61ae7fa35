"""From a recipe to an image in the store and in a registry; each step is skipped where its result exists."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tools import progress
from tools.images import pip
from tools.images.base import base_image
from tools.images.store import Store, open_store, provide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.images.recipe import Options, Recipe
    from tools.images.registry import Registry


@dataclass(frozen=True)
class Builder:
    """Builds and pushes.

    Attributes:
        folder: where images are kept, and what was pushed is remembered.
        root: the project's folder.
        options: the user's choices.
        progress: who is told.
    """

    folder: Path
    root: Path
    options: Options

    @cached_property
    def store(self) -> Store:
        """The store, opened when first needed: asking a registry needs none."""
        provide(base=not self.options.base)
        return open_store(self.folder)

    def build(self, image: Recipe) -> None:
        """Make sure that the store holds an image.

        Raises:
            ImageError: a program is missing or failed.
        """
        if self.store.has(image.local):
            progress.say(f"{image.name:<8} is built already: {image.tag}")
            return
        if not self.store.has(image.local_dependencies):
            self._build_dependencies(image)
        with (
            progress.step(f"{image.name:<8} adding our code: {image.tag}") as step,
            tempfile.TemporaryDirectory(dir=self.folder, prefix="top-") as folder,
        ):
            top = Path(folder, "Containerfile")
            top.write_text(image.top)
            self.store.build(top, self.root, image.local, step=step)

    def _build_dependencies(self, image: Recipe) -> None:
        self.store.tidy()
        base = self.options.base or base_image(self.store, self.root)
        arguments = ["--target", "dependencies", "--build-arg", f"BASE={base}"]
        if self.options.torch_index and image.name == "worker":
            arguments += ["--build-arg", f"TORCH_INDEX={self.options.torch_index}"]
        with (
            progress.step(f"{image.name:<8} installing its locked dependencies") as step,
            tempfile.TemporaryDirectory(dir=self.folder, prefix="secrets-") as folder,
        ):
            options = [*arguments, *self._secrets(Path(folder))]
            self.store.build(
                image.containerfile,
                self.root,
                image.local_dependencies,
                *options,
                step=step,
            )
        self.store.prune(image.name)

    @staticmethod
    def _secrets(folder: Path) -> list[str]:
        configuration = folder / "pip.conf"
        configuration.write_text(pip.configuration(os.environ, pip.files(os.environ, Path.home())))
        secrets = ["--secret", f"id=pip.conf,src={configuration}"]
        if bundle := pip.certificates(os.environ):
            secrets += ["--secret", f"id=ca.pem,src={bundle}"]
        return secrets

    def push(self, image: Recipe, registry: Registry) -> str:
        """Make sure that a registry holds an image, building it only if it does not.

        Returns:
            The image's name there with tag and digest: what a pod names to get exactly this image.

        Raises:
            ImageError: a program is missing or failed, or the registry does not answer.
        """
        reference = image.reference(registry.repository)
        record = self.folder / "pushed" / reference.replace("/", "_").replace(":", "_")
        digest = registry.digest(image)
        if digest == "" and record.exists():  # a registry that wants credentials: what the last push was told
            digest = record.read_text()
        if digest:
            progress.say(f"{image.name:<8} is in the registry already: {reference}")
            return f"{reference}@{digest}"
        with self.store.locked():
            self.build(image)
            with progress.step(f"{image.name:<8} pushing {reference}"):
                digest = self.store.push(image.local, reference, tls=registry.tls, fast=registry.local)
        record.parent.mkdir(exist_ok=True)
        record.write_text(digest)
        return f"{reference}@{digest}"

    def build_all(self, images: Sequence[Recipe]) -> None:
        """Make sure that the store holds some images.

        Raises:
            ImageError: a program is missing or failed.
        """
        with self.store.locked():
            for image in images:
                self.build(image)
