"""Version, changelog, lock files and references to images: what is refused, and how it is said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tools.images.recipe import Options
from tools.release import changelog, images, lock, source, version
from tools.release.error import ReleaseError

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted(path for path in (ROOT / "requirements").glob("*.txt") if path.name != "bootstrap.txt")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files with the version, alone."""
    for name in (version.SOURCE, *version.PLACES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def bump(root: Path, text: str) -> None:
    project = root / version.SOURCE
    old = version.version(root)
    project.write_text(project.read_text(encoding="utf-8").replace(f'\nversion = "{old}"', f'\nversion = "{text}"'))


def test_the_version_is_the_same_everywhere() -> None:
    assert version.outdated(ROOT) == {}


def test_a_new_version_is_written_once_and_reaches_every_file(copy: Path) -> None:
    old = version.version(copy)
    bump(copy, "98.7.6")
    assert sorted(version.outdated(copy)) == sorted(version.PLACES)
    assert version.write(copy) == list(version.PLACES)
    assert version.outdated(copy) == {}
    for name in version.PLACES:
        text = (copy / name).read_text(encoding="utf-8")
        assert old not in text, name
        assert "98.7.6" in text, name


def test_no_other_file_of_the_product_has_the_version() -> None:
    """A place that nobody knows would keep the old one: add it to PLACES, or write it as something else."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(version.version(ROOT))}(?![\w.])")
    listed = source.git(ROOT, "ls-files", "operator", "workers", "kernels", "charts", "manifests", "images", "e2e")
    match = {
        name
        for name in listed.split("\n")
        if (ROOT / name).is_file()
        and not name.endswith((".safetensors", ".png", ".gz"))
        and pattern.search((ROOT / name).read_text(encoding="utf-8"))
    }
    assert match <= set(version.PLACES)


@pytest.mark.parametrize("wrong", ["0.2", "0.2.0rc1", "0.2.0-rc.1", "v0.2.0", "0.02.0"])
def test_a_version_that_wheel_or_chart_would_not_take_is_refused(copy: Path, wrong: str) -> None:
    bump(copy, wrong)
    with pytest.raises(ReleaseError, match=f"version = '{re.escape(wrong)}': must be three numbers"):
        version.version(copy)


def test_a_file_that_lost_its_version_is_noticed(copy: Path) -> None:
    (copy / "charts/epd-operator/Chart.yaml").write_text("name: x\n", encoding="utf-8")
    with pytest.raises(ReleaseError, match=r"Chart\.yaml: no version at"):
        version.outdated(copy)


def test_the_changelog_has_a_section_of_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "### Added" in changelog.section(text, version.version(ROOT)).text


CHANGES = "# Changelog\n\n## {heading}\n\n{text}\n\n## 0.1.0 (2026-01-01)\n\n- old\n"


@pytest.mark.parametrize(("state", "date"), [("unreleased", None), ("2026-12-01", "2026-12-01")])
def test_a_section_ends_where_the_next_one_begins(state: str, date: str | None) -> None:
    actual = changelog.section(CHANGES.format(heading=f"0.2.0 ({state})", text="- new"), "0.2.0")
    assert actual == changelog.Section(date, "- new\n")


@pytest.mark.parametrize(
    ("heading", "text", "reported"),
    [
        ("0.3.0 (unreleased)", "- new", "the newest section is '0.3.0 (unreleased)'"),
        ("0.2.0", "- new", "must be '0.2.0 (unreleased)' or '0.2.0 (DATE)'"),
        ("0.2.0 (soon)", "- new", "the newest section is '0.2.0 (soon)'"),
        ("0.2.0 (unreleased)", "", "the section of 0.2.0 is empty"),
    ],
)
def test_a_changelog_without_the_version_is_refused(heading: str, text: str, reported: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(reported)):
        changelog.section(CHANGES.format(heading=heading, text=text), "0.2.0")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_lock_file_is_read_whole(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    actual = lock.read(path)
    assert len(actual) == len(re.findall(r"(?m)^[a-z0-9]\S*==", text)) > 0
    assert sum(len(one.hashes) for one in actual) == text.count("--hash=sha256:")


def test_a_lock_file_without_hashes_or_versions_is_refused_with_every_line(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    digest = f"--hash=sha256:{'0' * 64}"
    path.write_text(f"# note\ngood==1 ; sys_platform == 'linux' {digest}\nbare==1\nloose>=1 {digest}\n???\n")
    with pytest.raises(ReleaseError) as caught:
        lock.read(path)
    reported = str(caught.value).splitlines()
    assert [line.split(":")[1].strip() for line in reported[:2]] == ["bare==1", "loose>=1 --hash=sha256"]
    assert "x.txt: ???" in reported[2]


def test_references_are_read(pushed: Path, tree: Path) -> None:
    actual = images.read(pushed, tree, Options())
    assert list(actual) == ["operator", "router", "worker"]
    assert images.digest(actual["router"]) == f"{1:064x}"


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"router": None}, "exactly the images operator, router, worker"),
        ({"other": "x"}, "exactly the images operator, router, worker"),
        ({"router": "registry.example.com/epd-router:1"}, "must be REGISTRY/NAME:TAG@sha256:DIGEST"),
        ({"router": f"registry.example.com/epd-router:old@sha256:{'0' * 64}"}, "was built from other sources"),
    ],
)
def test_references_of_other_images_are_refused(
    pushed: Path, tree: Path, tmp_path: Path, change: dict[str, str | None], reported: str
) -> None:
    actual = json.loads(pushed.read_text(encoding="utf-8")) | change
    path = tmp_path / "images.json"
    path.write_text(json.dumps({name: value for name, value in actual.items() if value}), encoding="utf-8")
    with pytest.raises(ReleaseError, match=re.escape(reported)):
        images.read(path, tree, Options())


@pytest.mark.parametrize("text", ["", "[]", "not json"])
def test_a_file_without_references_is_refused(tree: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "images.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ReleaseError, match="must be"):
        images.read(path, tree, Options())


def test_a_folder_outside_of_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="a release is made from a clone of the repository"):
        source.commit(tmp_path)
