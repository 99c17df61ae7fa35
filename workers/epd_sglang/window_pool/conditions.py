"""Which engines can use a pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What decides whether an engine can use a pool.

    Attributes:
        replays: Encoder bounded replay is on.
        folds: The rows of a replay run in front of the step's own.
        role: `null`, `prefill` or `decode`.
        attention_ranks: Ranks of attention data parallelism.
        staged_engram: Rows of Engram tables are gathered ahead of the step, replayed ones included.
    """

    replays: bool
    folds: bool
    role: str
    attention_ranks: int
    staged_engram: bool


def obstacles(facts: Facts) -> list[str]:
    """Why an engine uses no pool, each reason in a clause of its own; empty if it can."""
    reasons = {
        "encoder bounded replay is off (--enable-encoder-swa-bounded-replay)": not facts.replays,
        "the attention back end replays in a step of its own": facts.replays and not facts.folds,
        "decode takes its windows from prefill": facts.role == "decode",
        f"attention runs on {facts.attention_ranks} data-parallel ranks, which count replayed rows ahead of the step": (
            facts.attention_ranks > 1
        ),
        "Engram rows are staged on the host, replayed ones included": facts.staged_engram,
    }
    return [reason for reason, holds in reasons.items() if holds]
