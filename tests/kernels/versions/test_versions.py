"""Other versions of Triton give the same bits, and compile the kernels, too."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.kernels.versions.installation import VERSIONS, run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@cache
def digests(version: str | None) -> dict[str, Any]:
    done = run("tests.kernels.versions.digest", version=version, interpret=True)
    assert done.returncode == 0, done.stderr
    actual: dict[str, Any] = json.loads(done.stdout)
    return actual


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_the_same_bits(version: str) -> None:
    ours, theirs = digests(None), digests(version)
    assert theirs["triton"] == version
    assert ours["triton"] != version
    assert theirs["digests"] == ours["digests"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_compile_and_the_limits_of_another_version_are_refused(version: str) -> None:
    done = run("epd_kernels.gate", "--target", "sm_90", version=version, interpret=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"triton {version} is installed" in done.stderr
    for operation in ("tail_layout", "attention", "index_scores"):
        assert f"{operation}/" in done.stdout
