"""The plugin beside the real engine, unaltered and altered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import sglang

if TYPE_CHECKING:
    from pathlib import Path

REGISTER = "import logging; logging.basicConfig(); import epd_sglang.cpu; epd_sglang.cpu.register()"
HOOKED = REGISTER + "; import sys; print(any(type(f).__name__ == '_Finder' and f.waiting for f in sys.meta_path))"


@pytest.fixture
def copied(engine_python: Path, tmp_path: Path) -> Path:
    """A folder with the whole engine in links, so that one file of it can be another."""
    (packages,) = engine_python.parents[1].glob("lib/python3*/site-packages")
    shutil.copytree(packages / "sglang", tmp_path / "sglang", copy_function=os.link)
    (information,) = packages.glob("sglang-*.dist-info")
    shutil.copytree(information, tmp_path / information.name)
    return tmp_path


def run(python: Path, *arguments: str, folders: tuple[Path, ...], plugins: str = "epd,epd-cpu") -> str:
    done = subprocess.run(
        [python, *arguments],
        env=sglang.environment(plugins, *folders),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout + done.stderr


def doctor(python: Path, *folders: Path) -> dict[str, list[dict[str, object]]]:
    document = json.loads(run(python, "-m", "epd_sglang.main", "doctor", "--json", folders=folders))
    plugins: dict[str, list[dict[str, object]]] = document["plugins"]
    return plugins


def test_every_hook_applies_to_the_pinned_engine(engine_python: Path, plugin_path: Path) -> None:
    result = doctor(engine_python, plugin_path)
    assert result["epd-cpu"]
    assert not [finding for findings in result.values() for finding in findings if finding["faults"]]
    assert run(engine_python, "-c", HOOKED, folders=(plugin_path,)).strip() == "True"


def test_one_altered_byte_keeps_every_hook_out_and_is_named(
    engine_python: Path, plugin_path: Path, copied: Path
) -> None:
    altered = copied / "sglang" / "srt" / "model_loader" / "loader.py"
    content = altered.read_bytes()
    altered.unlink()
    altered.write_bytes(content + b"\n")
    message = run(engine_python, "-c", HOOKED, folders=(copied, plugin_path))
    assert message.count("changes nothing") == 1
    assert f"{altered} is not the file of SGLang 0.5.23" in message
    assert message.startswith("False\n")
    (faulty,) = [
        finding["target"]
        for finding in doctor(engine_python, copied, plugin_path)["epd-cpu"]
        if finding["faults"] == ["srt/model_loader/loader.py is not the file of SGLang 0.5.23"]
    ]
    assert faulty == "sglang.srt.model_loader.loader:_get_quantization_config"


def test_another_version_keeps_every_hook_out(engine_python: Path, plugin_path: Path, copied: Path) -> None:
    (information,) = copied.glob("sglang-*.dist-info")
    metadata = information / "METADATA"
    metadata.write_text(metadata.read_text().replace("\nVersion: 0.5.23\n", "\nVersion: 0.5.24\n", 1))
    message = run(engine_python, "-c", HOOKED, folders=(copied, plugin_path))
    assert "SGLang is 0.5.24, and this plugin was written for 0.5.23" in message
    assert message.startswith("False\n")


def test_the_cpu_extra_acts_only_when_it_is_named(engine_python: Path, plugin_path: Path) -> None:
    for plugins in ("epd", "", "epd-cpus"):
        assert run(engine_python, "-c", HOOKED, folders=(plugin_path,), plugins=plugins).strip() == "False"


def test_without_an_engine_nothing_is_done(tmp_path: Path, plugin_path: Path) -> None:
    done = subprocess.run(
        [
            shutil.which("python3") or "python3",
            "-S",
            "-c",
            "import epd_sglang.engine as e; print(e.faults(frozenset()))",
        ],
        env={"PYTHONPATH": str(plugin_path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "['SGLang is not installed']"
