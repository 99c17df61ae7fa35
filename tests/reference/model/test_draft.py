from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.formats import reference as formats
from epd_workers.reference.model import dense
from epd_workers.reference.model.config import Config
from epd_workers.reference.model.draft import NOWHERE, Draft, Ring, Text, verify
from epd_workers.reference.model.engram_hash import EngramHash
from epd_workers.reference.model.transformer import Transformer
from tests.reference.model import oracle_draft, oracle_text
from tests.support.reference.configs import configs, random_prompt, random_weights, tiny
from tests.support.reference.trunk import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.reference.model.oracle_formats import KvMode

CODECS: dict[str, formats.Codec] = {"fp4": formats.WINDOW, "bf16": formats.BFLOAT16}


@dataclass
class Scene:
    """A run of the second implementation, and the model with the same weights."""

    data: dict[str, Any]
    weights: dict[str, torch.Tensor]
    trace: oracle_text.Trace
    model: Transformer

    @property
    def draft(self) -> Draft:
        return self.model.mtp

    def features(self, positions: Sequence[int]) -> torch.Tensor:
        layers = self.data["text_config"]["dspark_target_layer_ids"]
        return torch.cat([self.trace.layers[i].inputs[list(positions)].mean(1) for i in layers], -1)

    def ring(self, last: int, codec: formats.Codec) -> Ring:
        """The whole window behind `last`, empty places first."""
        window = self.data["text_config"]["sliding_window"]
        positions = torch.arange(last + 1 - window, last + 1)
        rows = codec.round(self.draft.context(self.features(positions.clamp(min=0).tolist()), positions.clamp(min=0)))
        return Ring(rows[:, None], torch.where(positions < 0, NOWHERE, positions)[None])


def scene(data: dict[str, Any], seed: int, length: int, kv: KvMode) -> Scene:
    weights = random_weights(data, seed)
    prompt = random_prompt(data, seed, length)
    trace = oracle_text.forward(data, weights, prompt.token_ids, None, prompt.token_map, kv=kv)
    return Scene(data, weights, trace, load(Config.from_json(data), weights))


@given(
    configs().filter(lambda data: data["text_config"]["num_nextn_predict_layers"]),
    st.integers(0, 1000),
    st.sampled_from(["fp4", "bf16"]),
)
@settings(max_examples=5)
def test_a_block_equals_the_second_implementation(data: dict[str, Any], seed: int, kv: KvMode) -> None:
    made = scene(data, seed, 22, kv)
    for last in (0, 3, 21):  # windows of 4 to 16: not full yet, and full
        wanted = oracle_draft.draft(data, made.weights, made.trace, last, 5, kv)
        actual = made.draft.propose(
            torch.tensor([5]), torch.tensor([last]), made.ring(last, CODECS[kv]), made.model, CODECS[kv]
        )
        assert actual.ids.tolist() == [wanted.ids]
        torch.testing.assert_close(actual.confidence[0], wanted.confidence.sigmoid(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kv", ["fp4", "bf16"])
def test_ring_rows_equal_the_second_implementation(kv: KvMode) -> None:
    made = scene(tiny(stages=2), 3, 20, kv)
    ring = made.ring(19, CODECS[kv])
    wanted = oracle_draft.context(made.data, made.weights, made.trace, 19, kv)
    torch.testing.assert_close(ring.rows[:, 0], torch.stack(wanted), rtol=1e-12, atol=1e-12)


def test_requests_do_not_touch_each_other_and_the_order_of_a_ring_does_not_count() -> None:
    made = scene(tiny(stages=2), 4, 20, "fp4")
    lasts, picked = [2, 11, 19], torch.tensor([7, 8, 9])
    rings = [made.ring(last, formats.WINDOW) for last in lasts]
    shuffle = torch.randperm(rings[0].positions.shape[1], generator=torch.Generator().manual_seed(0))
    together = Ring(
        torch.cat([ring.rows for ring in rings], 1)[:, :, shuffle],
        torch.cat([ring.positions for ring in rings])[:, shuffle],
    )
    batch = made.draft.propose(picked, torch.tensor(lasts), together, made.model, formats.WINDOW)
    for i, (last, ring) in enumerate(zip(lasts, rings, strict=True)):
        single = made.draft.propose(picked[i : i + 1], torch.tensor([last]), ring, made.model, formats.WINDOW)
        assert torch.equal(batch.ids[i], single.ids[0])
        torch.testing.assert_close(batch.confidence[i], single.confidence[0], rtol=1e-12, atol=1e-12)


def test_rows_outside_the_window_are_not_seen() -> None:
    made = scene(tiny(), 5, 20, "fp4")
    ring = made.ring(15, formats.WINDOW)
    window = ring.positions.shape[1]
    stray = torch.full_like(ring.rows[:, :, :3], 1e3)
    outside = torch.tensor([[16, 15 - window, NOWHERE]])
    wide = Ring(torch.cat([ring.rows, stray], 2), torch.cat([ring.positions, outside], 1))
    picked, last = torch.tensor([1]), torch.tensor([15])
    plain, with_strays = (made.draft.propose(picked, last, r, made.model, formats.WINDOW) for r in (ring, wide))
    torch.testing.assert_close(plain.confidence, with_strays.confidence, rtol=1e-12, atol=0)
    assert torch.equal(plain.ids, with_strays.ids)


def test_teaching_many_anchors_equals_blocks_one_by_one() -> None:
    data = tiny(stages=2)
    made = scene(data, 6, 30, "fp4")
    ids = torch.randint(0, 90, (1, 30), generator=torch.Generator().manual_seed(2))
    anchors, wanted = [2, 12, 22], []
    for last in anchors:
        block = oracle_draft.draft(data, made.weights, made.trace, last, int(ids[0, last + 1]))
        ids[0, last + 2 : last + 7] = torch.tensor(block.ids)  # the right tokens are what the draft would pick
        wanted.append(block)
    text = Text(ids, made.features(range(30))[None])
    lesson = made.draft.teach(text, torch.tensor([anchors]), made.model, formats.WINDOW)
    for i, block in enumerate(wanted):
        torch.testing.assert_close(lesson.logits[0, i], block.logits, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(lesson.confidence[0, i], block.confidence.sigmoid(), rtol=1e-10, atol=1e-12)
        assert lesson.targets[0, i].tolist() == block.ids


def test_teaching_trains_every_parameter_of_the_draft() -> None:
    data = tiny(stages=2)
    model = load(Config.from_json(data), random_weights(data, 8)).float()
    text = Text(torch.randint(0, 90, (3, 20)), torch.randn(3, 20, 2 * 32))
    lesson = model.mtp.teach(text, torch.tensor([[0, 4, 9], [1, 2, 3], [13, 13, 8]]), model, formats.WINDOW)
    loss = torch.nn.functional.cross_entropy(lesson.logits.flatten(0, 2), lesson.targets.flatten())
    torch.autograd.backward(loss + lesson.confidence.mean())
    for name, parameter in model.mtp.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
@settings(max_examples=100)
def test_guesses_stand_up_to_the_first_wrong_one(drafts: list[int], data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, 2), min_size=len(drafts) + 1, max_size=len(drafts) + 1))
    count = verify(drafts, picks)
    assert drafts[:count] == picks[:count]
    assert count == len(drafts) or drafts[count] != picks[count]


class Greedy:
    """Greedy decoding by running the trunk over everything again for every step."""

    def __init__(self, seed: int) -> None:
        data = tiny(stages=2, hidden=32, window=8)
        weights = random_weights(data, seed)
        for name in ("head.weight", "mtp.1.markov_head.head.weight"):
            weights[name][2:] = 0  # few tokens to pick from, so that some guesses are right
        self.model = load(Config.from_json(data), weights)
        self.hasher = EngramHash(self.model.config.text, [i % 90 for i in range(self.model.config.text.vocab_size)])
        self.accepted: list[int] = []

    def run(self, ids: list[int]) -> dense.Result:
        tokens = torch.tensor([ids])
        image = torch.zeros_like(tokens, dtype=torch.bool)
        text = self.model.config.text
        engram = dict(zip(text.engram_layer_ids, self.hasher.whole(tokens, image), strict=True))
        options = dense.Options(selection=dense.Selection.TOP, rounded=True)
        return dense.run(self.model, self.model.embed(tokens), image, engram, options)

    def plain(self, ids: list[int], count: int) -> list[int]:
        for _ in range(count):
            ids = [*ids, int(self.run(ids).logits[0, -1].argmax())]
        return ids

    def drafted(self, ids: list[int], count: int) -> list[int]:
        end = len(ids) + count
        window = self.model.config.text.sliding_window
        ids = [*ids, int(self.run(ids).logits[0, -1].argmax())]
        while len(ids) < end:
            last = len(ids) - 2
            features = self.run(ids[:-1]).features
            positions = torch.arange(max(0, last + 1 - window), last + 1)[None]
            rows = formats.WINDOW.round(self.model.mtp.context(features[:, positions[0]], positions))
            guess = self.model.mtp.propose(
                torch.tensor(ids[-1:]), torch.tensor([last]), Ring(rows, positions), self.model, formats.WINDOW
            )
            drafts = guess.ids[0].tolist()
            picks = self.run([*ids, *drafts]).logits[0, len(ids) - 1 :].argmax(-1).tolist()
            self.accepted.append(verify(drafts, picks))
            ids = [*ids, *picks[: self.accepted[-1] + 1]]
        return ids[:end]


def test_drafting_changes_no_token() -> None:
    accepted = []
    for seed in range(2):
        greedy = Greedy(seed)
        prompt = torch.randint(0, 90, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        with torch.inference_mode():
            assert greedy.drafted(prompt, 20) == greedy.plain(prompt, 20)
        accepted += greedy.accepted
    assert 0 in accepted
    assert max(accepted) > 1


def test_a_model_without_stages_has_no_draft() -> None:
    config = Config.from_json(tiny(stages=0))
    assert not list(Transformer(config).mtp.parameters())
