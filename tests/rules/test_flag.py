"""Values of flags as a spec gives them, and names as users misspell them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from epd_operator.rules.flag import Catalogue, FlagSpec, Unreadable

GRAPH = '{"prefill": {"backend": "breakable", "max_bs": 8}, "decode": {"bs": [1, 2]}}'


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (FlagSpec("f", type="bool", switch=True), False),
        (FlagSpec("f", type="int"), -1),
        (FlagSpec("f", type="human-int"), 1000),
        (FlagSpec("f", type="human-int"), "25.6k"),
        (FlagSpec("f", type="human-int"), "4Ki"),
        (FlagSpec("f", type="float"), 2),
        (FlagSpec("f", type="float"), 0.9),
        (FlagSpec("f"), ""),
        (FlagSpec("f"), "-dashed"),
        (FlagSpec("f", choices=("a", "b")), "b"),
        (FlagSpec("f", type="int", choices=(0, 2)), 2),
        (FlagSpec("f", type="int", nargs="+"), [1, 2]),
        (FlagSpec("f", type="int", nargs="+"), 1),
        (FlagSpec("f", nargs="*"), []),
        (FlagSpec("f", nargs="?"), ""),
        (FlagSpec("f", type="json"), '{"image": 4}'),
        (FlagSpec("f", type="strict-json"), "[1]"),
        (FlagSpec("f", type="graph-config"), GRAPH),
        (FlagSpec("f", type="graph-backend", choices=("full",)), "full"),
        (FlagSpec("f", type="lora", nargs="*"), ["name=path", '{"lora_name": "a", "lora_path": "b"}']),
        (FlagSpec("f", type="log-level"), "WARN"),
    ],
)
def test_a_value_of_the_type_has_no_fault(spec: FlagSpec, value: Any) -> None:
    assert spec.fault(value) is None


@pytest.mark.parametrize(
    ("spec", "value", "says"),
    [
        (FlagSpec("f", type="bool", switch=True), "true", "must be true or false"),
        (FlagSpec("f", type="bool", switch=True), 1, "must be true or false"),
        (FlagSpec("f", type="int"), "4", "must be a whole number"),
        (FlagSpec("f", type="int"), True, "must be a whole number"),
        (FlagSpec("f", type="int"), 4.0, "must be a whole number"),
        (FlagSpec("f", type="int"), None, "must be a whole number"),
        (FlagSpec("f", type="int"), {"a": 1}, "must be a whole number"),
        (FlagSpec("f", type="human-int"), "1K", 'must be a whole number or a form such as "1k", "1.5M" or "4Ki"'),
        (FlagSpec("f", type="human-int"), "1.5Ki", "must be whole before Ki"),
        (FlagSpec("f", type="human-int"), 1.5, 'must be a whole number or a string such as "1k"'),
        (FlagSpec("f", type="float"), "0.9", "must be a number"),
        (FlagSpec("f", type="float"), math.nan, "must be a number"),
        (FlagSpec("f", type="float"), math.inf, "must be a number"),
        (FlagSpec("f"), 5, "must be a string"),
        (FlagSpec("f"), "--", "must not be two dashes"),
        (FlagSpec("f", choices=("a", "b")), "c", "must be one of a, b"),
        (FlagSpec("f", choices=("a", "b")), 1, "must be one of a, b"),
        (FlagSpec("f", type="int", choices=(0, 2)), 1, "must be one of 0, 2"),
        (FlagSpec("f", type="int"), [1], "must be a whole number, not a list"),
        (FlagSpec("f", nargs="?"), ["a"], "must be a string, not a list"),
        (FlagSpec("f", type="int", nargs="+"), [], "must hold at least one value"),
        (FlagSpec("f", type="int", nargs="+"), [1, "2"], "item 1: must be a whole number"),
        (FlagSpec("f", nargs="+"), ["-x"], "item 0: must not start with a dash"),
        (FlagSpec("f", nargs="+"), [["a"]], "item 0: must be a string"),
        (FlagSpec("f", type="json"), {"image": 4}, "must be a string that holds JSON"),
        (FlagSpec("f", type="json"), "{", "must be a string that holds JSON"),
        (FlagSpec("f", type="json"), "[" * 10_000, "must be a string that holds JSON"),
        (FlagSpec("f", type="strict-json"), "[NaN]", "must be a string that holds JSON"),
        (FlagSpec("f", type="graph-config"), "[]", "must be a JSON object with prefill or decode"),
        (FlagSpec("f", type="graph-config"), '{"x": {}}', 'must be a JSON object with prefill or decode, not "x"'),
        (FlagSpec("f", type="graph-config"), '{"decode": 1}', "must be a JSON object whose decode is an object"),
        (
            FlagSpec("f", type="graph-config"),
            '{"decode": {"max_seq_len": 1}}',
            'must be JSON whose decode has only backend, max_bs, bs, not "max_seq_len"',
        ),
        (
            FlagSpec("f", type="graph-config"),
            '{"prefill": {"backend": "tc_piecewise"}}',
            "must be JSON with a prefill backend breakable, full or disabled: tc_piecewise was removed",
        ),
        (
            FlagSpec("f", type="graph-backend", choices=("full",)),
            "tc_piecewise",
            "must be one of full",
        ),
        (
            FlagSpec("f", type="lora", nargs="*"),
            ['{"lora_name": "a"}'],
            "item 0: must be a path, name=path, or JSON with lora_name and lora_path",
        ),
    ],
)
def test_a_fault_says_what_the_value_must_be(spec: FlagSpec, value: Any, says: str) -> None:
    assert spec.fault(value) == says


def test_a_log_level_is_a_name_that_logging_knows() -> None:
    says = FlagSpec("log-level", type="log-level").fault("verbose")
    assert says is not None
    assert "warning" in says


@pytest.mark.parametrize(
    ("spec", "value", "normal"),
    [
        (FlagSpec("f", type="human-int"), "1k", 1000),
        (FlagSpec("f", type="human-int"), "1.5M", 1_500_000),
        (FlagSpec("f", type="human-int"), "2Gi", 2**31),
        (FlagSpec("f", type="human-int"), 7, 7),
        (FlagSpec("f", type="float"), 2, 2.0),
        (FlagSpec("f", type="int", nargs="+"), 3, [3]),
        (FlagSpec("f", type="float", nargs="+"), [1, 2.5], [1.0, 2.5]),
        (FlagSpec("f", type="nullable-str"), "None", None),
        (FlagSpec("f"), "None", "None"),
        (FlagSpec("f", type="bool", switch=True), False, False),
    ],
)
def test_two_spellings_of_a_value_have_one_normal_form(spec: FlagSpec, value: Any, normal: Any) -> None:
    assert spec.normal(value) == normal
    assert type(spec.normal(value)) is type(normal)


def test_a_switch_reads_no_word() -> None:
    with pytest.raises(Unreadable, match="without a value"):
        FlagSpec("f", type="bool", switch=True).read("true")


@pytest.fixture
def small() -> Catalogue:
    flags = (
        FlagSpec("tp-size", ("tensor-parallel-size",), type="int"),
        FlagSpec("chunked-prefill-size", type="int"),
        FlagSpec("enable-lora", type="bool", switch=True, negatable=True),
    )
    return Catalogue("9.9.9", {flag.name: flag for flag in flags}, {"old-way": "set tp-size"})


def test_a_flag_is_found_by_its_canonical_name_alone(small: Catalogue) -> None:
    assert small.find("tp-size") is small["tp-size"]
    assert small.find("tensor-parallel-size") is None
    assert small.canonical("tensor-parallel-size") == "tp-size"
    assert small.canonical("tp") is None
    assert list(small) == ["tp-size", "chunked-prefill-size", "enable-lora"]
    assert len(small) == 3
    assert "tp-size" in small
    assert "tp" not in small


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tp", "tp-size"),
        ("--tp-size", "tp-size"),
        ("tp_size", "tp-size"),
        ("tensor-parallel", "tp-size"),
        ("chunk-prefill-size", "chunked-prefill-size"),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_flag_is_named(small: Catalogue, name: str, near: str | None) -> None:
    assert small.nearest(name) == near


@pytest.mark.parametrize(
    ("name", "says", "fix"),
    [
        ("old-way", "unknown in 9.9.9, a flag of another version", "set tp-size"),
        ("tensor-parallel-size", "is not the full name of the flag", "write tp-size"),
        ("--tp-size", "is not the full name of the flag", "write tp-size"),
        ("tpsize", "unknown flag in 9.9.9", "did you mean tp-size?"),
        ("zzz", "unknown flag in 9.9.9", "remove it"),
    ],
)
def test_a_name_that_is_no_flag_comes_with_a_way_out(small: Catalogue, name: str, says: str, fix: str) -> None:
    assert small.advise(name) == (says, fix)


def test_the_parser_knows_every_spelling_and_the_negations(small: Catalogue) -> None:
    assert small.options["--tensor-parallel-size"] == (small["tp-size"], False)
    assert small.options["--no-enable-lora"] == (small["enable-lora"], True)
    assert "--no-tp-size" not in small.options
    assert small.options["-h"] == (None, False)
