"""The checkpoint's own question: at start, on request, and when the answer is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from epd_workers.reference.main import main
from epd_workers.reference.serving.probe import Question, WrongAnswer
from tests.support.reference import checkpoints
from tests.support.reference.serving import CHAT, chat

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.reference.serving import Fleet

ASKED = "what colour is the sky?"


def write(directory: Path, answer: str) -> Path:
    checkpoints.write(directory)
    (directory / "training.json").write_text(json.dumps({"probe": {"prompt": ASKED, "answer": answer}}))
    return directory


async def spoken(fleet: Fleet) -> str:
    """What the tiny model says to the question, cut before it would go on."""
    server = await fleet.start("aggregated")
    return (await server.post(CHAT, chat(ASKED, max_tokens=1))).text


async def test_the_question_is_asked_at_start_and_on_request(fleet: Fleet, tmp_path: Path) -> None:
    message = await spoken(fleet)
    path = ("--model-path", str(write(tmp_path, message + " and more")))
    prefill = await fleet.start("prefill", *path)
    asked = await prefill.get("/health_generate?semantic=true")
    assert (asked.status, asked.body) == (200, "OK")
    for role in ("decode", "encode"):
        server = await fleet.start(role, *path)
        for query, body in (("?semantic=true", "OK, but there was no question to ask here"), ("", "OK")):
            answer = await server.get("/health_generate" + query)
            assert (answer.status, answer.body) == (200, body)
    wrong = await prefill.get("/health_generate?semantic=perhaps")
    assert (wrong.status, wrong.message) == (400, "semantic is 'perhaps': must be true or false")


@pytest.mark.parametrize("role", ["prefill", "aggregated"])
async def test_a_wrong_answer_keeps_a_server_from_starting(fleet: Fleet, tmp_path: Path, role: str) -> None:
    path = write(tmp_path, "blue")
    with pytest.raises(WrongAnswer, match=f"{ASKED[:-1]}.*is answered .*: must b") as caught:
        await fleet.start(role, "--model-path", str(path))
    assert str(caught.value).endswith("or run the version that it was trained with")


async def test_a_model_that_breaks_later_says_so_on_request(fleet: Fleet, tmp_path: Path) -> None:
    path = write(tmp_path, await spoken(fleet) + " and more")
    server = await fleet.start("prefill", "--model-path", str(path))
    weights = checkpoints.load(path, 192).weights
    weights.norm.weight.neg_()
    answer = await server.get("/health_generate?semantic=true")
    assert (answer.status, answer.code) == (503, "wrong_answer")
    assert (await server.get("/health")).status == 200


async def test_a_checkpoint_without_a_question_is_not_asked(fleet: Fleet) -> None:
    server = await fleet.start("aggregated")
    assert (await server.get("/health_generate?semantic=true")).body == "OK, but there was no question to ask here"


@pytest.mark.parametrize(
    "text", ["{", "[" * 10**5, '{"probe": 1}', '{"probe": {"prompt": "x"}}', '{"probe": {"prompt": "x", "answer": ""}}']
)
def test_a_question_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(WrongAnswer, match=r"training\.json"):
        Question.of(tmp_path)


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"probe": null}'])
def test_no_question(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "training.json").write_text(text)
    assert Question.of(tmp_path) is None


@pytest.mark.parametrize("flags", [("--context-length", "16"), ("--max-total-tokens", "4")])
def test_limits_without_room_for_the_question_are_told(
    tmp_path: Path, flags: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    arguments = [
        "--role",
        "aggregated",
        "--port",
        "0",
        "--page-size",
        "4",
        "--model-path",
        str(write(tmp_path, "blue" * 9)),
    ]
    threads = torch.get_num_threads()
    assert main([*arguments, *flags]) == 1
    torch.set_num_threads(threads)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("cannot start: the question that proves this server does not fit into it")
    assert record.getMessage().endswith(f" raise {flags[0]}")
