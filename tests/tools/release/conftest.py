"""One release of this checkout, made once for all tests of this folder, without images and without a push."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.release import Made
from tools.cluster import access
from tools.images.recipe import NAMES, Options, recipe
from tools.program import Unfit
from tools.release import images, source
from tools.release.changelog import section
from tools.release.recipe import Release
from tools.release.version import version

ROOT = Path(__file__).resolve().parents[3]
BUILDERS = ("EPD_BASE_IMAGE", "EPD_TORCH_INDEX")
"""Variables that change the tags of images."""
REGISTRY = "registry.example.com/epd"


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm as the cluster's tools build it; a machine that cannot is named, and is a failure in CI alone."""
    try:
        return access.tool("helm")
    except Unfit as reason:
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
    """Runs the recipe as `make release-check` does, into a folder of ours."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, "-m", "tools.release", "check", "--images", str(pushed), "--into", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name not in BUILDERS}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    number = version(tree)
    notes = section((tree / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    references = images.read(pushed, tree, Options())
    release = Release(folder, number, source.commit(ROOT), notes, references)
    return Made(release, tree, helm, done)
