"""The recipe as `make release-check` runs it, and whether its checks would notice."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epd_operator import __version__
from tools.release import __main__ as command
from tools.release import check, checksum, lock, recipe, sbom, source
from tools.release.changelog import Section
from tools.release.images import LOCKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.release import Made
    from tools.release.recipe import Release

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def spoilt(made: Made, tmp_path: Path) -> Release:
    """A copy of the release that a test may damage."""
    shutil.copytree(made.release.folder, tmp_path / "dist")
    return replace(made.release, folder=tmp_path / "dist")


def test_the_release_of_this_checkout_is_right(made: Made) -> None:
    assert made.done.returncode == 0, made.done.stdout + made.done.stderr
    lines = made.done.stdout.splitlines()
    assert [line for line in lines if line.startswith("checked: ")] == [
        f"checked: {name}" for name, _ in check.checks(made.release, made.tree, made.helm)
    ]
    assert not [line for line in lines if line.startswith("NOT RIGHT")]
    for line in (*command.unchecked(made.release), *command.undone(made.release)):
        assert any(line in printed for printed in lines), line


def test_it_has_these_files_and_no_others(made: Made) -> None:
    files = {
        f"epd-{__version__}-py3-none-any.whl",
        f"epd-{__version__}.tar.gz",
        f"epd-operator-{__version__}.tgz",
    }
    bills = {f"{name}.cdx.json" for name in files}
    bills |= {f"epd-{name}-image-{__version__}.cdx.json" for name in ("operator", "router", "worker")}
    others = {f"CHANGELOG-{__version__}.md", f"epd-operator-{__version__}-images.yaml", "SHA256SUMS"}
    assert {path.name for path in made.release.folder.iterdir()} == files | bills | others


def test_made_again_elsewhere_it_has_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = recipe.make(ROOT, tmp_path, made.helm, made.release.references)
    before, after = (
        {path.name: checksum.sha256(path) for path in one.folder.iterdir()} for one in (made.release, again)
    )
    assert after == before


def test_sha256sum_agrees(made: Made) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made.release.folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": OK\n") == len(list(made.release.folder.iterdir())) - 1


def test_nothing_in_the_wheel_is_younger_than_the_commit(made: Made) -> None:
    with zipfile.ZipFile(made.release.wheel) as archive:
        ages = {entry.date_time for entry in archive.infolist()}
    made_at = time.gmtime(made.release.commit.time)[:6]
    assert ages == {(*made_at[:5], made_at[5] // 2 * 2)}  # a zip counts every second second


def test_the_source_distribution_has_what_git_has(made: Made) -> None:
    with tarfile.open(made.release.sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    tracked = {name for name in source.git(ROOT, "ls-files").split("\n") if name and (ROOT / name).is_file()}
    assert names - {"PKG-INFO"} == tracked


@pytest.mark.parametrize("image", LOCKS)
def test_the_lock_file_of_an_image_is_the_one_that_it_is_built_from(image: str) -> None:
    containerfile = (ROOT / "images" / f"{image}.Containerfile").read_text(encoding="utf-8")
    assert f"COPY requirements/{LOCKS[image]}.txt " in containerfile
    assert "tools/cluster/go" not in containerfile  # nor any program in Go, which would want a bill of its own


def test_a_bill_of_materials_names_its_artefact_and_what_it_leaves_out(made: Made) -> None:
    release = made.release
    bill = json.loads(release.bill(release.wheel.name).read_text(encoding="utf-8"))
    subject = bill["metadata"]["component"]
    assert (subject["name"], subject["version"]) == (release.wheel.name, __version__)
    assert subject["hashes"] == [{"alg": "SHA-256", "content": checksum.sha256(release.wheel)}]
    assert subject["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    names = {part["name"] for part in bill["components"]}
    assert "pydantic" in names
    assert not names & check.HEAVY
    worker = json.loads(release.bill(release.image("worker")).read_text(encoding="utf-8"))
    assert worker["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": f"{2:064x}"}]
    assert worker["metadata"]["properties"] == [
        {"name": sbom.NOT_LISTED, "value": "the packages of Debian in the base image"}
    ]
    (torch,) = (part for part in worker["components"] if part["name"] == "torch")
    (locked,) = (one for one in lock.read(ROOT / "requirements" / "workers.txt") if one.name == "torch")
    assert {one["content"] for one in torch["hashes"]} == set(locked.hashes)


def test_the_chart_s_bill_of_materials_is_its_images(made: Made) -> None:
    bill = json.loads(made.release.bill(made.release.chart.name).read_text(encoding="utf-8"))
    actual = {part["name"]: part["hashes"][0]["content"] for part in bill["components"]}
    assert actual == {"epd-operator": f"{0:064x}", "epd-router": f"{1:064x}", "epd-worker": f"{2:064x}"}


def _bill(release: Release) -> Path:
    return release.bill(release.image("operator"))


def _change_bill(release: Release, change: Callable[[dict[str, Any]], object]) -> None:
    bill = json.loads(_bill(release).read_text(encoding="utf-8"))
    change(bill)
    _bill(release).write_text(json.dumps(bill), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (lambda release: _bill(release).unlink(), "is missing"),
        (lambda release: _change_bill(release, lambda bill: bill["components"].pop()), "is not listed with its hashes"),
        (
            lambda release: _change_bill(release, lambda bill: bill["components"][0]["hashes"].pop()),
            "is not listed with its hashes",
        ),
        (lambda release: _change_bill(release, lambda bill: bill.update(bomFormat="other")), "other"),
    ],
    ids=["missing", "package", "hash", "schema"],
)
def test_a_damaged_bill_of_materials_is_noticed(
    made: Made, spoilt: Release, damage: Callable[[Release], None], reported: str
) -> None:
    damage(spoilt)
    assert any(reported in fault for fault in check.bills(spoilt, made.tree))


def test_wrong_sums_are_noticed(spoilt: Release) -> None:
    spoilt.changes.write_text("other\n", encoding="utf-8")
    spoilt.values.unlink()
    (spoilt.folder / "more").touch()
    assert checksum.faults(spoilt.folder) == [
        f"SHA256SUMS: {spoilt.values.name} is listed and is not there",
        "SHA256SUMS: more is not listed",
        f"{spoilt.changes.name}: its SHA-256 is not the one in SHA256SUMS",
    ]


def test_a_wheel_with_tests_with_torch_or_of_another_version_is_noticed(spoilt: Release) -> None:
    with zipfile.ZipFile(spoilt.wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    metadata = f"epd-{__version__}.dist-info/METADATA"
    content[metadata] = (
        content[metadata]
        .replace(f"\nVersion: {__version__}".encode(), b"\nVersion: 9.9.9")
        .replace(b"\nRequires-Dist: pyyaml", b"\nRequires-Dist: torch==2.13.0\nRequires-Dist: pyyaml")
    )
    with zipfile.ZipFile(spoilt.wheel, "w") as archive:
        for name, data in (content | {"tests/test_x.py": b""}).items():
            archive.writestr(name, data)
    assert check.wheel(spoilt) == [
        f"{spoilt.wheel.name}: tests/test_x.py: belongs in no wheel",
        f"{spoilt.wheel.name}: Version: 9.9.9: must be {__version__}",
        f"{spoilt.wheel.name}: needs torch without any extra",
    ]


def test_a_source_distribution_that_builds_another_wheel_is_noticed(spoilt: Release) -> None:
    with zipfile.ZipFile(spoilt.wheel, "a") as archive:
        archive.writestr("epd_operator/more.py", "")
    assert check.sdist(spoilt) == [
        f"{spoilt.sdist.name}: the wheel that is built from it differs from {spoilt.wheel.name}"
    ]


def test_a_chart_that_installs_other_images_is_noticed(made: Made, spoilt: Release) -> None:
    values = yaml.safe_load(spoilt.values.read_text(encoding="utf-8"))
    values["images"]["router"] = "registry.example.com/other:1"
    spoilt.values.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert check.chart(spoilt, made.helm) == [
        f"{spoilt.chart.name}: does not install {made.release.references['router']}"
    ]


def test_what_could_not_be_checked_and_what_is_left_to_do_are_said(made: Made) -> None:
    without = replace(
        made.release,
        references={},
        notes=Section(None, "x"),
        commit=replace(made.release.commit, clean=False, tags=()),
    )
    assert any("the images: none were given" in line for line in command.unchecked(without))
    assert len(list(command.undone(without))) == 3
    final = replace(
        made.release,
        notes=Section("2026-12-01", "x"),
        commit=replace(made.release.commit, clean=True, tags=(f"v{__version__}",)),
    )
    assert not list(command.undone(final))
    assert not any("the images: none were given" in line for line in command.unchecked(final))
