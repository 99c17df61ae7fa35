"""Choosing a token from logits: pure, and the same wherever it runs.

Random numbers are a hash of (seed, index of the token), so there is no generator state to hand from prefill to decode.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from epd_workers.reference.engine.request import Sampling

_GREEDY = 1e-5  # temperatures below only move the overflow closer


class History:
    """Which tokens occurred: what the penalties look at."""

    def __init__(self, vocab_size: int, prompt: Iterable[int]) -> None:
        self.counts: NDArray[np.int64] = np.zeros(vocab_size, dtype=np.int64)
        self.seen: NDArray[np.bool_] = np.zeros(vocab_size, dtype=np.bool_)
        self.seen[list(set(prompt))] = True

    def add(self, token_id: int) -> None:
        """Count one token of the answer."""
        self.counts[token_id] += 1
        self.seen[token_id] = True


def uniform(seed: int, index: int) -> float:
    """In [0, 1), with 53 random bits."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-probabilities [vocab]."""
    shifted = logits - logits.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def penalize(logits: NDArray[np.float64], sampling: Sampling, history: History) -> NDArray[np.float64]:
    """Logits after repetition, frequency and presence penalties [vocab]."""
    if sampling.repetition_penalty != 1:
        factor = sampling.repetition_penalty
        scaled = np.where(logits > 0, logits / factor, logits * factor)
        logits = np.where(history.seen, scaled, logits)
    if sampling.frequency_penalty or sampling.presence_penalty:
        logits = logits - sampling.frequency_penalty * history.counts - sampling.presence_penalty * (history.counts > 0)
    return logits


def choose(logits: NDArray[np.float64], sampling: Sampling, draw: float) -> int:
    """One token id.

    top_k, top_p and min_p each look at the probabilities after temperature; what all three keep is drawn from.

    Args:
        logits: [vocab], after penalties; -inf bars a token.
        sampling: The request's parameters.
        draw: Uniform in [0, 1).
    """
    if sampling.temperature < _GREEDY:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    probabilities = np.exp(log_softmax(logits[order] / sampling.temperature))
    before = np.cumsum(probabilities) - probabilities
    keep = (before < sampling.top_p) & (probabilities >= sampling.min_p * probabilities[0])
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    keep[0] = True
    mass = np.cumsum(np.where(keep, probabilities, 0.0))
    position = int(np.searchsorted(mass, draw * mass[-1], side="right"))
    return int(order[min(position, int(np.flatnonzero(keep)[-1]))])


def ranked(logprobs: NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most likely (id, log-probability), most likely first, equal ones by id."""
    return tuple((int(i), float(logprobs[i])) for i in np.argsort(-logprobs, kind="stable")[:count])
