from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import torch

from epd_workers.reference.model.loaded import PACKAGED, LoadedModel
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.training import evaluate, train
from epd_workers.reference.training.evaluate import MODES, examine, quiz, table
from epd_workers.reference.training.quiz import DISTANCES
from epd_workers.reference.training.vocabulary import NAMES

if TYPE_CHECKING:
    from pathlib import Path


def lines(path: Path, what: str) -> list[dict[str, float]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if line["what"] == what]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very short run in one process."""
    out = tmp_path_factory.mktemp("run")
    arguments = ["--out", str(out), "--tower-steps", "2", "--steps", "20", "--draft-steps", "2", "--processes", "1"]
    arguments += ["--cases", "1", "--report-seconds", "0"]
    assert train.main([*arguments, "--log", str(out / "log")]) == 0
    return out


@pytest.mark.usefixtures("run")
def test_training_leaves_the_arithmetic_of_its_caller_alone() -> None:
    smallest = torch.tensor([5e-324], dtype=torch.float64)
    assert float(smallest * 1.0) > 0


def test_twenty_steps_lower_the_loss(run: Path) -> None:
    losses = [line["loss"] for line in lines(run / "log", "trunk")]
    assert len(losses) == 20
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])


def test_a_run_writes_a_checkpoint_that_loads(run: Path) -> None:
    model = LoadedModel.load(run)
    assert model.tokenizer.vocab_size == Tokenizer.default().vocab_size
    facts = json.loads((run / "training.json").read_text())
    assert (facts["seed"], facts["steps"], facts["draft_steps"]) == (0, 20, 2)


def test_a_run_goes_on_where_it_stopped(run: Path, tmp_path: Path) -> None:
    state = torch.load(run / "training.pt", weights_only=True)
    state["step"] = 19
    torch.save(state, tmp_path / "training.pt")
    arguments = ["--out", str(tmp_path), "--steps", "20", "--draft-steps", "1", "--processes", "1", "--resume"]
    arguments += ["--cases", "1"]
    assert train.main([*arguments, "--log", str(tmp_path / "log")]) == 0
    assert [line["step"] for line in lines(tmp_path / "log", "trunk")] == [20]
    assert not lines(tmp_path / "log", "tower")


def test_questions_are_held_out_and_far_behind_their_facts() -> None:
    model = LoadedModel.load()
    cases = quiz(model, 24)
    assert {case.group for case in cases if case.picture} == {
        f"image {kind}" for kind in ("describe", "colour", "where", "count", "exists", "at")
    }
    recall = [case for case in cases if not case.picture]
    assert [case.group for case in recall[:3]] == [f"recall {low}-{high}" for low, high in DISTANCES]
    for case, (low, _) in zip(recall, DISTANCES * 8, strict=True):
        text = model.tokenizer.decode(case.prompt)
        question = text[text.rstrip("?").rindex(".") + 1 :]
        words = {word for word in re.findall(r"[A-Za-z]+", question + " " + case.answer) if word[0].isupper()}
        name = next(iter(words & set(NAMES)))
        value = case.answer.rstrip(".").split()[-1]
        said = next(s for s in text.split(". ") if s.startswith(name) and s.endswith(value))
        behind = text[text.index(said) :]
        assert len(model.tokenizer.encode(behind)) > low


def test_the_packaged_checkpoint_answers_held_out_questions() -> None:
    model = LoadedModel.load()
    cases = quiz(model, 12, seed=7)
    results = {mode.name: examine(model, mode, cases) for mode in (MODES[0], MODES[2])}
    for found in results.values():
        assert found["image"] >= 0.65
        assert found["recall"] >= 0.9
    assert table(results).count("\n") == 3


def test_evaluation_prints_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--cases", "1", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [mode.name for mode in MODES]


def test_the_packaged_checkpoint_is_small_and_says_how_it_was_made() -> None:
    assert (PACKAGED / "model.safetensors").stat().st_size <= 6_000_000
    facts = json.loads((PACKAGED / "training.json").read_text())
    assert facts["minutes"] < 40
    assert facts["accuracy"]["image"] >= 0.75
    assert facts["accuracy"]["recall"] >= 0.95
