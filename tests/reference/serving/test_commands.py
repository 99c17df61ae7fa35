"""The commands beside the server."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.reference.main import main
from epd_workers.reference.serving.options import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_training_and_evaluation_get_their_words(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> int:
        seen.append(words)
        return 7

    module = ModuleType(command)
    module.main = run  # type: ignore[attr-defined] # a module made here
    monkeypatch.setitem(sys.modules, f"epd_workers.reference.training.{command}", module)
    assert main([command, "--seed", "3"]) == 7
    assert seen == [["--seed", "3"]]


@pytest.mark.parametrize(("word", "hint"), [("trian", "did you mean train?"), ("xyz", "must be one of serve, train")])
def test_an_unknown_command_is_one_message(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"epd-reference: unknown command {word!r}: ")
    assert hint in first
    assert second == "epd-reference: see epd-reference --help"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["serve", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert all(f"  {name} " in text and about in text for name, about in COMMANDS.items())


def inspected(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["inspect", "--json", *words]) == 0
    captured: dict[str, Any] = json.loads(capsys.readouterr().out)
    return captured


def test_the_released_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    actual = inspected(capsys, "--released")
    assert actual["bytes_per_token"] == 890
    table = {(line["scope"], line["item"]): line["bytes"] for line in actual["table"]}
    assert table["request", "windows"] == 2_703_360
    assert table["request", "pending pairs"] == 12_288
    assert table["page", "global entries"] == 64 * 890
    assert table["pool", "global entries"] == 65536 * 890
    halved = inspected(capsys, "--released", "--page-size", "128", "--max-total-tokens", "32768")["table"]
    assert {(line["scope"], line["item"]): line["bytes"] for line in halved}["pool", "global entries"] == 32768 * 890


def test_a_checkpoint_s_table_in_text(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--model-path", str(checkpoint), "--kv-cache-dtype", "bf16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bf16 caches, pages of 64 tokens, windows of 8"
    # bf16: two bytes a value; main 32 and index 32 values, at ratios 2 and 1.
    assert next(line for line in lines if "all global entries" in line).split()[-1] == "192"
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (["--released", "--page-size", "3"], ["page_size is 3: must be a positive multiple"]),
        (["--released", "--page-size", "0", "--max-total-tokens", "-1"], ["at least 0", "page_size is 0"]),
        (["--model-path", "/nowhere"], ["/nowhere/config.json cannot be read"]),
    ],
)
def test_what_cannot_be_inspected(words: list[str], faults: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(faults)
    assert all(fault in line for fault, line in zip(faults, lines, strict=True))


def test_a_config_that_is_not_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, words in (("[]", "it is not a JSON object"), ("{", "is not JSON"), ("{}", "model_type is None")):
        (tmp_path / "config.json").write_text(text)
        assert main(["inspect", "--model-path", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
