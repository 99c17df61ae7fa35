"""`epd completion`: the scripts for shells, and what bash makes of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from epd_operator.cli.main import SHELLS, main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cli import Epd

Offers = Callable[..., set[str]]

COMMANDS = ("validate", "explain", "render", "status", "run", "crd", "completion", "version")

# Asks the completion function of `epd` as bash does when somebody presses Tab behind the last word.
ASK = """\
set -e
source "$1"; shift
function=$(complete -p epd | sed -E 's/.*-F ([^ ]+).*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function" epd "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Offers:
    """What bash offers behind some words."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "epd.bash"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    (tmp_path / "deploy.yaml").touch()

    def ask(*words: str) -> set[str]:
        done = subprocess.run(
            ["bash", "-c", ASK, "bash", script, *words], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert not done.stderr
        return set(done.stdout.split())

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_every_command_and_option(shell: str, epd: Epd) -> None:
    answer = epd("completion", shell)
    assert (answer.status, answer.err) == (0, "")
    for word in (*COMMANDS, "platform", "cuda-sm100", "all-namespaces", "turns-per-second"):
        assert word in answer.out, word


def test_bash_offers_commands_options_values_and_files(offers: Offers) -> None:
    assert offers("epd", "v") == {"validate", "version"}
    assert {"--platform", "--strict", "--output"} <= offers("epd", "validate", "--")
    assert offers("epd", "validate", "--platform", "cuda") == {"cuda-sm90", "cuda-sm100"}
    assert offers("epd", "completion", "f") == {"fish"}
    assert offers("epd", "validate", "dep") == {"deploy.yaml"}
    assert offers("epd", "status", "--kubeconfig", "dep") == {"deploy.yaml"}


def test_an_unknown_shell_is_refused_and_the_known_ones_are_named(epd: Epd) -> None:
    answer = epd("completion", "csh")
    assert answer.status == 2
    assert all(shell in answer.err for shell in SHELLS)
