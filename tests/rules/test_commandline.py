"""Command lines: what SGLang's parser makes of them, and the words that the operator writes.

The table holds lines that the real parser of 0.5.23 was asked. The random ones are judged by argparse itself, set up
from the catalogue: it is the library that the engine parses with.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_operator.engines.sglang.catalogue import catalogue
from epd_operator.rules.commandline import ParseFault, parse, render
from epd_operator.rules.flag import FlagSpec, Unreadable

RELEASE = catalogue("0.5.23")
WORDS = [
    "4",
    "-1",
    "1k",
    "abc",
    "",
    "true",
    "-0.5",
    "-1e3",
    "{}",
    "[1]",
    "-",
    "-x",
    "a b",
    "-a b",
    "auto",
    "None",
    "1_0",
]


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("", {}),
        ("--tp-size 4", {"tp-size": 4}),
        ("--tp=4", {"tp-size": 4}),
        ("--tensor-parallel-size 4", {"tp-size": 4}),
        ("--model X --tp 2 --tp-size 8", {"model-path": "X", "tp-size": 8}),
        ("--chunked-prefill-size -1", {"chunked-prefill-size": -1}),
        ("--hicache-ratio 2", {"hicache-ratio": 2.0}),
        ("--context-length 25.6k", {"context-length": 25600}),
        ("--max-total-tokens=1Ki", {"max-total-tokens": 1024}),
        ("--cuda-graph-bs-decode 1 2 4 --tp 2", {"cuda-graph-bs-decode": [1, 2, 4], "tp-size": 2}),
        ("--lora-paths", {"lora-paths": []}),
        ("--model-checksum", {"model-checksum": ""}),
        ("--model-checksum a", {"model-checksum": "a"}),
        ("--no-enable-decoder-swa", {"enable-decoder-swa-bounded-replay": False}),
        ("--enable-decoder-swa-bounded-replay", {"enable-decoder-swa-bounded-replay": True}),
        ('--limit-mm-data-per-request {"image":4}', {"limit-mm-data-per-request": '{"image":4}'}),
        ("--quantization-param-path None", {}),
        ("--quantization-param-path a --quantization-param-path None", {}),
        ("--monokernel-backend amd", {"monokernel-backend": "amd"}),
        ("--log-level WARN", {"log-level": "WARN"}),
        ("--config=x.yaml", {"config": "x.yaml"}),
    ],
)
def test_what_the_parser_reads(line: str, args: dict[str, Any]) -> None:
    parsed = parse(line.split(), RELEASE)
    assert parsed.faults == ()
    assert parsed.args == args


@pytest.mark.parametrize(
    ("line", "rule", "flag", "message"),
    [
        ("--enable-nonsense 5", "flag-unknown", "enable-nonsense", "unknown flag in 0.5.23"),
        ("--enable-nonsense=5", "flag-unknown", "enable-nonsense", "unknown flag in 0.5.23"),
        ("-tp 4", "flag-unknown", "tp", "unknown flag in 0.5.23"),
        ("junk", "flag-unknown", "", "does not belong to a flag"),
        ("--tp-size 4 8", "flag-unknown", "", "does not belong to a flag"),
        ("--", "flag-unknown", "", "does not belong to a flag"),
        ("-5", "flag-unknown", "", "does not belong to a flag"),
        (
            "--enable-nsa-prefill-context-parallel",
            "flag-of-another-version",
            "enable-nsa-prefill-context-parallel",
            "unknown in 0.5.23, a flag of another version",
        ),
        (
            "--disaggregation-decode-e",
            "flag-ambiguous",
            "disaggregation-decode-e",
            (
                "could be --disaggregation-decode-enable-radix-cache, --disaggregation-decode-enable-offload-kvcache, "
                "--disaggregation-decode-extra-slots"
            ),
        ),
        ("--tp-size a", "flag-value", "tp-size", "must be a whole number"),
        ("--tp-size 4.0", "flag-value", "tp-size", "must be a whole number"),
        ("--tp-size", "flag-value", "tp-size", "needs one value"),
        ("--tp-size --port 1", "flag-value", "tp-size", "needs one value"),
        ("--cuda-graph-bs-decode", "flag-value", "cuda-graph-bs-decode", "needs at least one value"),
        ("--cuda-graph-bs-decode 1 b", "flag-value", "cuda-graph-bs-decode", "must be a whole number"),
        ("--trust-remote-code true", "flag-value", "trust-remote-code", "takes no value"),
        ("--trust-remote-code=true", "flag-value", "trust-remote-code", "takes no value"),
        ("--cp-strategy both", "flag-value", "cp-strategy", "must be one of zigzag, interleave"),
        (
            "--cuda-graph-backend-prefill tc_piecewise",
            "flag-value",
            "cuda-graph-backend-prefill",
            "must be breakable, full or disabled: tc_piecewise was removed",
        ),
        ("--max-total-tokens 1.5Ki", "flag-value", "max-total-tokens", "must be whole before Ki"),
        ("--extra-metric-labels {", "flag-value", "extra-metric-labels", "must be a string that holds JSON"),
        ("--forward-hooks [NaN]", "flag-value", "forward-hooks", "must be a string that holds JSON"),
        ("--served-model-name=--", "flag-value", "served-model-name", "must not be two dashes"),
        ("--help", "flag-unjudged", "help", "prints the help and ends"),
        ("-h4", "flag-unjudged", "h", "prints the help and ends"),
        ("--config x.yaml", "flag-unjudged", "config", "names a file whose flags are not judged here"),
    ],
)
def test_what_the_parser_refuses(line: str, rule: str, flag: str, message: str) -> None:
    (fault,) = parse(line.split(), RELEASE).faults
    assert (fault.rule, fault.flag, fault.message) == (rule, flag, message)
    assert fault.fix


def test_a_short_prefix_is_answered_with_some_of_its_meanings() -> None:
    (fault,) = parse(["--c", "4"], RELEASE).faults
    assert fault.rule == "flag-ambiguous"
    assert fault.message.count("--") == 5
    assert fault.message.endswith(" more")


def test_a_log_level_is_refused_where_the_engine_falls_over_it() -> None:
    (fault,) = parse(["--log-level", "loud"], RELEASE).faults
    assert fault.decided_by == "server_args.prepare_server_args"
    assert fault.value == "loud"


def test_all_faults_are_found_at_once_and_the_rest_is_read() -> None:
    line = "--enable-nonsense --tp a --port --cp-strategy x --ep-size 2 rest"
    parsed = parse(line.split(), RELEASE)
    assert [fault.flag for fault in parsed.faults] == ["enable-nonsense", "tp-size", "port", "cp-strategy", ""]
    assert parsed.args == {"ep-size": 2}


def test_a_misspelled_flag_is_answered_with_the_nearest() -> None:
    (fault,) = parse(["--chunk-prefill-size", "512"], RELEASE).faults
    assert fault == ParseFault(
        "flag-unknown", "chunk-prefill-size", None, "unknown flag in 0.5.23", "did you mean chunked-prefill-size?"
    )


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("", "aggregated"),
        ("--disaggregation-mode null", "aggregated"),
        ("--disaggregation-mode prefill", "prefill"),
        ("--disaggregation-mode decode", "decode"),
        ("--encoder-only", "encode"),
        ("--encoder-only --disaggregation-mode decode", "encode"),
        ("--disaggregation-mode both", "aggregated"),
    ],
)
def test_the_role_is_read_from_the_line(line: str, role: str) -> None:
    assert parse(line.split(), RELEASE).role == role


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"tp-size": 4, "ep-size": 2}, ["--ep-size", "2", "--tp-size", "4"]),
        ({"trust-remote-code": True, "enable-lora": False}, ["--trust-remote-code"]),
        ({"enable-decoder-swa-bounded-replay": False}, ["--no-enable-decoder-swa-bounded-replay"]),
        ({"chunked-prefill-size": -1}, ["--chunked-prefill-size=-1"]),
        ({"cuda-graph-bs-decode": [1, 2]}, ["--cuda-graph-bs-decode", "1", "2"]),
        ({"lora-paths": []}, ["--lora-paths"]),
        ({"mem-fraction-static": 0.1 + 0.2}, ["--mem-fraction-static", "0.30000000000000004"]),
        ({"hicache-ratio": 2.0}, ["--hicache-ratio", "2"]),
        ({"hicache-ratio": 1e-7}, ["--hicache-ratio", "0.0000001"]),
        ({"served-model-name": "-x"}, ["--served-model-name=-x"]),
        ({"served-model-name": ""}, ["--served-model-name", ""]),
        ({"revision": None}, []),
    ],
)
def test_words_for_flags(args: dict[str, Any], words: list[str]) -> None:
    assert render(args, RELEASE) == words


def test_a_flag_of_a_newer_version_is_written_as_its_value_suggests() -> None:
    args: dict[str, Any] = {"new-size": 4, "new-switch": True, "new-off": False, "new-list": ["a", "b"]}
    assert render(args, RELEASE) == ["--new-list", "a", "b", "--new-size", "4", "--new-switch"]


def test_a_flag_that_cannot_be_negated_before_the_release_is_left_out() -> None:
    assert render({"enable-decoder-swa-bounded-replay": False}, catalogue("dsv41-2026-09")) == []


@functools.cache
def library() -> argparse.ArgumentParser:
    """argparse with the flags of the catalogue, whose words are judged by the flag itself."""
    parser = argparse.ArgumentParser(prog="engine", exit_on_error=False)
    for flag in RELEASE.flags.values():
        names = [f"--{spelling}" for spelling in (flag.name, *flag.aliases)]
        if flag.negatable:
            parser.add_argument(
                *names, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, dest=flag.name
            )
        elif flag.switch:
            parser.add_argument(*names, action="store_true", default=argparse.SUPPRESS, dest=flag.name)
        else:
            const = "" if flag.nargs == "?" else None
            parser.add_argument(
                *names, type=_typed(flag), nargs=flag.nargs, const=const, default=argparse.SUPPRESS, dest=flag.name
            )
    return parser


def _typed(flag: FlagSpec) -> Any:
    def read(text: str) -> Any:
        try:
            return flag.read(text)
        except Unreadable as unreadable:
            raise argparse.ArgumentTypeError(str(unreadable)) from None

    return read


def by_library(argv: list[str]) -> dict[str, Any] | None:
    """What argparse makes of a command line; None when it refuses."""
    try:
        actual, rest = library().parse_known_args(argv)
    except (argparse.ArgumentError, SystemExit):
        return None
    return None if rest else {name: value for name, value in vars(actual).items() if value is not None}


@st.composite
def options(draw: st.DrawFn) -> list[str]:
    """A flag in some spelling, perhaps cut short, with words behind it that may fit."""
    flag = draw(st.sampled_from([*RELEASE.flags.values()]))
    name = draw(st.sampled_from([flag.name, *flag.aliases, f"no-{flag.name}"]))
    name = name[: len(name) - draw(st.sampled_from([0, 0, 0, 1, 3, 8]))]
    fitting = [str(choice) for choice in flag.choices or ()] or WORDS
    values = draw(st.lists(st.sampled_from(fitting) | st.sampled_from(WORDS), max_size=3))
    if draw(st.booleans()):
        values = values[: 0 if flag.switch else 1]
    if values and draw(st.integers(0, 3)) == 0:
        return [f"--{name}={values[0]}", *values[1:]]
    return [f"--{name}", *values]


@given(st.lists(options(), min_size=1, max_size=4))
def test_a_line_means_what_argparse_takes_it_for(parts: list[list[str]]) -> None:
    # What argparse leaves to the engine (the file behind --config) is in the table; a lone "--" varies with Python.
    argv = [word for part in parts for word in part if word not in {"--config", "--"}]
    parsed = parse(argv, RELEASE)
    expected = by_library(argv)
    assert (None if parsed.faults else parsed.args) == expected


@given(st.lists(options(), max_size=4))
def test_what_is_read_renders_to_words_that_read_the_same(parts: list[list[str]]) -> None:
    args = parse([word for part in parts for word in part], RELEASE).args
    sound = {name: value for name, value in args.items() if RELEASE[name].fault(value) is None and name != "config"}
    again = parse(render(sound, RELEASE), RELEASE)
    assert again.faults == ()
    assert {name: RELEASE[name].normal(value) for name, value in sound.items()} == again.args


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--", "-", "--tp", "-h", "--config", "--model="])))
def test_no_line_raises(argv: list[str]) -> None:
    parsed = parse(argv, RELEASE)
    assert parsed.faults or all(name in RELEASE for name in parsed.args)


@pytest.mark.parametrize(
    ("value", "decided_by"),
    [("tc_piecewise", "cuda_graph_config.parse_cuda_graph_backend_arg"), ("eager", "argparse")],
)
def test_only_a_retired_graph_backend_is_refused_by_the_engines_own_type(value: str, decided_by: str) -> None:
    (fault,) = parse(["--cuda-graph-backend-prefill", value], catalogue("0.5.23")).faults
    assert fault.decided_by == decided_by
