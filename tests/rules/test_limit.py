"""Values too large for an API server, or for a float: refused as what they are, and never a reason to raise."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_operator.engines.sglang.graph import PREFILL_MAX_CONTEXT
from epd_operator.engines.table import RULESETS
from epd_operator.engines.validation import validate
from epd_operator.rules.expression import Arithmetic, Const, Leaf, lift
from epd_operator.rules.flag import FlagSpec
from epd_operator.rules.limit import MOST_CHARACTERS, MOST_ITEMS
from epd_operator.rules.process import Process

HUGE = 10**400
LONG = "must be a whole number of at most 64 bits"
NUMBER = FlagSpec("n", type="int")
HUMAN = FlagSpec("h", type="human-int")
REAL = FlagSpec("r", type="float")
NUMBERS = FlagSpec("ns", type="int", nargs="+")
WORD = FlagSpec("w")
VALUES = st.one_of(
    st.sampled_from([HUGE, -HUGE, 2**63, 2**64, 1e308, math.nan, math.inf, -math.inf]),
    st.sampled_from(["9" * 400, "9" * 400 + "k", "9" * 5000, "9" * 5000 + "Ki", "0" * 5000 + "1", "1e999", "nan"]),
    st.sampled_from(['{"prefill": {"max_context_size": 1e999}}', '{"prefill": {"max_context_size": NaN}}']),
    st.sampled_from([f'{{"prefill": {{"max_context_size": {"9" * 400}}}}}', '{"decode": {"max_bs": 1e999}}']),
    st.sampled_from([[HUGE], [math.nan], ["9" * 400], [1] * (MOST_ITEMS + 1), "x" * (MOST_CHARACTERS + 1)]),
)


@pytest.mark.parametrize(
    ("spec", "value", "fault"),
    [
        (NUMBER, 2**63 - 1, None),
        (NUMBER, -(2**63), None),
        (NUMBER, 2**63, LONG),
        (NUMBER, -(2**63) - 1, LONG),
        (NUMBER, HUGE, LONG),
        (HUMAN, "9223372036854775807", None),
        (HUMAN, "9223372036854775808", LONG),
        (HUMAN, "9" * 400, LONG),
        (HUMAN, "9" * 5000 + "Ki", LONG),
        (HUMAN, "9999999T", LONG),
        (HUMAN, "9000000T", None),
        (REAL, 2**64, None),
        (REAL, HUGE, "must be a number"),
        (REAL, math.nan, "must be a number"),
        (NUMBERS, [1] * MOST_ITEMS, None),
        (NUMBERS, [1] * (MOST_ITEMS + 1), "must hold at most 512 values"),
        (NUMBERS, [1, HUGE], f"item 1: {LONG}"),
        (WORD, "é" * MOST_CHARACTERS, None),
        (WORD, "x" * (MOST_CHARACTERS + 1), "must have at most 32768 characters"),
    ],
)
def test_a_value_beyond_the_limits_has_a_fault(spec: FlagSpec, value: Any, fault: str | None) -> None:
    assert spec.fault(value) == fault


def _process(args: dict[str, Any], spec: dict[str, Any]) -> Process:
    return Process("prefill", "cuda-sm90", 0, args, {}, {}, {}, spec)


@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_field_beyond_64_bits_counts_as_absent(kind: Any) -> None:
    leaf = Leaf("spec", "a", kind)
    assert leaf.value(_process({}, {"a": 2**63 - 1})) == leaf.value(_process({}, {"a": 2**63 - 1})) is not None
    assert leaf.value(_process({}, {"a": 2**63})) is None
    assert leaf.value(_process({}, {"a": -HUGE})) is None


def test_arithmetic_beyond_a_float_gives_no_number() -> None:
    assert (Const(HUGE, "int") / 2).value(_process({}, {})) == 0.0
    assert (Leaf("flag", "a", "int") * 0.5).value(_process({"a": HUGE}, {})) is None
    assert isinstance(lift(2) * 3, Arithmetic)


def test_the_longest_context_is_what_the_json_says_and_the_flag_otherwise() -> None:
    def longest(**args: Any) -> Any:
        return PREFILL_MAX_CONTEXT.value(_process({name.replace("_", "-"): value for name, value in args.items()}, {}))

    assert longest(cuda_graph_prefill_max_context=5) == 5
    config = '{"prefill": {"max_context_size": %s}}'
    assert longest(cuda_graph_prefill_max_context=5, cuda_graph_config=config % "2.5") == 3
    assert longest(cuda_graph_prefill_max_context=5, cuda_graph_config=config % "null") is None
    assert longest(cuda_graph_prefill_max_context=5, cuda_graph_config="{}") == 5
    assert longest(cuda_graph_config=config % "1e999") == 0
    assert longest(cuda_graph_config=config % HUGE) == HUGE


FLAGS = sorted(
    spec.name for spec in RULESETS["SGLang"].catalogue("0.5.23", "prefill").flags.values() if spec.owner is None
)


LISTS = ["cuda-graph-bs-decode", "lora-paths", "log-requests-target", "bucket-e2e-request-latency"]
NUMERALS = ["context-length", "max-total-tokens", "cuda-graph-prefill-max-context", "hicache-size", "model-checksum"]


@given(
    st.dictionaries(st.sampled_from([*FLAGS, *LISTS * 20, *NUMERALS * 20]), VALUES, max_size=4),
    st.sampled_from([1, HUGE, math.inf, -1]),
)
def test_no_value_makes_judging_raise(args: dict[str, Any], amount: Any) -> None:
    role = {"args": args, "nodes": amount, "resources": {"gpu": amount, "memory": amount}}
    engine = {"type": "SGLang", "version": "0.5.23", "image": "a:1", "gpuMemoryGiB": amount}
    document = {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "a"},
        "spec": {"engine": engine, "model": {"path": "/m", "weightsGiBPerGpu": amount}, "roles": {"prefill": role}},
    }
    assert not validate(document).accepted
