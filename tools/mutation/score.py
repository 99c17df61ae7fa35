"""How many mutants are killed, and which survive.

A mutant is killed when an expectation of a recorded case fails: the engine's verdict on a command line, the function
that it names, a value that it resolves, what a field case or an example of a rule expects. Of the others, some are
equivalent to the right rule. Equivalence cannot be decided, so it is sampled: the mutant and the right rule are
compared on all lines around the rule (`growth.Explorer`: lines on which each term of the rule alone decides, found by
local search, lines that break it among the recorded and thousands of drawn ones, and the lines one step away from all
these; for rules about pods and pairs, every join of two of their examples). A mutant that changes no finding and no
shown value on any of them is counted as *alike* and left out of the share.

What is compared is the outcome: which functions of the engine refuse, what is warned of, and the values of what is
accepted. A mutant that only adds or takes away a second finding by a function that refuses the same line anyway is
counted as *hidden* and left out, too: the engine says one thing and stops, so that nothing can be recorded of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools.mutation.experiment import Experiment
from tools.mutation.growth import Explorer
from tools.mutation.mutant import mutants
from tools.mutation.record import recorded
from tools.mutation.recorded_case import SGLANG

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from epd_operator.rules.expression import Named
    from epd_operator.rules.rule import Rule
    from tools.mutation.mutant import Mutant


@dataclass
class Score:
    """The fates of some mutants.

    Attributes:
        killed: How many a recorded case distinguishes from the right rule.
        surviving: Those that differ from it, and no recorded case notices.
        hidden: Those that differ only behind another finding by the same function.
        alike: Those that were never seen to differ.
    """

    killed: int = 0
    surviving: list[Mutant] = field(default_factory=list)
    hidden: list[Mutant] = field(default_factory=list)
    alike: list[Mutant] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Killed among those that differ."""
        return self.killed / max(1, self.killed + len(self.surviving))

    def add(self, other: Score) -> None:
        """Count these, too."""
        self.killed += other.killed
        self.surviving += other.surviving
        self.hidden += other.hidden
        self.alike += other.alike

    def report(self) -> str:
        """The numbers, and the survivors by rule or resolved value."""
        lines = [
            f"{self.killed} mutants killed, {len(self.surviving)} survive and differ: {self.share:.1%} dead",
            f"{len(self.hidden)} more differ only behind other findings, {len(self.alike)} were never seen to differ",
        ]
        subjects: dict[str, list[Mutant]] = {}
        for mutant in self.surviving:
            subjects.setdefault(mutant.subject, []).append(mutant)
        for subject, result in sorted(subjects.items(), key=lambda item: (-len(item[1]), item[0])):
            lines += [f"{subject}: {len(result)}", *(f"    {mutant.change}" for mutant in result)]
        return "\n".join(lines)


class Scorer:
    """Counts the mutants of rules and resolved values."""

    def __init__(self) -> None:
        self.experiment = Experiment(recorded())
        self.explorer = Explorer()
        self._mutants: dict[str, list[Mutant]] = {}
        for mutant in mutants(SGLANG):
            self._mutants.setdefault(mutant.subject, []).append(mutant)

    def subjects(self) -> list[str]:
        """Everything that has mutants."""
        return list(self._mutants)

    def of(self, subject: str) -> Score:
        """The score of the mutants of one rule or resolved value.

        Raises:
            KeyError: No such rule or value.
        """
        return self._judged(subject, self._mutants[subject])

    def sample(self, count: int, draw: Random) -> Score:
        """The score of a random sample of mutants."""
        chosen = draw.sample([mutant for entry in self._mutants.values() for mutant in entry], count)
        total = Score()
        for subject in dict.fromkeys(mutant.subject for mutant in chosen):
            total.add(self._judged(subject, [mutant for mutant in chosen if mutant.subject == subject]))
        return total

    def _judged(self, subject: str, chosen: Sequence[Mutant]) -> Score:
        result = Score()
        left = []
        for mutant in chosen:
            if noticed(self.experiment, mutant):
                result.killed += 1
            else:
                left.append(mutant)
        if left:
            around = self.explorer.around(subject_named(subject))
            for mutant in left:
                effects = [*self.experiment.effects(mutant), *around.experiment.effects(mutant)]
                showing = any(effect.shows for effect in effects)
                (result.surviving if showing else result.hidden if effects else result.alike).append(mutant)
        return result

    def all(self, subjects: Iterable[str]) -> Score:
        """The score of the mutants of several subjects."""
        total = Score()
        for subject in subjects:
            total.add(self.of(subject))
        return total


def noticed(experiment: Experiment, mutant: Mutant) -> bool:
    """Whether a recorded case distinguishes a mutant from the right rule."""
    return any(effect.noticed for effect in experiment.effects(mutant))


def subject_named(name: str) -> Rule | Named:
    """A rule or a resolved value."""
    return next((rule for rule in SGLANG.rules if rule.id == name), None) or SGLANG.named()[name]
