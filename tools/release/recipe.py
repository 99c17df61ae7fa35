"""Everything that a release consists of, made in one folder."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tools.images.recipe import NAMES
from tools.release import changelog, checksum, images, lock, package, sbom, source
from tools.release.version import version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cyclonedx.model.component import Component


@dataclass(frozen=True)
class Release:
    """A release in a folder.

    Attributes:
        folder: Where its files are.
        version: Its version.
        commit: What it was made from.
        notes: Its section of the changelog.
        references: The images by name, each with its digest; empty where none were given.
    """

    folder: Path
    version: str
    commit: source.Commit
    notes: changelog.Section
    references: Mapping[str, str] = field(default_factory=dict)

    @property
    def wheel(self) -> Path:
        """The Python packages."""
        return self.folder / f"epd-{self.version}-py3-none-any.whl"

    @property
    def sdist(self) -> Path:
        """The sources."""
        return self.folder / f"epd-{self.version}.tar.gz"

    @property
    def chart(self) -> Path:
        """The chart's package."""
        return self.folder / f"epd-operator-{self.version}.tgz"

    @property
    def values(self) -> Path:
        """The chart's values with the images by digest; there only when these are known."""
        return self.folder / f"epd-operator-{self.version}-images.yaml"

    @property
    def changes(self) -> Path:
        """The section of the changelog."""
        return self.folder / f"CHANGELOG-{self.version}.md"

    def image(self, name: str) -> str:
        """What an image is called in the names of files."""
        return f"epd-{name}-image-{self.version}"

    def bill(self, artefact: str) -> Path:
        """The bill of materials of a file or an image."""
        return self.folder / f"{artefact}{sbom.SUFFIX}"


def make(root: Path, folder: Path, helm: Path, references: Mapping[str, str]) -> Release:
    """Make a release of the tracked files at `root` in an empty folder.

    Args:
        root: A working tree of the project.
        folder: Where to; nothing may be in it.
        helm: The program.
        references: Image references by name, with digests; empty where they are not known.

    Raises:
        ReleaseError: A step failed, or the changelog has no section for the version.
    """
    commit = source.commit(root)
    with tempfile.TemporaryDirectory(prefix="epd-release-") as name:
        tree = Path(name)
        source.copy(root, tree)
        notes = changelog.section((tree / "CHANGELOG.md").read_text(encoding="utf-8"), version(tree))
        release = Release(folder, version(tree), commit, notes, references)
        package.wheel(tree, folder, commit.time)
        package.sdist(tree, folder, commit.time)
        package.chart(tree, folder, commit.time, helm)
        release.changes.write_text(notes.text, encoding="utf-8")
        if references:
            release.values.write_text(images.values(references), encoding="utf-8")
        _write_bills(release, tree / "requirements")
    checksum.write(folder)
    return release


def _write_bills(release: Release, locks: Path) -> None:
    """A bill of materials for each file that is installed and for each image.

    None for the programs in Go below tools/cluster: no artefact has them, they are for tests on this machine.
    """
    base = [sbom.package(one) for one in lock.read(locks / "cli.txt")]
    for path in (release.wheel, release.sdist):
        _write(release, path.name, _file(path, release), base)
    _write(release, release.chart.name, _file(release.chart, release), _images(release))
    for subject, name in zip(_images(release), NAMES, strict=True):
        parts = [sbom.package(one) for one in lock.read(locks / f"{images.LOCKS[name]}.txt")]
        _write(release, release.image(name), subject, parts, images.BASE)


def _write(release: Release, name: str, subject: Component, parts: Iterable[Component], not_listed: str = "") -> None:
    text = sbom.text(subject, parts, time=release.commit.time, not_listed=not_listed)
    release.bill(name).write_text(text, encoding="utf-8")


def _file(path: Path, release: Release) -> Component:
    return sbom.file(path.name, release.version, checksum.sha256(path))


def _images(release: Release) -> list[Component]:
    digests = {name: images.digest(reference) for name, reference in release.references.items()}
    return [sbom.image(f"epd-{name}", release.version, digests.get(name)) for name in NAMES]
