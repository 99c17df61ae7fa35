"""The version: written in pyproject.toml by hand, and everywhere else by this module."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Final

from tools.release.error import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SOURCE: Final = "pyproject.toml"
_PYTHON: Final = r'(?m)^(__version__ = ")[^"]+'
_IMAGE: Final = r"(\bepd-(?:operator|router|worker):)[0-9][^\s\"]*"
_LABEL: Final = r"(?m)^( +app\.kubernetes\.io/version: \"?)[^\s\"]+"

PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "operator/epd_operator/__init__.py": (_PYTHON,),
    "workers/epd_workers/__init__.py": (_PYTHON,),
    "workers/epd_sglang/__init__.py": (_PYTHON,),
    "workers/epd_sglang/pyproject.toml": (r"(?m)^(version = \")[^\"]+", r"(?m)^(    \"epd==)[^\"]+"),
    "manifests/samples/sglang-cpu.yaml": (r"(epd-sglang:)\S+",),
    "charts/epd-operator/Chart.yaml": (r"(?m)^(version: )\S+", r"(?m)^(appVersion: )\S+"),
    "manifests/install/operator.yaml": (_LABEL, _IMAGE),
    "manifests/install/bindings.yaml": (_LABEL,),
    "manifests/install/kustomization.yaml": (_IMAGE,),
    "manifests/install/api/kustomization.yaml": (_LABEL,),
    "manifests/gitops/argocd/presync/job.yaml": (_IMAGE,),
}
"""Every other file with the version, and what stands before it there: a pattern whose first group is kept."""


def version(root: Path) -> str:
    """The version of the project at `root`.

    Raises:
        ReleaseError: It is not three numbers, the only form that both Python packages and charts take.
    """
    result: str = tomllib.loads((root / SOURCE).read_text(encoding="utf-8"))["project"]["version"]
    if re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", result) is None:
        raise ReleaseError(f"{SOURCE}: version = {result!r}: must be three numbers, such as 0.2.0, for wheel and chart")
    return result


def outdated(root: Path) -> dict[str, str]:
    """The files that do not have the version of pyproject.toml, with what should be in them.

    Raises:
        ReleaseError: A file does not have the version where it is expected.
    """
    wanted = version(root)
    result = {}
    for name, patterns in PLACES.items():
        text = before = (root / name).read_text(encoding="utf-8")
        for pattern in patterns:
            text, count = re.subn(pattern, rf"\g<1>{wanted}", text)
            if not count:
                raise ReleaseError(f"{name}: no version at {pattern!r}: correct PLACES in tools/release/version.py")
        if text != before:
            result[name] = text
    return result


def write(root: Path) -> list[str]:
    """Write the version into every file that has another one; the files' names."""
    changed = outdated(root)
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    return list(changed)
