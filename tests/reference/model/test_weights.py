from __future__ import annotations

import pytest
import torch

from epd_workers.reference.model.weights import SeededWeights

GOLDEN = ["0x1.b5d7f8cc5f0b5p-7", "-0x1.864c56b88078cp+0", "-0x1.5e9160b6bcee4p-2", "-0x1.6fb061ed1b9c8p-5"]


def test_bits_do_not_depend_on_the_machine() -> None:
    # Written down once; a library or CPU that changes them would split prefill from decode without a word.
    values = SeededWeights(0).draw("embedding", 2, 2, std=1.0)
    assert [value.hex() for value in values.flatten().tolist()] == GOLDEN


def test_names_and_seeds_separate() -> None:
    first = SeededWeights(1).draw("a", 50, std=1.0)
    assert torch.equal(first, SeededWeights(1).draw("a", 50, std=1.0))
    assert not torch.equal(first, SeededWeights(1).draw("b", 50, std=1.0))
    assert not torch.equal(first, SeededWeights(2).draw("a", 50, std=1.0))


def test_spread() -> None:
    values = SeededWeights(3).draw("x", 100, 100, std=0.5)
    assert float(values.mean()) == pytest.approx(0, abs=0.02)
    assert float(values.std()) == pytest.approx(0.5, rel=0.02)
    rows = torch.randn(100, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert float((rows @ SeededWeights(3).matrix("m", 64, 256, gain=2.0)).std()) == pytest.approx(2.0, rel=0.1)
