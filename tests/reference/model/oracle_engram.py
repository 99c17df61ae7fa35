"""Engram: hashed n-grams of the compressed ids, gated into the streams.

Source: DeepSeek-V4.1-Flash inference/engram.py, revision dba1be0a.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.reference.model.oracle_parts import Weights, rms


def is_prime(n: int) -> bool:
    """Trial division."""
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def table_primes(layers: int, orders: int, heads: int, floor: int) -> list[list[list[int]]]:
    """Table sizes [layer][order][head]: every (layer, order) takes the smallest primes from `floor` not taken yet."""
    used: set[int] = set()
    tables = []
    for _ in range(layers):
        by_order = []
        for _ in range(orders):
            actual: list[int] = []
            n = floor
            while len(actual) < heads:
                if n not in used and is_prime(n):
                    actual.append(n)
                    used.add(n)
                n += 1
            by_order.append(actual)
        tables.append(by_order)
    return tables


def primes_of(text: dict[str, Any]) -> list[list[list[int]]]:
    """The table sizes of a text config."""
    return table_primes(
        len(text["engram_layer_ids"]),
        text["engram_max_ngram_size"] - 1,
        text["engram_n_heads"],
        text["engram_vocab_size"],
    )


def rows_of(
    text: dict[str, Any], layer: int, ids: list[int], image: list[bool], token_map: list[int]
) -> list[list[int]]:
    """The table rows [position][column] that a layer reads."""
    span = text["engram_max_ngram_size"]
    bound = (2**63 - 1) // text["engram_compressed_vocab_size"] // 2
    drawn = np.random.default_rng(10007 * layer).integers(0, bound, size=span)
    multipliers = [2 * int(m) + 1 for m in drawn]
    primes = primes_of(text)[text["engram_layer_ids"].index(layer)]
    pad = token_map[text["engram_pad_token_id"]]
    rows = []
    for p in range(len(ids)):
        history, blocked = [], False
        for s in range(span):
            blocked = blocked or p < s or image[p - s]
            history.append(pad if blocked else token_map[ids[p - s]])
        columns, offset, mixed = [], 0, history[0] * multipliers[0]
        for s in range(1, span):
            mixed ^= history[s] * multipliers[s]
            for prime in primes[s - 1]:
                columns.append(offset + mixed % prime)
                offset += prime
        rows.append(columns)
    return rows


def engram(
    streams: Tensor, rows: list[list[int]], image: list[bool], text: dict[str, Any], w: Weights, name: str
) -> Tensor:
    """Adds the gated n-gram value to every stream of the text positions: [rows, n, d] -> [rows, n, d]."""
    n, d, eps = text["hc_mult"], text["hidden_size"], text["rms_norm_eps"]
    read = w[f"{name}.embed.weight"][torch.tensor(rows)].reshape(len(rows), -1)
    vectors = (read @ w[f"{name}.wkv.weight"].T).reshape(len(rows), n + 1, d)
    value = vectors[:, n]
    keep = 1 - torch.tensor(image, dtype=torch.float64)
    out = streams.clone()
    for k in range(n):
        query = rms(streams[:, k], w[f"{name}.q_weight"][k], eps)
        key = rms(vectors[:, k], w[f"{name}.k_weight"][k], eps)
        dot = (query * key).sum(-1) / math.sqrt(d)
        gate = torch.sigmoid(torch.sign(dot) * torch.sqrt(dot.abs().clamp(min=1e-6))) * keep
        out[:, k] = out[:, k] + gate[:, None] * value
    return out
