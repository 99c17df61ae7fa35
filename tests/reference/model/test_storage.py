from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from epd_workers.reference.model.config import RELEASED
from epd_workers.reference.model.storage import parameter_shapes, stored


def block(prefix: str, experts: int) -> dict[str, tuple[int, ...]]:
    """What every layer and every draft stage has, by the published table."""
    wanted: dict[str, tuple[int, ...]] = {
        "attn.wq_a.weight": (1280, 5120),
        "attn.q_norm.weight": (1280,),
        "attn.wq_b.weight": (32768, 1280),
        "attn.wkv.weight": (512, 5120),
        "attn.kv_norm.weight": (512,),
        "attn.attn_sink": (64,),
        "attn.wo_a.weight": (8192, 4096),
        "attn.wo_b.weight": (5120, 8192),
        "attn_norm.weight": (5120,),
        "ffn_norm.weight": (5120,),
        "hc_attn_fn": (24, 20480),
        "hc_attn_base": (24,),
        "hc_attn_scale": (3,),
        "hc_ffn_fn": (24, 20480),
        "hc_ffn_base": (24,),
        "hc_ffn_scale": (3,),
        "ffn.gate.weight": (experts, 5120),
        "ffn.gate.bias": (experts,),
        "ffn.gate.bias_vl": (experts,),
    }
    for expert in [*(f"experts.{i}" for i in range(experts)), "shared_experts"]:
        wanted |= {
            f"ffn.{expert}.w1.weight": (2304, 5120),
            f"ffn.{expert}.w3.weight": (2304, 5120),
            f"ffn.{expert}.w2.weight": (5120, 2304),
        }
    return {f"{prefix}.{name}": shape for name, shape in wanted.items()}


def released() -> dict[str, tuple[int, ...]]:
    wanted: dict[str, tuple[int, ...]] = {
        "embed.weight": (129280, 5120),
        "norm.weight": (5120,),
        "head.weight": (129280, 5120),
        "image_start": (5120,),
        "image_newline": (5120,),
        "image_end": (5120,),
        "aligner.w1.weight": (5120, 9216),
        "aligner.w1.bias": (5120,),
        "aligner.w2.weight": (5120, 5120),
        "aligner.w2.bias": (5120,),
        "vision.patch_embed.proj.weight": (1024, 588),
        "vision.patch_embed.proj.bias": (1024,),
        "vision.norm.weight": (1024,),
        "mtp.0.main_proj.weight": (5120, 15360),
        "mtp.0.main_norm.weight": (5120,),
        "mtp.2.norm.weight": (5120,),
        "mtp.2.markov_head.embed.weight": (129280, 256),
        "mtp.2.markov_head.head.weight": (129280, 256),
        "mtp.2.confidence_head.proj.weight": (1, 5376),
    }
    for i in range(40):
        wanted |= block(f"layers.{i}", 384)
    for i in range(3):
        wanted |= block(f"mtp.{i}", 128)
    for i in (2, 8, 14, 20):
        wanted |= {
            f"layers.{i}.attn.compressor.wkv.weight": (512, 5120),
            f"layers.{i}.attn.compressor.norm.weight": (512,),
            f"layers.{i}.attn.indexer.wk.weight": (128, 512),
            f"layers.{i}.attn.indexer.k_norm.weight": (128,),
        }
    for i in (2, 8, 14):
        wanted[f"layers.{i}.attn.compressor.wgate.weight"] = (512, 5120)
    for i in (2, 8, 14, 20, 24, 28, 32, 36):
        wanted[f"layers.{i}.attn.indexer.wq_b.weight"] = (4096, 1280)
        wanted[f"layers.{i}.attn.indexer.weights_proj.weight"] = (32, 5120)
    for i, rows in ((1, 384_006_168), (14, 384_016_682)):
        wanted |= {
            f"layers.{i}.engram.embed.weight": (rows, 256),
            f"layers.{i}.engram.wkv.weight": (25600, 6144),
            f"layers.{i}.engram.q_weight": (4, 5120),
            f"layers.{i}.engram.k_weight": (4, 5120),
        }
    for i in range(32):
        wanted |= {
            f"vision.blocks.{i}.attn.wqkv.weight": (3072, 1024),
            f"vision.blocks.{i}.attn.wqkv.bias": (3072,),
            f"vision.blocks.{i}.attn.wo.weight": (1024, 1024),
            f"vision.blocks.{i}.attn.wo.bias": (1024,),
            f"vision.blocks.{i}.mlp.w1.weight": (5632, 1024),
            f"vision.blocks.{i}.mlp.w2.weight": (1024, 2816),
            f"vision.blocks.{i}.norm1.weight": (1024,),
            f"vision.blocks.{i}.norm2.weight": (1024,),
        }
    return wanted


def test_names_and_shapes_at_released_sizes() -> None:
    actual = parameter_shapes(RELEASED)
    assert actual == released()
    # Layers, draft stages, routed experts, tables, the vision tower: 763 billion values in all.
    assert sum(math.prod(shape) for shape in actual.values()) == 763_205_315_794


def test_stored_tensors_add_up_to_the_released_headers() -> None:
    counts: Counter[torch.dtype] = Counter()
    sizes: Counter[torch.dtype] = Counter()
    for dtype, shape in stored(RELEASED).values():
        counts[dtype] += 1
        sizes[dtype] += math.prod(shape) * dtype.itemsize
    assert counts == {
        torch.bfloat16: 520,
        torch.float32: 387,
        torch.float8_e4m3fn: 357,
        torch.float8_e8m0fnu: 47_589,
        torch.int8: 47_232,
    }
    assert sizes == {
        torch.bfloat16: 3_952_883_712,
        torch.float32: 169_229_128,
        torch.float8_e4m3fn: 204_015_223_296,
        torch.float8_e8m0fnu: 23_563_015_184,
        torch.int8: 278_585_671_680,
    }
    assert counts.total() == 96_085
    assert sizes.total() == 510_286_023_000


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("layers.0.attn.wq_b.weight", torch.float8_e4m3fn, (32768, 1280)),
        ("layers.0.attn.wq_b.scale", torch.float8_e8m0fnu, (1024, 40)),
        ("layers.0.attn.wo_a.scale", torch.float8_e8m0fnu, (256, 128)),
        ("layers.2.attn.indexer.wq_b.scale", torch.float8_e8m0fnu, (128, 40)),
        ("layers.5.ffn.experts.383.w1.weight", torch.int8, (2304, 2560)),
        ("layers.5.ffn.experts.383.w1.scale", torch.float8_e8m0fnu, (2304, 160)),
        ("layers.1.engram.embed.scale", torch.float8_e8m0fnu, (384_006_168, 8)),
        ("mtp.0.main_proj.scale", torch.float8_e8m0fnu, (160, 480)),
        ("layers.2.attn.compressor.wkv.weight", torch.bfloat16, (512, 5120)),
        ("layers.9.ffn.gate.bias_vl", torch.float32, (384,)),
        ("layers.9.hc_ffn_fn", torch.float32, (24, 20480)),
        ("vision.blocks.3.attn.wqkv.weight", torch.bfloat16, (3072, 1024)),
    ],
)
def test_dtypes_at_released_sizes(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert stored(RELEASED)[name] == (dtype, shape)
