"""The vision tower, the aligner and the span of one image in float64, from the formulas.

Sources: SGLang 0.5.23, models/deepseek_v41_vit.py; DeepSeek-V4.1-Flash inference/image_processing.py, revision
dba1be0a.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.model.oracle_parts import Weights, rms

NORM_EPS = 1e-6


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    """W x + b."""
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def turn_halves(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates value i of the first half against value i of the second by angle i: [patches, D], [patches, D / 2]."""
    half = x.shape[-1] // 2
    a, b = x[:, :half], x[:, half:]
    return torch.cat(
        [a * torch.cos(angles) - b * torch.sin(angles), b * torch.cos(angles) + a * torch.sin(angles)], dim=-1
    )


def grid_angles(height: int, width: int, head_dim: int, theta: float) -> Tensor:
    """[height * width, head_dim / 2]: row * f for the first quarter's frequencies, then column * f for the same."""
    rope = head_dim // 2
    freqs = [theta ** (-2 * i / rope) for i in range(rope // 2)]
    return torch.tensor(
        [[r * f for f in freqs] + [c * f for f in freqs] for r in range(height) for c in range(width)],
        dtype=torch.float64,
    )


def vision(config: dict[str, Any], w: Weights, patches: Tensor, height: int, width: int) -> Tensor:
    """The tower: patches [height * width, 3 * patch^2] row-major -> [height * width, vision hidden]."""
    cfg = config["vision_config"]
    heads, hidden = cfg["num_attention_heads"], cfg["hidden_size"]
    size = hidden // heads
    angles = grid_angles(height, width, size, cfg["rope_theta"])
    x = linear(patches, w, "vision.patch_embed.proj")
    for layer in range(cfg["num_hidden_layers"]):
        name = f"vision.blocks.{layer}"
        qkv = linear(rms(x, w[f"{name}.norm1.weight"], NORM_EPS), w, f"{name}.attn.wqkv")
        out = []
        for h in range(heads):
            q, k, v = (qkv[:, part * hidden + h * size : part * hidden + (h + 1) * size] for part in range(3))
            scores = turn_halves(q, angles) @ turn_halves(k, angles).T / math.sqrt(size)
            out.append(torch.softmax(scores, dim=-1) @ v)
        x = x + linear(torch.cat(out, dim=-1), w, f"{name}.attn.wo")
        both = rms(x, w[f"{name}.norm2.weight"], NORM_EPS) @ w[f"{name}.mlp.w1.weight"].T
        gate, up = both.chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ w[f"{name}.mlp.w2.weight"].T
    return rms(x, w["vision.norm.weight"], NORM_EPS)


def align(config: dict[str, Any], w: Weights, features: Tensor, height: int, width: int) -> Tensor:
    """The aligner: r x r neighbourhoods (zeros past the edge), channel-major, through w1, GELU, w2.

    [height * width, vision hidden] -> [ceil(height / r) * ceil(width / r), d].
    """
    r = config["vision_config"]["downsample_ratio"]
    channels = features.shape[-1]
    cells = []
    for top in range(0, height, r):
        for left in range(0, width, r):
            cell = torch.zeros(channels, r, r, dtype=torch.float64)
            for dy in range(min(r, height - top)):
                for dx in range(min(r, width - left)):
                    cell[:, dy, dx] = features[(top + dy) * width + left + dx]
            cells.append(cell.flatten())
    hidden = linear(torch.stack(cells), w, "aligner.w1")
    gelu = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return linear(gelu, w, "aligner.w2")


def span(config: dict[str, Any], w: Weights, patches: Tensor, height: int, width: int) -> Tensor:
    """All rows of one image: start, each grid row followed by newline, end: [h (w + 1) + 2, d]."""
    r = config["vision_config"]["downsample_ratio"]
    columns = -(-width // r)
    cells = align(config, w, vision(config, w, patches, height, width), height, width)
    rows = [w["image_start"]]
    for i, cell in enumerate(cells):
        rows.append(cell)
        if (i + 1) % columns == 0:
            rows.append(w["image_newline"])
    rows.append(w["image_end"])
    return torch.stack(rows)
