"""Every kernel, compiled for every GPU, is within its limits."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import epd_kernels
from epd_kernels.gate import limits, measurement, rule, table
from epd_kernels.gate.target import TARGETS
from epd_kernels.warmup import OPERATIONS

if TYPE_CHECKING:
    from epd_kernels.gate.measurement import Measured

PACKAGE = Path(epd_kernels.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "kernels-report.md"


@cache
def measured() -> Measured:
    """All of it, once."""
    return measurement.measure()


def test_every_kernel_is_within_its_limits() -> None:
    assert limits.breaches(measured(), limits.load()) == []


def test_the_limits_keep_the_rules() -> None:
    assert limits.broken_rules(limits.load()) == []


def test_every_kernel_is_measured_for_every_target() -> None:
    launchers = [path.parent.name for path in PACKAGE.glob("*/launch.py")]
    warmed = {name for name in launchers if hasattr(importlib.import_module(f"epd_kernels.{name}.launch"), "warm")}
    assert warmed == set(OPERATIONS) == {launch.partition("/")[0] for launch in measured()}
    assert all(list(targets) == list(TARGETS) for targets in measured().values())


def test_every_rule_is_about_a_kernel_that_there_is() -> None:
    kernels = {figures.kernel for targets in measured().values() for figures in targets.values()}
    assert {kernel for kernel, _, _ in rule.STREAMS} == kernels
    assert set(rule.MATRIX) <= kernels


def test_every_stream_is_a_parameter() -> None:
    for launch, targets in measured().items():
        for figures in targets.values():
            assert set(rule.streams(launch, figures.kernel) or ()) <= set(figures.access), launch


def test_the_page_for_readers_is_current() -> None:
    message = table.markdown(measured())
    assert PAGE.read_text() == message, "write it again with python -m epd_kernels.gate --write"


def test_each_generation_gets_its_own_matrix_instruction() -> None:
    of_attention = [targets for targets in measured().values() if targets["sm_90"].kernel == "attend_kernel"]
    assert of_attention
    for targets in of_attention:
        actual = {name: figures.matrix for name, figures in targets.items()}
        assert actual == {"sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma", "gfx950": "mfma"}
