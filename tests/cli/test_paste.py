"""Command lines as people paste them."""

from __future__ import annotations

import pytest

from epd_operator.cli import paste
from epd_operator.cli.paste import Paste, PasteError

FLAGS = ("--tp", "4")


@pytest.mark.parametrize(
    ("words", "argv", "env"),
    [
        (["--tp", "4"], FLAGS, {}),
        ([], (), {}),
        (["python3", "-m", "sglang.launch_server", "--tp", "4"], FLAGS, {}),
        (["sglang", "serve", "--tp", "4"], FLAGS, {}),
        (["/opt/venv/bin/sglang", "serve", "--tp", "4"], FLAGS, {}),
        (["X=1", "Y=a=b", "python3", "-m", "sglang.launch_server", "--tp", "4"], FLAGS, {"X": "1", "Y": "a=b"}),
        (["X=1", "--tp", "4"], FLAGS, {"X": "1"}),
        (["env", "X=1", "python", "-m", "sglang.launch_server", "--tp", "4"], FLAGS, {"X": "1"}),
        (["X=1 python3 -m sglang.launch_server \\\n  --tp 4 \\\n"], FLAGS, {"X": "1"}),
        (["python3 -m sglang.launch_server \\\r\n  --tp 4"], FLAGS, {}),
        (["$ sglang serve --tp 4 2>&1 | tee log"], FLAGS, {}),
        (["sglang serve --tp 4 > log &"], FLAGS, {}),
        (["--tp 4 && echo done"], FLAGS, {}),
        (["--json '{\"a\": 1}'"], ("--json", '{"a": 1}'), {}),
        (
            ["docker run --gpus all -e A=1 --env B=2 --env=C=3 --name=n image python3 -m sglang.launch_server --tp 4"],
            FLAGS,
            {"A": "1", "B": "2", "C": "3"},
        ),
        (["export X=1; python3 -m sglang.launch_server --tp 4"], FLAGS, {"X": "1"}),
        (["# a recipe\nexport X=1 Y=2\nsglang serve --tp 4  # four GPUs\n"], FLAGS, {"X": "1", "Y": "2"}),
        (["cd /srv && sglang serve --tp 4"], FLAGS, {}),
        (["X=1\nsglang serve --tp 4"], FLAGS, {}),
        (["sglang serve --name 'a;b # c' --url x#y"], ("--name", "a;b # c", "--url", "x#y"), {}),
        (["--reasoning-parser", "a b"], ("--reasoning-parser", "a b"), {}),
    ],
)
def test_a_command_line_is_reduced_to_flags_and_variables(
    words: list[str], argv: tuple[str, ...], env: dict[str, str]
) -> None:
    assert paste.read(words) == Paste(argv, env)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vllm", "serve"], "neither a flag nor SGLang's program"),
        (["--a 'b"], "cannot be split"),
        (["sglang serve --tp 4 &\nsglang serve --tp 8"], "starts 2 servers: give one command line at a time"),
    ],
)
def test_what_is_no_command_line_is_told(words: list[str], message: str) -> None:
    with pytest.raises(PasteError, match=message):
        paste.read(words)


def test_variables() -> None:
    assert paste.variables(["A=1", "B="]) == {"A": "1", "B": ""}
    with pytest.raises(PasteError, match="NAME=VALUE"):
        paste.variables(["A"])
