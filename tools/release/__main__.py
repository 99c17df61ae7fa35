"""`python -m tools.release version|wheel|check`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.cluster import access
from tools.images.recipe import ImageError, Options
from tools.program import Unfit
from tools.release import check, images, package, recipe, source, version
from tools.release.error import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tools.release.recipe import Release

ROOT: Final = Path(__file__).resolve().parents[2]
DIST: Final = ROOT / "dist"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Understand the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description="Make and check what a release consists of; nothing is pushed."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    stamp = commands.add_parser("version", help="write the version of pyproject.toml wherever else it belongs")
    stamp.add_argument("--check", action="store_true", help="change nothing; say what is out of date")
    commands.add_parser("wheel", help="build the wheel alone, into dist/")
    full = commands.add_parser("check", help="make everything in dist/ and check it")
    full.add_argument(
        "--images", type=Path, metavar="FILE", help="what `python -m tools.images push --json` printed: the digests"
    )
    full.add_argument(
        "--into", type=Path, default=DIST, metavar="FOLDER", help="where to; what it holds is removed (default: dist/)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run a command; its exit status is 1 when something is not right, 2 for a wrong command line."""
    chosen = arguments(argv)
    try:
        if chosen.command == "version":
            return _version(only_check=chosen.check)
        if chosen.command == "wheel":
            return _wheel()
        return _check(chosen.images, chosen.into)
    except (ReleaseError, ImageError, Unfit) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _version(*, only_check: bool) -> int:
    if only_check:
        result = check.stale(ROOT)
        print("\n".join(result), end="\n" if result else "", file=sys.stderr)
        return 1 if result else 0
    for name in version.write(ROOT):
        print(f"wrote {name}")
    return 0


def _wheel() -> int:
    DIST.mkdir(exist_ok=True)
    for path in DIST.glob("*.whl"):
        path.unlink()  # `pip install dist/*.whl` must find one
    print(package.wheel(ROOT, DIST, source.commit(ROOT).time).relative_to(ROOT))
    return 0


def _check(file: Path | None, folder: Path) -> int:
    helm = access.tool("helm")
    references = _references(file) if file else {}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    release = recipe.make(ROOT, folder, helm, references)
    print(f"epd {release.version}, from commit {release.commit.id[:12]}, in {folder}:")
    for path in sorted(folder.iterdir()):
        print(f"  {path.stat().st_size:>9,}  {path.name}")
    faults = 0
    for name, test in check.checks(release, ROOT, helm):
        result = test()
        print(f"{'NOT RIGHT' if result else 'checked'}: {name}", *result, sep="\n  ")
        faults += len(result)
    for line in unchecked(release):
        print(f"not checked: {line}")
    for line in undone(release):
        print(f"before the push: {line}")
    return 1 if faults else 0


def _references(file: Path) -> Mapping[str, str]:
    options = Options(os.environ.get("EPD_BASE_IMAGE", ""), os.environ.get("EPD_TORCH_INDEX", ""))
    with tempfile.TemporaryDirectory() as folder:
        source.copy(ROOT, Path(folder))
        return images.read(file, Path(folder), options)


def unchecked(release: Release) -> Iterator[str]:
    """What this recipe cannot know, in words for whoever releases."""
    if not release.references:
        yield (
            "the images: none were given. `make images` builds and pushes them; then "
            "`python -m tools.images push --json >images.json` and `make release-check IMAGES=images.json`"
        )
    yield f"what the images have of Debian: their bills of materials list Python packages, not {images.BASE}"
    yield "licences of the packages that are listed: a lock file does not know them"


def undone(release: Release) -> Iterator[str]:
    """What must still be done before this may be published."""
    if not release.commit.clean:
        yield "commit: files differ from the commit, so nobody else can make these bytes"
    if release.notes.date is None:
        yield f"CHANGELOG.md calls {release.version} unreleased: write the date there"
    if f"v{release.version}" not in release.commit.tags:
        yield f"git tag --sign v{release.version}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
