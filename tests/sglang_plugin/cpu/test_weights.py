from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from epd_sglang.cpu.leaves.weights import wide
from epd_workers.reference.model import checkpoint
from epd_workers.reference.model.storage import slots

if TYPE_CHECKING:
    from pathlib import Path


def test_weights_mean_what_the_released_format_says(random_model: Path) -> None:
    """Against the Reference engine's own reading, of every tensor of a checkpoint."""
    config, model = checkpoint.load(random_model, torch.float64)
    parameters = dict(model.named_parameters())
    actual = dict(wide(load_file(random_model / "model.safetensors").items()))
    for slot in slots(config):
        if slot.encoding == "rows":
            assert actual[slot.name].dtype is torch.float8_e4m3fn, "Engram's table stays as it is stored"
            continue
        expected = parameters[slot.parameter] if slot.expert is None else parameters[slot.parameter][slot.expert]
        assert torch.equal(actual[slot.name].double(), expected.double()), slot.name
    assert not [name for name in actual if name.endswith(".scale") and "engram.embed" not in name]


@given(st.permutations(["a.weight", "a.scale", "b.weight", "b.scale", "c.weight"]))
def test_halves_may_come_in_any_order(order: list[str]) -> None:
    tensors = {
        "a.weight": torch.full((32, 32), 2.0).to(torch.float8_e4m3fn),
        "a.scale": torch.full((1, 1), 128, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "b.weight": torch.full((2, 16), 0x72, dtype=torch.int8),
        "b.scale": torch.full((2, 1), 126, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "c.weight": torch.ones(3, dtype=torch.bfloat16),
    }
    got = dict(wide((name, tensors[name]) for name in order))
    assert {name: (tuple(t.shape), t.flatten()[:2].tolist()) for name, t in got.items()} == {
        "a.weight": ((32, 32), [4.0, 4.0]),
        "b.weight": ((2, 32), [0.5, 3.0]),
        "c.weight": ((3,), [1.0, 1.0]),
    }
    assert {t.dtype for t in got.values()} == {torch.bfloat16}


def test_a_weight_without_its_scale_is_named() -> None:
    weights = [("a.weight", torch.ones(2, 2).to(torch.float8_e4m3fn)), ("b.scale", torch.ones(1, 1, dtype=torch.uint8))]
    with pytest.raises(ValueError, match="a has only its weight, b has only its scale"):
        list(wide(weights))
