"""The draft's lessons: to guess what the finished trunk's answers say next, and how sure a guess is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from epd_kernels.formats import reference as formats
from epd_workers.reference.model.draft import Text

if TYPE_CHECKING:
    from random import Random

    from torch import Tensor

    from epd_workers.reference.model.dense import Options
    from epd_workers.reference.training.learner import Learner
    from epd_workers.reference.training.sample import Batch

ANCHORS: Final = 16


def teach(learner: Learner, batch: Batch, options: Options, rng: Random) -> tuple[Tensor, int, int]:
    """Guess after some places of each dialogue, most of them inside answers.

    Returns:
        The loss (cross entropy of the guesses, and of the confidence in those that are right), how many guesses were
        right, and how many there were.
    """
    with torch.no_grad():
        trunk, _ = learner.run(batch, options)
    block = learner.model.config.text.dspark_block_size
    anchors = torch.tensor([_places(weights, block, rng) for weights in batch.weights])
    lesson = learner.model.mtp.teach(Text(batch.ids, trunk.features), anchors, learner.model, formats.WINDOW)
    around = torch.arange(batch.ids.shape[0])[:, None, None]
    aims = anchors[..., None] + 2 + torch.arange(block)
    counted = batch.weights[around, aims] == 1
    if not counted.any():
        counted = torch.ones_like(counted)
    each = functional.cross_entropy(lesson.logits.flatten(0, 2), lesson.targets.flatten(), reduction="none")
    right = lesson.logits.argmax(-1) == lesson.targets
    sure = functional.binary_cross_entropy(lesson.confidence[counted], right[counted].float())
    loss = each.view_as(right)[counted].mean() + sure
    return loss, int((right & counted).sum()), int(counted.sum())


def _places(weights: Tensor, block: int, rng: Random) -> list[int]:
    """Last processed positions one or two tokens before some answer token, all with a whole block behind."""
    last = len(weights) - block - 2
    useful = [p for p in (weights == 1).nonzero().flatten().tolist() if p >= 2 and p - 2 <= last]
    return [max(0, rng.choice(useful) - 2) if useful else last for _ in range(ANCHORS)]
