"""The reference engine with Triton's operations says what it says with torch's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from epd_kernels import dispatch
from epd_kernels.dispatch import TORCH
from epd_kernels.launching import Launch
from epd_workers.reference.model.interface import Extend
from epd_workers.reference.model.replay import PRESETS
from tests.support.reference.configs import tiny
from tests.support.reference.trunk import Trunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_kernels.dispatch import Operations
    from epd_workers.reference.model.forward import Forward
    from epd_workers.reference.model.interface import Output
    from tests.support.reference.trunk import Request

TRITON = dispatch.load("triton", torch.device("cpu"))
PLAIN = replace(TORCH, widest=TRITON.widest)
STEPS = 2
KERNELS = {
    f"{name}_kernel"
    for name in (
        "tail_layout", "window_slots", "entry_slots", "gather_rows", "pack", "pool_pairs", "attend", "merge",
        "index_scores", "candidate_blocks", "top_entries",
    )
}  # fmt: skip
"""All that the engine needs: without one of them it would have used torch in its place."""


def trunk(operations: Operations) -> Trunk:
    """Window layers and Engram, pairs, the decoder half's source and a layer that selects again; a picture."""
    return Trunk(tiny(), 3, 40, (range(5, 9),), operations=operations)


def answer(forward: Forward, requests: Sequence[Request], out: Output) -> list[torch.Tensor]:
    """Logits [requests, vocab] behind the prompts and behind each greedily chosen token."""
    actual = [torch.stack([logits[-1] for logits in out.logits])]
    for _ in range(STEPS):
        tokens = actual[-1].argmax(-1).tolist()
        steps = [Extend([token], one.sequence, decode=True) for token, one in zip(tokens, requests, strict=True)]
        actual.append(torch.cat(forward(steps).logits))
    return actual


def same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for left, right in zip(ours, theirs, strict=True):
        assert left.argmax(-1).tolist() == right.argmax(-1).tolist()
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)


def prompted(operations: Operations, preset: str) -> list[torch.Tensor]:
    """Chunks of one prompt: longer than the window, a single token, as long as the window; odd boundaries."""
    ours = trunk(operations)
    forward, request = ours.bind(preset), ours.begin()
    actual = []
    for stop in (13, 14, 22):
        out = forward([ours.extend(request, stop)])
        actual.append(out.logits[0])
    return [*actual, *answer(forward, [request], out)]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that have run."""
    names: list[str] = []
    run = Launch.run

    def noted(self: Launch) -> None:
        names.append(self.name)
        run(self)

    monkeypatch.setattr(Launch, "run", noted)
    return names


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_prompt_in_chunks_with_decoder_replay(preset: str, launched: list[str]) -> None:
    theirs = prompted(PLAIN, preset)
    assert not launched
    same(prompted(TRITON, preset), theirs)
    assert set(launched) == KERNELS


def hit(operations: Operations) -> list[torch.Tensor]:
    """A prefix whose windows are gone, and a prompt that goes on behind it."""
    ours = trunk(operations)
    forward, request = ours.bind("0.5.23"), ours.begin()
    forward([ours.extend(request, 16)])
    request.sequence.release_windows(16)
    request.sequence.reserve_windows(8)
    out = forward([ours.extend(request, 27, replayed=8)])
    assert out.work.replayed == 8
    return answer(forward, [request], out)


def test_a_prefix_hit_with_encoder_replay() -> None:
    same(hit(TRITON), hit(PLAIN))


def ragged(operations: Operations) -> list[torch.Tensor]:
    """Three prompts that end at different places, one of them with all its log-probabilities."""
    ours = trunk(operations)
    forward, requests = ours.bind("dsv41-37ae292e"), [ours.begin() for _ in range(3)]
    first = [ours.extend(one, stop, all_logits=stop == 7) for one, stop in zip(requests, (10, 7, 1), strict=True)]
    begun = forward(first)
    out = forward([ours.extend(one, stop) for one, stop in zip(requests, (11, 19, 8), strict=True)])
    return [*begun.logits, *answer(forward, requests, out)]


def test_a_ragged_batch() -> None:
    ours, theirs = ragged(TRITON), ragged(PLAIN)
    assert [len(logits) for logits in ours[:3]] == [1, 7, 1]
    same(ours, theirs)
