"""The DSpark draft block in float64, from the formulas.

Sources: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a; parameter names: SGLang 0.5.23,
models/deepseek_v4_dspark.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.reference.model.oracle_parts import (
    Weights,
    attend,
    collapse,
    expand,
    frequencies,
    mix,
    moe,
    output,
    queries,
    rms,
    window_rows,
)

if TYPE_CHECKING:
    from tests.reference.model.oracle_formats import KvMode
    from tests.reference.model.oracle_text import Trace


@dataclass(frozen=True)
class Draft:
    """One drafted block: ids [block], logits [block, vocab] with the Markov term, raw confidences [block]."""

    ids: list[int]
    logits: Tensor
    confidence: Tensor


def features(config: dict[str, Any], w: Weights, trace: Trace, positions: list[int]) -> Tensor:
    """main_norm(main_proj(means of the streams at the inputs of the target layers)): [positions, d]."""
    text = config["text_config"]
    means = [trace.layers[layer].inputs[positions].mean(1) for layer in text["dspark_target_layer_ids"]]
    main = torch.cat(means, dim=-1) @ w["mtp.0.main_proj.weight"].T
    return rms(main, w["mtp.0.main_norm.weight"], text["rms_norm_eps"])


def context(config: dict[str, Any], w: Weights, trace: Trace, last: int, kv: KvMode = "fp4") -> list[Tensor]:
    """Each stage's ring after position `last`: its rows max(0, last - W + 1)..last, [rows, head_dim]."""
    text = config["text_config"]
    positions = list(range(max(0, last + 1 - text["sliding_window"]), last + 1))
    main, freqs = features(config, w, trace, positions), frequencies(text, 0)
    assert not torch.isnan(main).any(), "a ring row's target layers never ran"
    return [
        window_rows(main, positions, text, w, f"mtp.{stage}.attn", freqs, kv)
        for stage in range(text["num_nextn_predict_layers"])
    ]


def draft(config: dict[str, Any], w: Weights, trace: Trace, last: int, sampled: int, kv: KvMode = "fp4") -> Draft:
    """Drafts a block behind position `last` from the token sampled there.

    Args:
        config: The released config.json structure, with at least one draft stage.
        w: float64 tensors under the released names.
        trace: A run whose target layers ran on the ring's rows.
        last: The last processed position p; the block sits at p + 1, p + 2, ...
        sampled: The token that the target chose for p + 1.
        kv: The cache formats.

    Returns:
        Greedy choices and what they were made from.
    """
    text = config["text_config"]
    size, stages, n = text["dspark_block_size"], text["num_nextn_predict_layers"], text["hc_mult"]
    eps, freqs, positions = text["rms_norm_eps"], frequencies(text, 0), list(range(last + 1, last + 1 + size))
    rings = context(config, w, trace, last, kv)
    block = [sampled] + [text["dspark_noise_token_id"]] * (size - 1)
    streams = torch.stack([torch.stack([w["embed.weight"][t]] * n) for t in block])
    pre = torch.zeros(size, n, dtype=torch.float64)
    pre[:, 0] = 1
    for stage in range(stages):
        name = f"mtp.{stage}"
        x = rms(collapse(streams, pre), w[f"{name}.attn_norm.weight"], eps)
        site = mix(streams, text, w, f"{name}.hc_attn")
        _, q = queries(x, positions, text, w, f"{name}.attn", freqs)
        keys = torch.cat([rings[stage], window_rows(x, positions, text, w, f"{name}.attn", freqs, kv)])
        heads = attend(q, keys, torch.ones(size, len(keys), dtype=torch.bool), w[f"{name}.attn.attn_sink"])
        streams = expand(streams, output(heads, positions, text, w, f"{name}.attn", freqs), site)
        x = rms(collapse(streams, site.pre), w[f"{name}.ffn_norm.weight"], eps)
        site = mix(streams, text, w, f"{name}.hc_ffn")
        y = moe(x, [False] * size, text, w, f"{name}.ffn", text["dspark_num_experts_per_tok"])
        streams, pre = expand(streams, y, site), site.pre
    h = collapse(streams, pre)
    return _choose(h, w, f"mtp.{stages - 1}", sampled, eps)


def _choose(h: Tensor, w: Weights, name: str, sampled: int, eps: float) -> Draft:
    """Greedy choices left to right, each conditioned on the one before through the Markov head."""
    base = rms(h, w[f"{name}.norm.weight"], eps) @ w["head.weight"].T
    ids, logits, confidence, previous = [], [], [], sampled
    for i in range(h.shape[0]):
        latent = w[f"{name}.markov_head.embed.weight"][previous]
        logits.append(base[i] + w[f"{name}.markov_head.head.weight"] @ latent)
        confidence.append(w[f"{name}.confidence_head.proj.weight"][0] @ torch.cat([h[i], latent]))
        previous = int(logits[-1].argmax())
        ids.append(previous)
    return Draft(ids, torch.stack(logits), torch.stack(confidence))
