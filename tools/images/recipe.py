"""What goes into each image, read from its Containerfile, and the names that follow from that."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools import packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("operator", "router", "worker")
DEFAULT_REPOSITORY = "10.244.0.1:5000"
TAG_LENGTH = 12
SECOND_STAGE = "FROM dependencies\n"
_SKIPPED = ("__pycache__", ".pyc")


class ImageError(Exception):
    """An image could not be described, built or pushed; the message says what to do."""


@dataclass(frozen=True)
class Options:
    """What a user may choose about the images.

    Attributes:
        base: image to build from, with Python 3.11 or newer and a shell; "" = make one with debootstrap.
        torch_index: address of an index that serves CPU wheels of torch; "" = the locked wheel without its CUDA half.
    """

    base: str = ""
    torch_index: str = ""


@dataclass(frozen=True)
class Recipe:
    """One image: its Containerfile and the project's files that it copies.

    Attributes:
        name: one of `NAMES`.
        root: the project's folder, the build context.
        dependencies: key of the layers below our own code: the base, the locked requirements and their stage.
        tag: hash of everything that goes into the image.
    """

    name: str
    root: Path = field(repr=False)
    dependencies: str
    tag: str

    @property
    def containerfile(self) -> Path:
        """The file this image is built from."""
        return containerfile(self.root, self.name)

    @property
    def local(self) -> str:
        """The image's name in the builder's own store."""
        return f"localhost/epd-{self.name}:{self.tag}"

    @property
    def local_dependencies(self) -> str:
        """The name of the layers below our own code in the builder's own store."""
        return f"localhost/epd-{self.name}-dependencies:{self.dependencies}"

    @property
    def top(self) -> str:
        """A Containerfile that adds the layer of our own code to the layers below it, already built."""
        above = stages(self.containerfile.read_text())[1]
        return above.replace(SECOND_STAGE, f"FROM {self.local_dependencies}\n", 1)

    def reference(self, repository: str) -> str:
        """The image's name in a registry."""
        return f"{repository}/epd-{self.name}:{self.tag}"


def containerfile(root: Path, name: str) -> Path:
    """The path of an image's Containerfile."""
    return root / "images" / f"{name}.Containerfile"


def stages(text: str) -> tuple[str, str]:
    """Split a Containerfile of two stages: the one with the dependencies (and what precedes it), the one with our code.

    Raises:
        ImageError: the file has other stages.
    """
    parts = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)
    if len(parts) != 3 or not parts[2].startswith(SECOND_STAGE):
        raise ImageError(
            f"a Containerfile of ours has two stages, the second {SECOND_STAGE.strip()!r}; this one has not"
        )
    return parts[0] + parts[1], parts[2]


def copied(stage: str) -> tuple[str, ...]:
    """The paths that the COPY lines of a stage take from the build context, in order."""
    lines = re.findall(r"^COPY\s+(.+)$", stage.replace("\\\n", " "), flags=re.MULTILINE)
    return tuple(path for line in lines for path in shlex.split(line)[:-1])


def recipe(root: Path, name: str, options: Options) -> Recipe:
    """Describe an image of the project at `root`.

    Raises:
        ImageError: no such image, or a file that it copies is missing.
    """
    if name not in NAMES:
        raise ImageError(f"image {name!r}: must be one of {', '.join(NAMES)}")
    below, above = stages(containerfile(root, name).read_text())
    torch_index = options.torch_index if "TORCH_INDEX" in below else ""
    dependencies = _digest((_base(root, options), torch_index, below), root, copied(below))
    return Recipe(name, root, dependencies, _digest((dependencies, above), root, copied(above)))


def base_key(root: Path) -> str:
    """Key of the base image that debootstrap makes."""
    maker = (root / "tools" / "images" / "base.py").read_text()
    libraries = packages.packages(packages.LIBRARIES)
    return _digest((maker, *libraries), root, ("images/base.Containerfile",))


def _base(root: Path, options: Options) -> str:
    return options.base or base_key(root)


def _digest(texts: tuple[str, ...], root: Path, paths: tuple[str, ...]) -> str:
    state = hashlib.sha256(json.dumps(texts).encode())
    for path in paths:
        for file, content in _contents(root, path):
            state.update(json.dumps([file, hashlib.sha256(content).hexdigest()]).encode())
    return state.hexdigest()[:TAG_LENGTH]


def _contents(root: Path, path: str) -> Iterator[tuple[str, bytes]]:
    source = root / path
    if not source.exists():
        raise ImageError(f"{path}: a Containerfile copies it, but it is not there")
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    for file in files:
        if file.is_file() and not any(part.endswith(_SKIPPED) for part in file.relative_to(root).parts):
            content = file.read_bytes()
            # Of pyproject.toml an image holds the version and the commands; lint rules must not make new images.
            yield str(file.relative_to(root)), _project(content) if path == "pyproject.toml" else content


def _project(pyproject: bytes) -> bytes:
    project = tomllib.loads(pyproject.decode())["project"]
    return json.dumps([project[key] for key in ("name", "version", "scripts")], sort_keys=True).encode()
