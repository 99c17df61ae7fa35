from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epd_workers.registrar.key import KeyFileError
from epd_workers.registrar.launch import FlagError, arguments
from epd_workers.registrar.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def control(tmp_path: Path) -> Path:
    path = tmp_path / "control"
    path.write_text("c0ntrol")
    return path


def test_the_control_key_is_added(control: Path) -> None:
    assert arguments(["--port", "1"], control, None) == [
        "launch",
        "--port",
        "1",
        "--control-plane-api-keys",
        "registrar:registrar:admin:c0ntrol",
    ]


def test_the_client_key_is_demanded_of_clients(control: Path, tmp_path: Path) -> None:
    (tmp_path / "client").write_text("cl:ient\n")
    assert arguments([], control, tmp_path / "client")[1:3] == ["--tenant-api-key", "clients:cl:ient"]


@pytest.mark.parametrize("flag", ["--api-key", "--api-key=x", "--tenant-api-key", "--control-plane-api-keys"])
def test_keys_in_the_open_are_refused(control: Path, flag: str) -> None:
    with pytest.raises(FlagError, match=r"use --(api|control)-key-file"):
        arguments([flag, "x"], control, None)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="none"):
        arguments([], tmp_path / "none", None)


def test_the_command_says_everything_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--namespace, --selector, --control-key-file" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--engine-port", "0"], ["--listen", "nowhere"], ["--resync", "-1"]])
def test_bad_values_say_what_would_be_right(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(flags)
    assert "give" in capsys.readouterr().err
