"""One forward of a batch and what is to be made small: answers, cells of pictures, the indexer's choice.

Expert loads are balanced without a loss term: after every step the biases of experts that got less than their share
rise by a fixed amount, the others fall. Source: DeepSeek-V3 technical report, section 2.1.2 (auxiliary-loss-free).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from epd_workers.reference.model import dense
from epd_workers.reference.model.engram_hash import EngramHash
from epd_workers.reference.model.loaded import engram_ids
from epd_workers.reference.model.vision import span
from epd_workers.reference.training.sample import ANSWER_WEIGHT, RESTATED_WEIGHT
from epd_workers.reference.training.story import TOPICS
from epd_workers.reference.training.vocabulary import COLOURS, NAMES, PLACES_IN_PICTURE, SHAPES

if TYPE_CHECKING:
    from epd_workers.reference.model.dense import Options, Result
    from epd_workers.reference.model.moe import Gate
    from epd_workers.reference.model.tokenizer import Tokenizer
    from epd_workers.reference.model.transformer import Transformer
    from epd_workers.reference.training.sample import Batch, Pictures

BALANCE: Final = 2e-3
_EMPTY_CELL_WEIGHT: Final = 0.1


class Probe(nn.Module):
    """Linear readings of a cell's row, thrown away after training: they teach the tower what to look for."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.shape = nn.Linear(hidden, len(SHAPES) + 1)
        self.colour = nn.Linear(hidden, len(COLOURS) + 1)
        self.place = nn.Linear(hidden, len(PLACES_IN_PICTURE))

    @override
    def forward(self, rows: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy of rows [batch, cells, d] against cells of `Pictures`, and which are read all right."""
        shape_of = cells.shape[:-1]
        rows, cells = rows.flatten(0, -2), cells.flatten(0, -2)
        held = cells[:, 0] > 0
        weight = torch.where(held, 1.0, _EMPTY_CELL_WEIGHT)
        readings = self.shape(rows), self.colour(rows), self.place(rows)
        right = torch.stack([(reading.argmax(-1) == cells[:, i]) for i, reading in enumerate(readings)]).all(0)
        shape, colour = (functional.cross_entropy(readings[i], cells[:, i], reduction="none") for i in (0, 1))
        where = functional.cross_entropy(readings[2][held], cells[held, 2])
        return ((shape + colour) * weight).sum() / weight.sum() + where, right.view(shape_of)


class Reader(nn.Module):
    """Linear probes for the person and the topic of a mentioned fact, thrown away after training.

    They are read off the rows that become global entries: at a fact's last word, and where that word is asked for. The
    same reading for both makes the two alike, which is what attention needs to find one from the other.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.name = nn.Linear(hidden, len(NAMES))
        self.topic = nn.Linear(hidden, len(TOPICS))

    @override
    def forward(self, rows: Tensor, mentions: Tensor) -> Tensor:
        """Cross entropy of rows [batch, tokens, d] at the mentions [n, 5] of `Batch`."""
        read = rows[mentions[:, 0], mentions[:, 1]]
        name = functional.cross_entropy(self.name(read), mentions[:, 3])
        return name + functional.cross_entropy(self.topic(read), mentions[:, 4])


class Score(NamedTuple):
    """Losses of one batch, and how many of its answers came out exactly right when every token was given.

    Attributes:
        answer: Cross entropy of what is to be answered.
        text: Of everything else, weighted.
        cells: Of the `Probe`.
        distillation: Of the indexer from the attention.
        reading: Of the `Reader`s.
        missed: Of the attention from where it should look.
        right: Answers without a wrong token.
        answers: All answers.
    """

    answer: Tensor
    text: Tensor
    cells: Tensor
    distillation: Tensor
    reading: Tensor
    missed: Tensor
    right: int
    answers: int


@dataclass(frozen=True)
class Seen:
    """Rows of the pictures' cells [batch, cells, d] and of their spans [batch, span, d]."""

    cells: Tensor
    spans: Tensor


class Learner:
    """The model in training."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        hidden = model.config.text.hidden_size
        self.model = model
        self.probe = Probe(hidden)
        self.readers = nn.ModuleDict({str(i): Reader(hidden) for i in model.config.text.kv_source_layer_ids})
        self._hash = EngramHash(model.config.text, engram_ids(tokenizer))
        self._eos = tokenizer.eos_id
        gates = [layer.ffn.gate for layer in model.stack]
        self._place = {gate: i for i, gate in enumerate(gates)}
        self._loads = [torch.zeros(2, len(gate.weight)) for gate in gates]
        for gate in gates:
            gate.register_forward_hook(self._count)

    def see(self, pictures: Pictures) -> Seen:
        """Run the tower and the aligner."""
        model, plan = self.model, pictures.plan
        patches = pictures.patches.to(model.embed.weight.dtype)
        cells = model.aligner(model.vision(patches, plan.grid), plan.grid)
        return Seen(cells, span(cells, plan.cells, model.image_start, model.image_newline, model.image_end))

    def run(self, batch: Batch, options: Options) -> tuple[Result, Seen | None]:
        """The forward over a batch."""
        rows = self.model.embed(batch.ids)
        seen = self.see(batch.pictures) if batch.pictures else None
        if seen:
            rows = rows.masked_scatter(batch.image[..., None], seen.spans)
        indices = self._hash.whole(batch.ids, batch.image)
        engram = dict(zip(self.model.config.text.engram_layer_ids, indices, strict=True))
        aims = dense.Aims(*batch.aims.T) if len(batch.aims) else None
        return dense.run(self.model, rows, batch.image, engram, options, aims=aims), seen

    def score(self, batch: Batch, options: Options) -> Score:
        """The losses of a batch."""
        result, seen = self.run(batch, options)
        targets, weights = batch.ids[:, 1:], batch.weights[:, 1:]
        logits = result.logits[:, :-1]
        each = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        answers, counted = weights == ANSWER_WEIGHT, weights >= RESTATED_WEIGHT
        text = (each * weights)[~counted].sum() / max(1, int((~counted & (weights > 0)).sum()))
        zero = each.new_zeros(())
        ends = answers & (targets == self._eos)
        with torch.no_grad():
            wrong = ((logits.argmax(-1) != targets) & answers).cumsum(1)
            at_end = wrong[ends]
            before = torch.cat((at_end.new_zeros(1), at_end[:-1]))
            starts = torch.cat((at_end.new_zeros(1), ends.nonzero()[:, 0].diff()))
            right = int((at_end == before.masked_fill(starts > 0, 0)).sum())
        return Score(
            answer=_even(each, answers, counted, ends),
            text=text,
            cells=self.probe(seen.cells, batch.pictures.cells)[0] if seen and batch.pictures else zero,
            distillation=torch.stack(result.distillation).mean() if result.distillation else zero,
            reading=self._read(result, batch) if len(batch.mentions) else zero,
            missed=torch.stack(result.missed).mean() if result.missed else zero,
            right=right,
            answers=int(ends.sum()),
        )

    def _read(self, result: Result, batch: Batch) -> Tensor:
        losses = [reader(result.sources[int(i)], batch.mentions) for i, reader in self.readers.items()]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def loads(self) -> Tensor:
        """Rows that each expert got since the last call [layers, 2 (text, image), experts]."""
        got = torch.stack(self._loads)
        for load in self._loads:
            load.zero_()
        return got

    @torch.no_grad()
    def balance(self, loads: Tensor) -> None:
        """Nudge the gates' biases by `loads`, text and image rows apart."""
        for layer, load in zip(self.model.stack, loads, strict=True):
            gate = layer.ffn.gate
            for bias, got in zip((gate.bias, gate.bias_vl), load, strict=True):
                bias.add_(torch.sign(got.mean() - got), alpha=BALANCE)

    def _count(self, gate: Gate, given: tuple[Tensor, Tensor], got: tuple[Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            experts, image = len(gate.weight), given[1]
            slots = (got[1] + experts * image[:, None].long()).flatten()
            self._loads[self._place[gate]] += torch.bincount(slots, minlength=2 * experts).view(2, experts)


def _even(each: Tensor, answers: Tensor, counted: Tensor, ends: Tensor) -> Tensor:
    """Mean loss of the counted tokens, an answer's n tokens at 1 / sqrt(n): a yes weighs more than a word of a list."""
    run = torch.where(answers, ends.cumsum(1) - ends.long(), -1)
    same = (run[:, :, None] == run[:, None]) & answers[:, None]
    weight = torch.where(counted & ~answers, 1.0, same.sum(-1).clamp(min=1).rsqrt())[counted]
    return (each[counted] * weight).sum() / weight.sum()
