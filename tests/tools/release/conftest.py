"""One release of this checkout, made once for all tests of this folder, without images and without a push."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.cluster import access, machine
from tools.images.recipe import NAMES, Options, recipe
from tools.release import images, source
from tools.release import recipe as recipes

if TYPE_CHECKING:
    from tools.release.recipe import Release

ROOT = Path(__file__).resolve().parents[3]
REGISTRY = "registry.example.com/epd"


@dataclass(frozen=True)
class Made:
    """A release, and what it was made of.

    Attributes:
        release: The release.
        tree: A copy of the tracked files.
        helm: The program that packaged the chart.
        pushed: The file that says where the images are.
    """

    release: Release
    tree: Path
    helm: Path
    pushed: Path


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm as the cluster's tools build it; a machine that cannot is named, and is a failure in CI alone."""
    try:
        return access.tool("helm")
    except machine.Unfit as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    source.copy(ROOT, folder)
    return folder


@pytest.fixture(scope="session")
def pushed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a push of the images prints; no image is built, the digests are ours."""
    references = {
        name: recipe(tree, name, Options()).reference(REGISTRY) + f"@sha256:{index:064x}"
        for index, name in enumerate(NAMES)
    }
    path = tmp_path_factory.mktemp("pushed") / "images.json"
    path.write_text(json.dumps(references), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def made(helm: Path, tree: Path, pushed: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    references = images.read(pushed, tree, Options())
    folder = tmp_path_factory.mktemp("dist")
    return Made(recipes.make(ROOT, folder, helm, references), tree, helm, pushed)
