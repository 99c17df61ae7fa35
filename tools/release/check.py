"""Reads a release back, as whoever downloads it would, and says what is wrong with it."""

from __future__ import annotations

import email.parser
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from packaging.requirements import Requirement

from epd_operator.api import crd
from tools import program
from tools.images.recipe import NAMES
from tools.release import checksum, images, lock, package, sbom
from tools.release.version import PLACES, outdated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.release.recipe import Release

PACKAGES: Final = frozenset({"epd_operator", "epd_workers", "epd_kernels"})
HEAVY: Final = frozenset({"torch", "triton", "kubernetes", "kopf", "aiohttp"})
"""What an installation without extras must not bring."""

Check = tuple[str, "Callable[[], list[str]]"]


def checks(release: Release, root: Path, helm: Path) -> Iterator[Check]:
    """Every check: what it makes sure of, and a function that names what is wrong."""
    yield f"the version is the same in {len(PLACES) + 1} files of the sources", lambda: stale(root)
    yield "the wheel has our packages alone, and needs no torch and no client", lambda: wheel(release)
    yield "the source distribution builds the very same wheel", lambda: sdist(release)
    yield "the chart renders, with the CRD of the code and the version's images", lambda: chart(release, helm)
    yield "every bill of materials is valid CycloneDX and lists what is locked", lambda: bills(release, root)
    yield f"every file is in {checksum.NAME}, with its sum", lambda: checksum.faults(release.folder)


def stale(root: Path) -> list[str]:
    """The files of the sources with another version."""
    return [f"{name}: has another version than pyproject.toml: run `make generate`" for name in outdated(root)]


def wheel(release: Release) -> list[str]:
    """What is wrong inside the wheel."""
    with zipfile.ZipFile(release.wheel) as archive:
        names = archive.namelist()
        information = f"epd-{release.version}.dist-info"
        metadata = email.parser.Parser().parsestr(archive.read(f"{information}/METADATA").decode())
    result = [
        f"{release.wheel.name}: {name}: belongs in no wheel"
        for name in names
        if name.split("/")[0] not in PACKAGES | {information} or "/tests/" in name or name.endswith(".pyc")
    ]
    if metadata["Version"] != release.version:
        result.append(f"{release.wheel.name}: Version: {metadata['Version']}: must be {release.version}")
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    base = {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
    return result + [f"{release.wheel.name}: needs {name} without any extra" for name in sorted(base & HEAVY)]


def sdist(release: Release) -> list[str]:
    """Whether the source distribution makes the wheel of the release."""
    with tempfile.TemporaryDirectory() as folder:
        built = package.wheel_from_sdist(release.sdist, Path(folder), release.commit.time)
        if built.name == release.wheel.name and built.read_bytes() == release.wheel.read_bytes():
            return []
    return [f"{release.sdist.name}: the wheel that is built from it differs from {release.wheel.name}"]


def chart(release: Release, helm: Path) -> list[str]:
    """What is wrong with the package of the chart."""
    with tarfile.open(release.chart) as archive:
        file = archive.extractfile("epd-operator/Chart.yaml")
        assert file is not None
        described = yaml.safe_load(file.read())
    result = [
        f"{release.chart.name}: {key}: {described[key]}: must be {release.version}"
        for key in ("version", "appVersion")
        if described[key] != release.version
    ]
    references = release.references or {name: f"epd-{name}:{release.version}" for name in NAMES}
    command = [str(helm), "template", "epd-operator", str(release.chart)]
    if release.references:
        command += ["--values", str(release.values)]
    done = program.run(command)
    if done.returncode:
        return [*result, f"{release.chart.name}: helm template: {done.stderr.strip()}"]
    objects = [one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one]  # half a megabyte: in C
    result += [
        f"{release.chart.name}: does not install {reference}"
        for reference in references.values()
        if reference not in _images(objects)
    ]
    if crd.crd()["spec"] not in [one["spec"] for one in objects if one["kind"] == "CustomResourceDefinition"]:
        result.append(f"{release.chart.name}: its CRD is not the code's: run `make generate`")
    return result


def _images(objects: list[dict[str, Any]]) -> set[str]:
    """The image of the operator, and those that it starts others with."""
    (container,) = (
        container
        for one in objects
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    )
    return {container["image"], *(entry.get("value", "") for entry in container["env"])}


def bills(release: Release, root: Path) -> list[str]:
    """What is wrong with the bills of materials."""
    locks = {release.wheel.name: "cli", release.sdist.name: "cli"}
    locks |= {release.image(name): images.LOCKS[name] for name in NAMES}
    result = []
    for artefact in (*locks, release.chart.name):
        path = release.bill(artefact)
        if not path.is_file():
            result.append(f"{path.name}: is missing")
            continue
        text = path.read_text(encoding="utf-8")
        result += [f"{path.name}: {fault}" for fault in sbom.faults(text)]
        if artefact in locks:
            there = sbom.listed(text)
            result += [
                f"{path.name}: {one.name} {one.version} is not listed with its hashes"
                for one in lock.read(root / "requirements" / f"{locks[artefact]}.txt")
                if there.get((one.name, one.version)) != frozenset(one.hashes)
            ]
    return result
