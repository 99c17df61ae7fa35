"""The settings of a run of `epd-reference train`, and whether it can begin or go on."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from epd_workers.reference.training.arguments import number, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS: Final = 1050
TOWER_STEPS: Final = 1100
DRAFT_STEPS: Final = 30
"""Few: nothing decodes with the draft yet, and the whole run is to take less than 40 minutes on two cores."""
RATE: Final = 7e-3
STATE: Final = "training.pt"
"""What a later run can go on from."""
_KEPT: Final = frozenset({"step", "seconds", "model", "probe", "readers", "optimizer"})


class Unfit(Exception):
    """A run cannot begin or go on; the message says why and what to do."""


@dataclass(frozen=True)
class TrainingSettings:
    """What the command line says."""

    out: Path
    tower_steps: int
    steps: int
    draft_steps: int
    seed: int
    rate: float
    processes: int
    minutes: float
    cases: int
    resume: bool
    log: Path | None
    report_seconds: float

    @property
    def made(self) -> dict[str, int | float]:
        """What a run that goes on must have in common with the one that it goes on from."""
        return {"seed": self.seed, "steps": self.steps, "rate": self.rate, "processes": self.processes}

    @property
    def state(self) -> Path:
        """Where the run keeps what it can go on from."""
        return self.out / STATE


def begin(settings: TrainingSettings) -> float:
    """Make the folder and see that what the run needs is there.

    Returns:
        Seconds that the run has taken before; 0 for a new one.

    Raises:
        Unfit: The folder or the log cannot be written, or there is nothing to go on from.
    """
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        if settings.log is not None:
            settings.log.open("a").close()
    except OSError as error:
        raise Unfit(f"{error.filename or settings.out} cannot be written: {error.strerror or error}") from error
    if not settings.resume:
        return 0.0
    state = _kept(settings.state)
    other = [f"--{name} is {value}, was {state[name]}" for name, value in settings.made.items() if state[name] != value]
    if other:
        raise Unfit(f"--resume: another run was begun in {settings.out}: {'; '.join(other)}")
    return float(state["seconds"])


def _kept(path: Path) -> dict[str, Any]:
    fresh = "leave --resume out to start over"
    if not path.exists():
        raise Unfit(f"--resume: {path} is missing; {fresh}")
    try:
        state = torch.load(path, weights_only=True)
    except Exception as error:
        # Torch raises nearly anything for a damaged file.
        first = str(error).partition("\n")[0]
        raise Unfit(f"--resume: {path} cannot be read: {first}; {fresh}") from error
    if not isinstance(state, dict) or not _KEPT | {"seed", "steps", "rate", "processes"} <= state.keys():
        raise Unfit(f"--resume: {path} is not the state of a run of this version; {fresh}")
    return state


def parse(argv: Sequence[str] | None) -> TrainingSettings:
    """Read the command line; ends the process where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="epd-reference train",
        description="Train the small model on pictures and stories that it draws itself. The same seed and steps give "
        "the same weights on the same machine; another machine may differ in the last bits, and then in more.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, help="checkpoint directory to write")
    parser.add_argument("--tower-steps", type=whole(0), default=TOWER_STEPS, help="steps of the tower (%(default)s)")
    parser.add_argument("--steps", type=whole(1), default=STEPS, help="steps of the trunk (%(default)s)")
    parser.add_argument("--draft-steps", type=whole(0), default=DRAFT_STEPS, help="steps of the draft (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and world (%(default)s)")
    parser.add_argument("--rate", type=number(zero=False), default=RATE, help="highest learning rate (%(default)s)")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2, help="(%(default)s)")
    parser.add_argument(
        "--minutes", type=number(zero=True), default=40.0, help="budget, only shown beside the time taken"
    )
    parser.add_argument(
        "--cases", type=whole(1), default=60, help="held-out questions of each sort behind it (%(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the training.pt in --out")
    parser.add_argument("--log", type=Path, help="append every progress line to this file")
    parser.add_argument(
        "--report-seconds", type=number(zero=True), default=10.0, help="between progress lines (%(default)s)"
    )
    return TrainingSettings(**vars(parser.parse_args(argv)))
