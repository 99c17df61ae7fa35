"""The gate can fail: on figures past a limit, on kernels that are bad on purpose, and by exit status."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch

from epd_kernels.architecture import Architecture
from epd_kernels.attention.tiles import TILES
from epd_kernels.gate import __main__ as command
from epd_kernels.gate import limits, measurement, rule
from epd_kernels.gate.figures import Figures
from epd_kernels.gate.target import TARGETS, active
from epd_kernels.row_gather.launch import launches_gather_rows
from epd_kernels.sizes import RELEASED
from epd_kernels.warmup import launches_of

if TYPE_CHECKING:
    from pathlib import Path

HOPPER = TARGETS["sm_90"]
LAUNCH = "row_gather/hidden bf16"
GOOD = Figures(
    kernel="gather_rows_kernel",
    registers=32,
    spills=0,
    stack=0,
    shared=1024,
    barriers=2,
    occupancy=8,
    matrix="none",
    access={"source": (16,), "rows": (8,), "output": (16,)},
)


def breaches(figures: Figures, limit: Figures = GOOD, *, target: str = "sm_90") -> list[str]:
    return limits.breaches({LAUNCH: {target: figures}}, {LAUNCH: {target: limit}})


def test_what_is_measured_is_within_limits_made_of_it() -> None:
    assert breaches(GOOD) == []
    assert breaches(replace(GOOD, registers=16, shared=0, barriers=0, occupancy=16)) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"registers": 33}, "33 registers, limit 32"),
        ({"stack": 8}, "8 stack bytes, limit 0"),
        ({"shared": 1025}, "1025 bytes of shared memory, limit 1024"),
        ({"barriers": 3}, "3 barriers, limit 2"),
        ({"occupancy": 7}, "7 programs on a multiprocessor, limit 8"),
        ({"matrix": "mma.sync"}, "matrix instruction mma.sync, limit none"),
        ({"access": {"source": (2, 16), "output": (16,)}}, "access to source 2 to 16 bytes a lane, limit 16"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_figure_past_its_limit_is_one_line(change: dict[str, Any], line: str) -> None:
    assert breaches(replace(GOOD, **change)) == [f"{LAUNCH} on sm_90: {line}"]


@pytest.mark.parametrize(
    ("change", "target", "line"),
    [
        ({"spills": 1}, "sm_90", "spills 1, limit 0"),
        ({"spills": 129}, "gfx942", "spills 129, limit 128"),
        ({"shared": 64 * 1024 + 1}, "gfx942", "shared memory 65537 bytes, limit 65536"),
        ({"occupancy": 0}, "sm_90", "occupancy 0, limit 1"),
        ({"access": {"source": (16,), "output": (2, 8)}}, "sm_90", "access to output 8 bytes a lane, limit 16"),
        ({"kernel": "attend_kernel"}, "sm_90", "no matrix instruction, limit any"),
        ({"kernel": "another"}, "sm_90", "streams unknown, limit an entry in gate/rule.py"),
    ],
)
def test_no_table_can_loosen_a_rule(change: dict[str, Any], target: str, line: str) -> None:
    bad = replace(GOOD, **change)
    assert f"{LAUNCH} on {target}: {line}" in breaches(bad, bad, target=target)


def test_rules_end_where_they_say() -> None:
    assert list(rule.breaches(LAUNCH, replace(GOOD, spills=128, shared=64 * 1024), TARGETS["gfx942"])) == []
    assert list(rule.breaches(LAUNCH, replace(GOOD, spills=1), TARGETS["gfx950"])) == ["spills 1, limit 0"]


def test_a_launch_without_limits_and_limits_without_a_launch() -> None:
    one, other = {LAUNCH: {"sm_90": GOOD}}, {LAUNCH: {"gfx950": GOOD}}
    missing = f"{LAUNCH} on sm_90: no limits, write them with --write"
    left = f"{LAUNCH} on gfx950: limits, but no such launch: remove them with --write"
    assert limits.breaches(one, other) == [missing, left]
    assert limits.breaches(one, other, everything=False) == [missing]


def test_a_row_of_odd_width_is_read_in_crumbs() -> None:
    """4095 values of two bytes: no row but every eighth begins at a multiple of 16."""
    rows = torch.zeros(1, dtype=torch.int64)
    actual = {}
    with active(HOPPER):
        for width in (4095, 4100, 4096):
            _, (launch,) = launches_gather_rows([torch.zeros(2, width, dtype=torch.bfloat16)], rows)
            actual[width] = measurement.read(launch, HOPPER)
    assert actual[4095].access["source"] == actual[4095].access["output"] == (2,)
    lines = limits.broken_rules({LAUNCH: {"sm_90": actual[4095]}})
    assert lines == [
        f"{LAUNCH} on sm_90: access to source 2 bytes a lane, limit 16",
        f"{LAUNCH} on sm_90: access to output 2 bytes a lane, limit 16",
    ]
    assert limits.broken_rules({LAUNCH: {"sm_90": actual[4100]}})
    assert limits.broken_rules({LAUNCH: {"sm_90": actual[4096]}}) == []


def test_a_tile_too_large_for_its_warps_spills() -> None:
    """Four warps for a tile that eight can hold."""
    tile = replace(TILES[Architecture.SM90], heads=64, keys=32, warps=4, stages=2)
    with active(HOPPER), patch.dict(TILES, {Architecture.SM90: tile}):
        name, launch = next(iter(launches_of("attention", RELEASED, torch.device("cpu"))))
        figures = measurement.read(launch, HOPPER)
    assert figures.spills > 0
    assert figures.stack > 0
    assert f"{name} on sm_90: spills {figures.spills}, limit 0" in limits.broken_rules({name: {"sm_90": figures}})


def test_each_target_gets_its_own_code() -> None:
    """Triton keeps compiled kernels by device number: two targets of one number would share the first one's."""
    assert len({target.device for target in TARGETS.values()}) == len(TARGETS)
    launches = {}
    for name, target in TARGETS.items():
        with active(target):
            _, (launch,) = launches_gather_rows([torch.zeros(2, 64)], torch.zeros(1, dtype=torch.int64))
            launches[name] = launch.compile()
    assert ".target sm_90a" in launches["sm_90"].asm["ptx"]
    assert ".target sm_100a" in launches["sm_100"].asm["ptx"]
    assert 'amdhsa--gfx942"' in launches["gfx942"].asm["amdgcn"]
    assert 'amdhsa--gfx950"' in launches["gfx950"].asm["amdgcn"]


def run(*arguments: str, figures: Figures = GOOD) -> int:
    with patch.object(command, "measure", lambda *_: {LAUNCH: {"sm_90": figures}}):
        return command.main(arguments)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The limits, for this test alone."""
    path = tmp_path / "limits.json"
    path.write_text(limits.dump({LAUNCH: {"sm_90": GOOD}}))
    return path


def test_the_command_succeeds_and_fails(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(limits, "PATH", table):
        assert run() == 0
        assert "all within their limits" in capsys.readouterr().out
        assert run(figures=replace(GOOD, registers=40)) == 1
        assert f"{LAUNCH} on sm_90: 40 registers, limit 32" in capsys.readouterr().out.splitlines()
        assert run("--json", figures=replace(GOOD, registers=40)) == 1
        captured = json.loads(capsys.readouterr().out)
    assert captured["breaches"] == [f"{LAUNCH} on sm_90: 40 registers, limit 32"]
    assert captured["figures"][LAUNCH]["sm_90"]["registers"] == 40


def test_limits_of_another_triton_are_not_used(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(json.dumps(json.loads(table.read_text()) | {"triton": "0.0.1"}))
    with patch.object(limits, "PATH", table):
        assert run() == 2
    assert "the limits are those of triton 0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (r".*", "{"),
        (r".*", "[]"),
        (r".*", "{}"),
        (r'"limits": .*', '"limits": {"launch": 1}}'),
        (r'"registers": 32,', ""),
        (r'"registers": 32', '"registers": "32"'),
        (r"\[16\]", "[]"),
    ],
)
def test_damaged_limits_are_told_before_anything_is_compiled(
    table: Path, capsys: pytest.CaptureFixture[str], whole: str, damaged: str
) -> None:
    table.write_text(re.sub(whole, damaged, table.read_text(), count=1, flags=re.DOTALL))
    refuses_limits(table, capsys)


def test_missing_limits_are_told_before_anything_is_compiled(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.unlink()
    refuses_limits(table, capsys)


def refuses_limits(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(limits, "PATH", table), patch.object(command, "measure") as compiling:
        assert command.main([]) == 2
    compiling.assert_not_called()
    captured = capsys.readouterr().err
    assert captured.startswith(f"{table} is not a table of limits")
    assert captured.endswith("restore it, or measure again with --write\n")


def test_a_page_that_cannot_be_written_is_told_before_anything_is_compiled(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table.read_text()
    with patch.object(limits, "PATH", table), patch.object(command, "measure") as compiling:
        assert command.main(["--write", "--page", str(tmp_path / "absent" / "page.md")]) == 2
    compiling.assert_not_called()
    assert "there is no directory" in capsys.readouterr().err
    assert table.read_text() == before


def test_writing_keeps_the_rules(table: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    arguments = ("--write", "--page", str(page))
    with patch.object(limits, "PATH", table):
        assert run(*arguments, figures=replace(GOOD, spills=4)) == 1
        assert limits.load() == {LAUNCH: {"sm_90": GOOD}}
        assert not page.exists()
        better = replace(GOOD, registers=24)
        assert run(*arguments, figures=better) == 0
        assert limits.load() == {LAUNCH: {"sm_90": better}}
    assert "| hidden bf16 | sm_90 | 24 | 0 |" in page.read_text()


def test_a_part_cannot_become_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--write", "--target", "sm_90") == 2
    assert "every target and operation" in capsys.readouterr().err
