"""`epd-reference train`: makes a checkpoint.

Two processes of one thread each take one batch a step, pictures and stories, and add their gradients: at these sizes
that is faster than two threads in one process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

from epd_kernels.formats import reference as formats
from epd_workers.reference.model import checkpoint
from epd_workers.reference.model.config import SHIPPED
from epd_workers.reference.model.loaded import LoadedModel
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.model.transformer import Transformer, initialise
from epd_workers.reference.training import vocabulary
from epd_workers.reference.training.drafting import teach
from epd_workers.reference.training.evaluate import MODES, Examinee, examine, progress, quiz
from epd_workers.reference.training.learner import Learner, Score
from epd_workers.reference.training.optimizer import Muon
from epd_workers.reference.training.sample import Batch, Writer
from epd_workers.reference.training.schedule import Stage, rate, stage
from epd_workers.reference.training.settings import STATE, TrainingSettings, Unfit, begin, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_TOWER_RATE: Final = 4e-3
_TOWER_PART: Final = 0.15
_CELLS_WEIGHT: Final = 1.0
_TOWER_PICTURES: Final = 12
_PICTURE_TURNS: Final = 7
_CLIP: Final = 1.0
PROBE: Final = {
    "prompt": "Mira keeps the silver key in the barn. Where does Mira keep the silver key?",
    "answer": "In the barn.",
}
"""What a server asks a checkpoint before it calls itself ready."""
_TOWER: Final = ("vision.", "aligner.", "shape.", "colour.", "place.")
_SAVE_SECONDS: Final = 240.0
_INTERRUPTED: Final = 130


@dataclass
class _Tally:
    """Sums since the last report, of one process."""

    steps: int = 0
    loss: float = 0.0
    distillation: float = 0.0
    reading: float = 0.0
    missed: float = 0.0
    right: int = 0
    answers: int = 0

    def add(self, score: Score) -> None:
        self.steps += 1
        self.loss += score.answer.item()
        self.distillation += score.distillation.item()
        self.reading += score.reading.item()
        self.missed += score.missed.item()
        self.right += score.right
        self.answers += score.answers


class Trainer:
    """One process of a run."""

    def __init__(self, settings: TrainingSettings, rank: int) -> None:
        self.settings, self.rank = settings, rank
        tokenizer = Tokenizer.load(settings.out / "tokenizer.json")
        self.writer = Writer(tokenizer, SHIPPED.vision)
        self.model = initialise(Transformer(SHIPPED), settings.seed)
        torch.manual_seed(settings.seed)
        self.learner = Learner(self.model, tokenizer)
        named = [
            *self.model.named_parameters(),
            *self.learner.probe.named_parameters(),
            *self.learner.readers.named_parameters(),
        ]
        trained = {name: parameter for name, parameter in named if parameter.requires_grad}
        self.tower = {n: p for n, p in trained.items() if n.startswith(_TOWER)}
        self.draft = {n: p for n, p in trained.items() if n.startswith("mtp.")}
        self.trunk = {n: p for n, p in trained.items() if n not in self.draft}
        self.optimizer = Muon(self.trunk.items(), self._rate)
        self.first = 0
        self.began = self.saved = self.reported = time.monotonic()
        self.tally = _Tally()
        if settings.resume:
            self._restore()

    def run(self) -> None:
        """Train the trunk, then the draft, and save."""
        steps = self.settings.steps
        if not self.settings.resume:
            self._teach_tower()
            if self.rank == 0:
                self._keep(0)
        for step in range(self.first, steps):
            self.step(step)
            self._report(step, steps, "trunk")
            if self.rank == 0 and time.monotonic() - self.saved > _SAVE_SECONDS:
                self._keep(step + 1)
        if self.rank == 0:
            self._keep(steps)
        self._round_for_good()
        self.optimizer = Muon(self.draft.items(), self._rate)
        for step in range(self.settings.draft_steps):
            self.draft_step(step)
            self._report(step, self.settings.draft_steps, "draft")
        if self.rank == 0:
            checkpoint.save(self.model, SHIPPED, self.settings.out)

    def step(self, step: int) -> Score:
        """One step of the trunk."""
        now = stage(step, self.settings.steps)
        exact = self._round_experts() if now.quantised else {}
        score = self.learner.score(self.batch(step, now), now.options)
        loss = score.answer + score.text + _CELLS_WEIGHT * score.cells + score.distillation
        loss = loss + now.helped * (score.reading + score.missed)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._restore_experts(exact)
        self._descend(self.trunk, rate(step, self.settings.steps), self.learner.loads())
        self.tally.add(score)
        return score

    def _rate(self, name: str) -> float:
        """The tower knows its trade when the trunk begins, whose first gradients would ruin it."""
        return self.settings.rate * (_TOWER_PART if name in self.tower else 1.0)

    def batch(self, step: int, now: Stage) -> Batch:
        """This process's batch of a step: pictures in the first process, stories in the second, while these are new."""
        rng = Random(f"{self.settings.seed}/{step}/{self.rank}")  # noqa: S311 - a repeatable run
        alternate = self.settings.processes == 1 or (now.mixed and self.rank == 1)
        if (step + self.rank) % 2 if alternate else self.rank == 1:
            return self.writer.story_batch(rng, now.stories, now.tokens, now.turns, now.restated)
        return self.writer.picture_batch(rng, now.pictures, _PICTURE_TURNS)

    def draft_step(self, step: int) -> None:
        """One step of the draft behind the finished trunk."""
        last = stage(self.settings.steps, self.settings.steps)
        rng = Random(f"{self.settings.seed}/draft/{step}/{self.rank}")  # noqa: S311 - a repeatable run
        even = (step + self.rank) % 2
        batch = self.writer.story_batch(rng, 4, 120, 8, 0.0) if even else self.writer.picture_batch(rng, 8, 4)
        loss, right, guesses = teach(self.learner, batch, last.options, rng)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._descend(self.draft, rate(step, self.settings.draft_steps), None)
        self.tally.steps += 1
        self.tally.loss += loss.item()
        self.tally.right += right
        self.tally.answers += guesses

    def _teach_tower(self) -> None:
        """Tower and aligner alone, from the probe's loss: a hundred times cheaper than through the text."""
        steps, trunk, self.optimizer = (
            self.settings.tower_steps,
            self.optimizer,
            Muon(self.tower.items(), lambda _: _TOWER_RATE),
        )
        for step in range(steps):
            rng = Random(f"{self.settings.seed}/tower/{step}/{self.rank}")  # noqa: S311 - a repeatable run
            pictures = self.writer.some_pictures(rng, _TOWER_PICTURES)
            loss, right = self.learner.probe(self.learner.see(pictures).cells, pictures.cells)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._descend(self.tower, rate(step, steps), None)
            held = pictures.cells[..., 0] > 0
            self.tally.steps += 1
            self.tally.loss += loss.item()
            self.tally.right += int((right & held).sum())
            self.tally.answers += int(held.sum())
            self._report(step, steps, "tower")
        self.optimizer = trunk

    def _descend(self, named: dict[str, torch.nn.Parameter], part: float, loads: Tensor | None) -> None:
        """Add up the processes' gradients and expert loads, and make the step."""
        parameters = list(named.values())
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
            + ([loads.flatten()] if loads is not None else [])
        )
        if self.settings.processes > 1:
            distributed.all_reduce(flat)
        for parameter, grad in zip(parameters, flat[: sum(sizes)].split(sizes), strict=True):
            parameter.grad = grad.view_as(parameter)
        torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = group["highest"] * part
        self.optimizer.step()
        if loads is not None:
            self.learner.balance(flat[sum(sizes) :].view_as(loads))

    @torch.no_grad()
    def _round_experts(self) -> dict[str, Tensor]:
        """Put experts as they are stored in place of the exact ones, which are returned."""
        exact = {}
        for name, parameter in self.trunk.items():
            if ".experts." in name:
                exact[name] = parameter.detach().clone()
                parameter.copy_(formats.INDEX.round(parameter))
        return exact

    @torch.no_grad()
    def _restore_experts(self, exact: dict[str, Tensor]) -> None:
        for name, value in exact.items():
            self.trunk[name].copy_(value)

    @torch.no_grad()
    def _round_for_good(self) -> None:
        """From now on the trunk is what is stored."""
        for name, value in checkpoint.quantised(self.model).items():
            self.model.get_parameter(name).copy_(value)
        for parameter in self.trunk.values():
            parameter.requires_grad = False

    def _keep(self, step: int) -> None:
        """Save what a later run can go on from."""
        state = {
            "step": step,
            "seconds": time.monotonic() - self.began,
            **self.settings.made,
            "model": self.model.state_dict(),
            "probe": self.learner.probe.state_dict(),
            "readers": self.learner.readers.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        beside = self.settings.out / f".{STATE}.new"
        torch.save(state, beside)
        beside.replace(self.settings.state)  # a run that is stopped now leaves the old one whole
        self.saved = time.monotonic()

    def _restore(self) -> None:
        state: dict[str, Any] = torch.load(self.settings.state, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.learner.probe.load_state_dict(state["probe"])
        self.learner.readers.load_state_dict(state["readers"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.first = state["step"]
        self.began -= state["seconds"]

    def _report(self, step: int, steps: int, what: str) -> None:
        now, tally = time.monotonic(), self.tally
        if now - self.reported < self.settings.report_seconds and step + 1 < steps:
            return
        line = {
            "what": what,
            "process": self.rank,
            "step": step + 1,
            "steps": steps,
            "loss": round(tally.loss / tally.steps, 4),
            "distillation": round(tally.distillation / tally.steps, 4),
            "reading": round(tally.reading / tally.steps, 4),
            "missed": round(tally.missed / tally.steps, 4),
            "right": round(tally.right / max(1, tally.answers), 4),
            "minutes": round((now - self.began) / 60, 2),
            "of_minutes": self.settings.minutes,
        }
        text = json.dumps(line)
        sys.stderr.write(text + "\n")
        if self.settings.log is not None:
            with self.settings.log.open("a") as log:
                log.write(text + "\n")
        self.reported, self.tally = now, _Tally()


def main(argv: Sequence[str] | None = None) -> int:
    """Train and write a checkpoint directory; the exit status."""
    settings = parse(argv)
    try:
        spent = begin(settings)
    except Unfit as error:
        sys.stderr.write(f"epd-reference train: {error}\n")
        return 2
    vocabulary.write(settings.out / "tokenizer.json")
    began = time.monotonic()
    try:
        _run(settings)
        minutes = round((spent + time.monotonic() - began) / 60, 1)
        _spawned(_examine, (settings, minutes), 1)
    except KeyboardInterrupt:
        kept = "go on with --resume" if settings.state.exists() else "nothing was kept yet"
        sys.stderr.write(f"epd-reference train: stopped; {kept}\n")
        return _INTERRUPTED
    return 0


def _run(settings: TrainingSettings) -> None:
    with tempfile.TemporaryDirectory() as meeting:
        _spawned(_work, (settings, meeting), settings.processes)


def _spawned(work: Callable[..., None], arguments: tuple[object, ...], count: int) -> None:
    """Work in processes of their own, even in one: how it computes must not become how its caller does."""
    context = spawn(work, arguments, nprocs=count, join=False)
    assert context is not None
    try:
        while not context.join():
            pass
    finally:
        # An interrupt may have reached only this process, which would wait for the others at its end.
        for process in context.processes:
            process.terminate()
            process.join()


def _examine(_rank: int, settings: TrainingSettings, minutes: float) -> None:
    """Ask the new checkpoint what it was not taught, and write down how it was made."""
    torch.set_num_threads(1)
    model = LoadedModel.load(settings.out)
    accuracy = examine(model, MODES[0], quiz(model, settings.cases), progress("examination"))
    probe = PROBE if _knows(model) else None
    if probe is None:
        sys.stderr.write("epd-reference train: this checkpoint cannot answer the question that servers ask at their ")
        sys.stderr.write("start, so they will ask none: train longer\n")
    report = {
        **{name: getattr(settings, name) for name in ("seed", "tower_steps", "steps", "draft_steps")},
        "minutes": minutes,
        "cases": settings.cases,
        "accuracy": {group: round(part, 4) for group, part in accuracy.items()},
        "probe": probe,
        "checkpoint": model.config.digest,
    }
    (settings.out / "training.json").write_text(json.dumps(report, indent=2) + "\n")


def _knows(model: LoadedModel) -> bool:
    """Whether the model gives the answer that a server will want from it."""
    ids = Writer(model.tokenizer, model.weights.config.vision).prompt(PROBE["prompt"], None, None)
    examinee = Examinee(model, MODES[0], len(ids))
    return model.tokenizer.decode(examinee.answer(ids, None)) == PROBE["answer"]


def _work(rank: int, settings: TrainingSettings, meeting: str) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if settings.processes > 1:
        cores = sorted(os.sched_getaffinity(0))
        # Two processes that wait for each other must not share a core, which a busy machine's scheduler lets happen.
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        where = f"file://{meeting}/group"
        distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=settings.processes)
    Trainer(settings, rank).run()
    if settings.processes > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(main())
