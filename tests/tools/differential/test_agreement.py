"""Our rules against the real engine: the same verdict on every command line, for the same reason."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.differential import environment
from tools.differential.comparison import Comparison, compare, disagreements, function
from tools.differential.generator import PLATFORMS, Case, cases
from tools.differential.oracle import Answer, Oracle
from tools.differential.shrinking import shrink_all
from tools.differential.vocabulary import ALIASES

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = Path(environment.__file__).parent / "data"
SHOWN = 5
# Every function of the engine that the facts about SGLang 0.5.23 name as the one that refuses.
DECIDING = """
    argparse
    cuda_graph_config.parse_cuda_graph_backend_arg
    deepseek_v4_hook.apply_deepseek_v4_defaults
    deepseek_v4_hook.validate_deepseek_v41_encoder_replay_budget
    deepseek_v4_hook.validate_deepseek_v41_features
    deepseek_v4_hook.validate_deepseek_v4_cp
    hicache_hook.handle_hicache
    hicache_hook.resolve_hicache_dcp_compatibility
    hicache_hook.validate_hicache_host_memory_mode
    kv_cache_hook.handle_cache_compatibility
    kv_cache_hook.handle_page_major_kv_layout
    kv_shard_hook.validate_kv_shard_attention_backend
    mega_moe_hook.check_mega_moe_compat
    mega_moe_hook.validate_mega_moe_token_budget
    model_hook.handle_language_model_only
    moe_hook.handle_a2a_moe
    overrides._deepseek_v4_kv_cache_dtype
    parallel_hook.handle_data_parallelism
    parallel_hook.handle_decode_context_parallelism
    parallel_hook.handle_dwdp
    pd_disaggregation_hook._validate_prefill_complete
    pd_disaggregation_hook.handle_encoder_disaggregation
    pd_disaggregation_hook.handle_pd_disaggregation
    speculative_hook._handle_dspark
    speculative_hook.handle_speculative_decoding
    validation_hook.check_server_args
    validation_hook.check_watermark_server_args
    validation_hook.validate_ib_devices
    validation_hook.validate_response_store
"""
# Two more decide without refusing: the layout that was asked for becomes another one.
LAYOUTS = {
    "hicache_hook.resolve_storage_layout_compatibility": ("layer_first", "page_first"),
    "hicache_hook.resolve_layout_io_compatibility": ("page_first", "page_first_direct"),
}


@dataclass(frozen=True)
class Run:
    """Fresh command lines with the engine's answers."""

    seed: int
    cases: Sequence[Case]
    answers: Sequence[Answer]

    @property
    def again(self) -> str:
        return f"EPD_SEED={self.seed} draws the same lines again"


def ask(oracle: Oracle, count: int, seed: int) -> Run:
    chosen = int(os.environ.get("EPD_SEED") or seed)
    sys.stdout.write(f"EPD_SEED={chosen}\n")
    drawn = cases(chosen, count)
    return Run(chosen, drawn, oracle.ask(drawn))


@pytest.fixture(scope="session")
def everyday(oracle: Oracle) -> Run:
    """Lines that recorded verdicts do not hold, the same ones on every run: the same tree gets the same verdict."""
    return ask(oracle, 300, seed=1)


@pytest.fixture(scope="session")
def nightly(oracle: Oracle) -> Run:
    """Other lines every night."""
    return ask(oracle, 2000, seed=time.time_ns() // 1000 % 1_000_000)


def given() -> list[tuple[Case, Answer]]:
    rows = map(json.loads, (DATA / "verdicts.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        (
            Case(row["id"], row["platform"], tuple(row["argv"]), row["env"], row.get("config")),
            Answer(row["accepted"], row["error"], row["stage"], row["decided_by"], row.get("resolved", {})),
        )
        for row in rows
    ]


def explain(actual: Sequence[Comparison], total: int, engine: Oracle | None = None) -> str:
    """One disagreement of each kind, shrunk when there is an engine to ask."""
    kinds = Counter(one.kind for one in actual)
    shown = list({one.kind: one for one in actual}.values())[:SHOWN]
    shown = shrink_all(shown, engine) if engine else shown
    examples = (f"{kinds[one.kind]} x {one.kind}:\n{one}" for one in shown)
    return "\n".join((f"{len(actual)} of {total} disagree, in {len(kinds)} ways", *examples))


def agree(run: Run, oracle: Oracle) -> None:
    actual = disagreements(compare(run.cases, run.answers))
    assert not actual, f"{explain(actual, len(run.cases), oracle)}\n{run.again}"


def share_accepted(run: Run) -> dict[str, float]:
    by_platform = defaultdict(list)
    for case, answer in zip(run.cases, run.answers, strict=True):
        by_platform[case.platform].append(bool(answer.accepted))
    return {platform: sum(accepted) / len(accepted) for platform, accepted in by_platform.items()}


def test_every_given_line_gets_the_engines_verdict() -> None:
    rows = given()
    assert len(rows) == 488
    wrong = [one for one in compare(*zip(*rows, strict=True)) if not one.agrees]
    assert not wrong, explain(wrong, len(rows))


def test_every_given_refusal_has_the_engines_reason() -> None:
    refused = [(case, answer) for case, answer in given() if answer.raised_by]
    assert len(refused) == 219
    wrong = [one for one in compare(*zip(*refused, strict=True)) if not one.reason_found]
    assert not wrong, explain(wrong, len(refused))


def test_the_engine_still_says_what_it_said(oracle: Oracle) -> None:
    """Guards the harness: the given answers were made with an earlier one."""
    rows = given()[::7]
    answers = oracle.ask([case for case, _ in rows])
    for (case, before), now in zip(rows, answers, strict=True):
        assert (now.accepted, now.error, now.stage) == (before.accepted, before.error, before.stage), case
        assert {name: now.resolved[name] for name in before.resolved} == before.resolved, case


def test_fresh_lines_get_the_engines_verdict(everyday: Run, oracle: Oracle) -> None:
    agree(everyday, oracle)


def test_fresh_lines_are_neither_all_right_nor_all_wrong(everyday: Run) -> None:
    # A hundred a platform: four standard deviations to each side of the half.
    assert all(0.3 <= share <= 0.7 for share in share_accepted(everyday).values()), share_accepted(everyday)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_many_fresh_lines_get_the_engines_verdict(nightly: Run, oracle: Oracle) -> None:
    agree(nightly, oracle)


@pytest.mark.nightly
def test_many_fresh_lines_are_half_right(nightly: Run) -> None:
    shares = share_accepted(nightly)
    assert set(shares) == set(PLATFORMS)
    assert all(0.4 <= share <= 0.6 for share in shares.values()), f"{shares}\n{nightly.again}"


@pytest.mark.nightly
def test_every_flag_is_drawn(nightly: Run) -> None:
    drawn = {word.partition("=")[0] for case in nightly.cases for word in case.argv}
    wanted = set((DATA / "flags.txt").read_text(encoding="utf-8").split())
    missed = {flag for flag in wanted if not drawn & {flag, *ALIASES.get(flag, ())}}
    assert not missed, nightly.again


@pytest.mark.nightly
def test_every_deciding_function_is_hit(nightly: Run) -> None:
    hit = Counter(function(answer.raised_by) for answer in nightly.answers)
    for case, answer in zip(nightly.cases, nightly.answers, strict=True):
        for name, (asked, became) in LAYOUTS.items():
            hit[name] += asked in case.argv and answer.resolved.get("hicache_mem_layout") == became
    missed = [name for name in (*DECIDING.split(), *LAYOUTS) if not hit[name]]
    assert not missed, nightly.again
