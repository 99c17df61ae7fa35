"""The vision tower, the aligner and the span against an oracle of loops over Python floats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.model.config import RELEASED, SHIPPED, VisionConfig
from epd_workers.reference.model.vision import Aligner, Vision, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

Row = list[float]
CALM = settings(max_examples=20)
GRIDS = st.tuples(st.integers(1, 4), st.integers(1, 4))
SEEDS = st.integers(0, 10**6)


@st.composite
def configs(draw: Callable[..., Any]) -> VisionConfig:
    heads = draw(st.integers(1, 3))
    return VisionConfig(
        num_hidden_layers=draw(st.integers(1, 2)),
        hidden_size=heads * 4 * draw(st.integers(1, 2)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(1, 7)),
        patch_size=draw(st.integers(1, 2)),
        rope_theta=float(draw(st.sampled_from((10, 10000)))),
        downsample_ratio=draw(st.integers(1, 3)),
    )


def fill(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.6, generator=generator)


class Loops:
    """The formulas of the docstrings, one number at a time."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {name: parameter.tolist() for name, parameter in module.named_parameters()}

    def linear(self, name: str, row: Row) -> Row:
        out = [sum(w * x for w, x in zip(line, row, strict=True)) for line in self.weights[f"{name}.weight"]]
        bias = self.weights.get(f"{name}.bias", [0.0] * len(out))
        return [a + b for a, b in zip(out, bias, strict=True)]

    def norm(self, name: str, row: Row) -> Row:
        size = math.sqrt(sum(x * x for x in row) / len(row) + 1e-6)
        return [x / size * w for x, w in zip(row, self.weights[f"{name}.weight"], strict=True)]

    def tower(self, patches: list[Row], wide: int, config: VisionConfig) -> list[Row]:
        rows = [self.linear("patch_embed.proj", patch) for patch in patches]
        for i in range(config.num_hidden_layers):
            mixed = self.attention(f"blocks.{i}.attn", [self.norm(f"blocks.{i}.norm1", r) for r in rows], wide, config)
            rows = [added(row, self.linear(f"blocks.{i}.attn.wo", m)) for row, m in zip(rows, mixed, strict=True)]
            rows = [added(row, self.mlp(f"blocks.{i}.mlp", self.norm(f"blocks.{i}.norm2", row))) for row in rows]
        return [self.norm("norm", row) for row in rows]

    def mlp(self, name: str, row: Row) -> Row:
        both = self.linear(f"{name}.w1", row)
        half = len(both) // 2
        return self.linear(f"{name}.w2", [g / (1 + math.exp(-g)) * u for g, u in zip(both, both[half:], strict=False)])

    def attention(self, name: str, rows: list[Row], wide: int, config: VisionConfig) -> list[Row]:
        hidden, size = config.hidden_size, config.hidden_size // config.num_attention_heads
        projected = [self.linear(f"{name}.wqkv", row) for row in rows]
        out: list[Row] = [[] for _ in rows]
        for head in range(config.num_attention_heads):
            starts = [part * hidden + head * size for part in range(3)]
            query, key, value = ([row[start : start + size] for row in projected] for start in starts)
            query, key = (
                [turned(r, *divmod(n, wide), config.rope_theta) for n, r in enumerate(x)] for x in (query, key)
            )
            for n, q in enumerate(query):
                weights = [math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(size)) for k in key]
                total = sum(weights)
                out[n] += [sum(w * v[i] for w, v in zip(weights, value, strict=True)) / total for i in range(size)]
        return out

    def aligner(self, rows: list[Row], high: int, wide: int, ratio: int) -> list[Row]:
        out = []
        for top in range(0, high, ratio):
            for left in range(0, wide, ratio):
                cell = []
                for channel in range(len(rows[0])):
                    for line in range(top, top + ratio):
                        for column in range(left, left + ratio):
                            inside = line < high and column < wide
                            cell.append(rows[line * wide + column][channel] if inside else 0.0)
                hidden = [x / 2 * (1 + math.erf(x / math.sqrt(2))) for x in self.linear("w1", cell)]
                out.append(self.linear("w2", hidden))
        return out


def added(a: Row, b: Row) -> Row:
    return [x + y for x, y in zip(a, b, strict=True)]


def turned(row: Row, line: int, column: int, theta: float) -> Row:
    """Half of the angles count lines, half columns; the i-th turns values i and i + half a head."""
    half, quarter = len(row) // 2, len(row) // 4
    out = list(row)
    for i in range(half):
        angle = (line if i < quarter else column) * theta ** (-(i % quarter) / quarter)
        out[i] = row[i] * math.cos(angle) - row[i + half] * math.sin(angle)
        out[i + half] = row[i + half] * math.cos(angle) + row[i] * math.sin(angle)
    return out


@CALM
@given(configs(), GRIDS, SEEDS)
def test_tower_and_aligner_equal_the_loops(config: VisionConfig, grid: tuple[int, int], seed: int) -> None:
    high, wide = grid
    tower, aligner = Vision(config), Aligner(config, 5)
    fill(tower, seed)
    fill(aligner, seed + 1)
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(1, high * wide, 3 * config.patch_size**2, dtype=torch.float64, generator=generator)
    rows = tower(patches, grid)
    expected = Loops(tower).tower(patches[0].tolist(), wide, config)
    torch.testing.assert_close(rows[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    cells = aligner(rows, grid)
    joined = Loops(aligner).aligner(expected, high, wide, config.downsample_ratio)
    torch.testing.assert_close(cells[0], torch.tensor(joined, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@CALM
@given(configs(), GRIDS, st.integers(2, 4), SEEDS)
def test_a_batch_equals_its_pictures(config: VisionConfig, grid: tuple[int, int], batch: int, seed: int) -> None:
    tower, aligner = Vision(config), Aligner(config, 5)
    fill(tower, seed)
    fill(aligner, seed + 1)
    patches = torch.randn(batch, grid[0] * grid[1], 3 * config.patch_size**2, dtype=torch.float64)
    together = aligner(tower(patches, grid), grid)
    for picture, rows in zip(patches, together, strict=True):
        torch.testing.assert_close(rows, aligner(tower(picture[None], grid), grid)[0], rtol=1e-10, atol=1e-12)


@CALM
@given(GRIDS, st.lists(st.integers(1, 3), max_size=2), st.integers(1, 3))
def test_span(cells: tuple[int, int], lead: list[int], dim: int) -> None:
    high, wide = cells
    rows = torch.randn(*lead, high * wide, dim)
    start, newline, end = torch.randn(3, dim)
    actual = span(rows, cells, start, newline, end)
    assert actual.shape == (*lead, high * (wide + 1) + 2, dim)
    for spanned, picture in zip(
        actual.reshape(-1, *actual.shape[-2:]), rows.reshape(-1, *rows.shape[-2:]), strict=True
    ):
        expected = [start]
        for line in range(high):
            expected += [*picture[line * wide : (line + 1) * wide], newline]
        assert torch.equal(spanned, torch.stack([*expected, end]))


def test_every_parameter_learns() -> None:
    tower, aligner = Vision(SHIPPED.vision), Aligner(SHIPPED.vision, 16)
    marks = torch.randn(3, 16, requires_grad=True)
    rows = aligner(tower(torch.randn(2, 20, 588), (4, 5)), (4, 5))
    inputs = (*tower.parameters(), *aligner.parameters(), marks)
    for gradient in torch.autograd.grad(span(rows, (2, 2), *marks).square().sum(), inputs):
        assert gradient.abs().sum() > 0


def test_released_shapes() -> None:
    with torch.device("meta"):
        tower, aligner = Vision(RELEASED.vision), Aligner(RELEASED.vision, RELEASED.text.hidden_size)
    shapes = {name: tuple(parameter.shape) for name, parameter in tower.named_parameters()}
    assert {n: s for n, s in shapes.items() if not n.startswith("blocks.") or n.startswith("blocks.31.")} == {
        "patch_embed.proj.weight": (1024, 588),
        "patch_embed.proj.bias": (1024,),
        "blocks.31.norm1.weight": (1024,),
        "blocks.31.attn.wqkv.weight": (3072, 1024),
        "blocks.31.attn.wqkv.bias": (3072,),
        "blocks.31.attn.wo.weight": (1024, 1024),
        "blocks.31.attn.wo.bias": (1024,),
        "blocks.31.norm2.weight": (1024,),
        "blocks.31.mlp.w1.weight": (5632, 1024),
        "blocks.31.mlp.w2.weight": (1024, 2816),
        "norm.weight": (1024,),
    }
    assert len(shapes) == 3 + 32 * 8
    assert {name: tuple(parameter.shape) for name, parameter in aligner.named_parameters()} == {
        "w1.weight": (5120, 9216),
        "w1.bias": (5120,),
        "w2.weight": (5120, 5120),
        "w2.bias": (5120,),
    }
    cells = aligner(tower(torch.empty(1, 69 * 122, 588, device="meta"), (69, 122)), (69, 122))
    assert cells.shape == (1, 23 * 41, 5120)


@pytest.mark.parametrize("shape", [(1, 5, 588), (6, 588), (1, 1, 6, 588)])
def test_a_picture_that_is_not_its_grid_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \[B, 6, n\] for grid 2x3"):
        Vision(SHIPPED.vision)(torch.zeros(shape), (2, 3))
