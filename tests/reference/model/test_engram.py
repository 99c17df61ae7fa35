from __future__ import annotations

import math
from dataclasses import replace

import torch

from epd_workers.reference.model.config import RELEASED, SHIPPED
from epd_workers.reference.model.engram import Engram
from epd_workers.reference.model.engram_hash import table_rows

TINY = replace(
    SHIPPED.text,
    hidden_size=6,
    hc_mult=3,
    engram_vocab_size=30,
    engram_n_heads=2,
    engram_head_dim=4,
    rms_norm_eps=1e-20,
)
TINY = replace(TINY, engram_num_embeddings=table_rows(TINY))


def made(dtype: torch.dtype) -> Engram:
    torch.manual_seed(5)
    module = Engram(TINY, 1).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    streams = torch.randn(2, 5, 3, 6, dtype=torch.float64).to(dtype)
    indices = torch.randint(0, TINY.engram_num_embeddings[0], (2, 5, 6))
    image = torch.zeros(2, 5, dtype=torch.bool)
    image[0, 2] = image[1, 4] = True
    return streams, indices, image


def test_equals_the_formula_in_plain_python() -> None:
    module = made(torch.float64)
    streams, indices, image = inputs(torch.float64)
    actual = module(streams, indices, image)
    table, wkv = module.embed.weight.tolist(), module.wkv.weight.tolist()
    q, k = module.q_weight.tolist(), module.k_weight.tolist()
    for b in range(2):
        for p in range(5):
            rows = [value for column in indices[b, p].tolist() for value in table[column]]
            projected = [sum(w * r for w, r in zip(line, rows, strict=True)) for line in wkv]
            value = projected[18:24]
            for s in range(3):
                stream, key = streams[b, p, s].tolist(), projected[6 * s : 6 * s + 6]
                dot = sum(r * a * c * e for r, a, c, e in zip(stream, q[s], k[s], key, strict=True))
                dot /= math.sqrt(sum(r * r for r in stream) / 6 + 1e-20) * math.sqrt(
                    sum(e * e for e in key) / 6 + 1e-20
                )
                dot /= math.sqrt(6)
                gate = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)))
                gate = 0.0 if image[b, p] else gate
                wanted = [r + gate * v for r, v in zip(stream, value, strict=True)]
                torch.testing.assert_close(
                    actual[b, p, s], torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12
                )


def test_image_positions_are_left_alone() -> None:
    streams, indices, image = inputs(torch.float64)
    actual = made(torch.float64)(streams, indices, image)
    assert torch.equal(actual[image], streams[image])
    assert not torch.isclose(actual[~image], streams[~image]).any(dim=-1).all()


def test_float32_trains_every_parameter_with_finite_slopes() -> None:
    module = made(torch.float32)
    streams, indices, image = inputs(torch.float32)
    streams[1, 0] = 0  # a stream of zeros has no direction
    module(streams.requires_grad_(), indices, image).square().sum().backward()
    for parameter in (*module.parameters(), streams):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0
    assert not module.embed.weight.grad.is_sparse  # type: ignore[union-attr] # there is a gradient


def test_slopes_equal_finite_differences() -> None:
    module = made(torch.float64)
    streams, indices, image = inputs(torch.float64)
    assert torch.autograd.gradcheck(lambda s: module(s, indices, image), (streams.requires_grad_(),))


def test_the_released_table_needs_no_memory_on_the_meta_device() -> None:
    with torch.device("meta"):
        modules = [Engram(RELEASED.text, layer) for layer in RELEASED.text.engram_layer_ids]
    shapes = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
    rest = {"wkv.weight": (25600, 6144), "q_weight": (4, 5120), "k_weight": (4, 5120)}
    assert shapes == [{"embed.weight": (384006168, 256), **rest}, {"embed.weight": (384016682, 256), **rest}]
