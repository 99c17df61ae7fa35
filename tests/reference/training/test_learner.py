from __future__ import annotations

from random import Random

import pytest
import torch

from epd_workers.reference.model.config import SHIPPED
from epd_workers.reference.model.dense import Options, Selection
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.model.transformer import Transformer, initialise
from epd_workers.reference.training.drafting import teach
from epd_workers.reference.training.learner import BALANCE, Learner
from epd_workers.reference.training.optimizer import Muon, orthogonal
from epd_workers.reference.training.sample import Writer
from epd_workers.reference.training.schedule import DISTIL_FROM, ROUNDED_FROM, SPARSE_FROM, rate, stage

TOKENIZER = Tokenizer.default()
WRITER = Writer(TOKENIZER, SHIPPED.vision)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(initialise(Transformer(SHIPPED), 0), TOKENIZER)


def test_the_answers_that_are_right_are_counted(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = WRITER.story_batch(Random(0), 2, 40, 3, 0.0)
    run = learner.run

    def knowing(wrong: list[tuple[int, int]]) -> int:
        def fake(*args: object) -> object:
            result, seen = run(batch, Options())
            result.logits = torch.nn.functional.one_hot(torch.roll(batch.ids, -1, 1), 512).float()
            for row, at in wrong:
                result.logits[row, at] = 0
            return result, seen

        monkeypatch.setattr(learner, "run", fake)
        score = learner.score(batch, Options())
        monkeypatch.undo()
        assert score.answers == 6
        return score.right

    first, last = ((batch.weights == 1).nonzero()[i].tolist() for i in (0, -1))
    assert knowing([]) == 6
    assert knowing([(first[0], first[1] - 1)]) == 5
    assert knowing([(first[0], first[1] - 1), (last[0], last[1] - 1)]) == 4


def test_loads_count_every_row_once_and_biases_follow(learner: Learner) -> None:
    learner.loads()
    batch = WRITER.picture_batch(Random(1), 2, 2)
    learner.score(batch, Options())
    loads = learner.loads()
    chosen, images = SHIPPED.text.num_experts_per_tok, int(batch.image.sum())
    assert loads.sum(-1).tolist() == [[(batch.ids.numel() - images) * chosen, images * chosen]] * len(
        learner.model.stack
    )
    assert not learner.loads().any()
    gate = learner.model.stack[0].ffn.gate
    before = gate.bias.clone(), gate.bias_vl.clone()
    learner.balance(loads)
    for old, new, load in zip(before, (gate.bias, gate.bias_vl), loads[0], strict=True):
        assert torch.allclose(new - old, BALANCE * torch.sign(load.mean() - load))


def test_distillation_reaches_the_indexer_alone(learner: Learner) -> None:
    batch = WRITER.story_batch(Random(2), 1, 60, 2, 0.0)
    learner.model.zero_grad()
    score = learner.score(batch, Options(distil=True))
    score.distillation.backward()
    touched = {n for n, p in learner.model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert touched
    assert all(".indexer." in name for name in touched)


def test_the_readings_and_aims_of_a_story_can_be_learnt(learner: Learner) -> None:
    batch = WRITER.story_batch(Random(2), 2, 40, 3, 1.0)
    model = Learner(initialise(Transformer(SHIPPED), 1), TOKENIZER)
    named = [*model.model.named_parameters(), *model.readers.named_parameters()]
    optimizer, losses = Muon([(n, p) for n, p in named if p.requires_grad], lambda _: 7e-3), []
    for _ in range(8):
        score = model.score(batch, Options())
        losses.append((score.reading.item(), score.missed.item()))
        optimizer.zero_grad()
        (score.reading + score.missed).backward()
        optimizer.step()
    assert losses[-1][0] < 0.8 * losses[0][0]
    assert losses[-1][1] < 0.8 * losses[0][1]


def test_the_draft_learns_to_guess_and_the_trunk_stays(learner: Learner) -> None:
    batch = WRITER.story_batch(Random(3), 2, 60, 3, 0.0)
    trunk = {n: p.clone() for n, p in learner.model.named_parameters() if not n.startswith("mtp.")}
    draft = {n: p for n, p in learner.model.named_parameters() if n.startswith("mtp.") and p.requires_grad}
    optimizer, losses = Muon(draft.items(), lambda _: 3e-3), []
    for _ in range(6):
        loss, right, guesses = teach(learner, batch, Options(), Random(0))
        assert 0 <= right <= guesses
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(p, trunk[n]) for n, p in learner.model.named_parameters() if n in trunk)


def test_a_muon_step_is_orthogonal() -> None:
    torch.manual_seed(0)
    for shape in ((3, 24, 40), (40, 24)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_both_rules_go_downhill() -> None:
    torch.manual_seed(0)
    matrix, vector = (torch.nn.Parameter(torch.randn(shape)) for shape in ((6, 6), (6,)))
    optimizer = Muon([("a", matrix), ("b", vector)], lambda _: 0.05)
    start = [float(p.detach().square().sum()) for p in (matrix, vector)]
    for _ in range(100):
        optimizer.zero_grad()
        (matrix.square().sum() + vector.square().sum()).backward()
        optimizer.step()
    assert all(float(p.detach().square().sum()) < 0.3 * s for p, s in zip((matrix, vector), start, strict=True))


def test_the_order_of_the_stages() -> None:
    steps = 1000
    whole, learning, hard = (stage(int(part * steps), steps) for part in (0, DISTIL_FROM, SPARSE_FROM))
    assert whole.options == Options()
    assert learning.options.distil
    assert learning.options.selection is Selection.ALL
    assert hard.options.selection is Selection.TOP
    assert stage(int(ROUNDED_FROM * steps), steps).options.rounded
    assert [stage(s, steps).tokens for s in range(0, steps, 50)] == sorted(
        stage(s, steps).tokens for s in range(0, steps, 50)
    )
    assert rate(0, steps) < rate(30, steps) > rate(999, steps) > 0
