"""Whatever is given, `epd validate` answers: with an exit status of 0, 1 or 2, and never with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_operator.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

LONG = ("9" * 400, "-" + "9" * 400, "9" * 400 + "k", "9" * 400 + "Ki", "9" * 4000, "9" * 5000 + "Ti", "1" + "0" * 5000)
"""Numbers that no float, no whole number of 64 bits, or not even Python's own text of one can hold."""
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, -(10**400)]),
    st.sampled_from(LONG),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["SGLang", "Reference", "0.5.23", "0.1", "cuda-sm90", "512Gi", "On", "-1", "/model", "--"]),
)
KEYS = st.one_of(
    st.sampled_from(
        [
            "tp-size",
            "page-size",
            "attn-cp-size",
            "chunked-prefill-size",
            "speculative-algorithm",
            "enable-dp-attention",
            "moe-a2a-backend",
            "hicache-ratio",
            "context-length",
            "cuda-graph-prefill-max-context",
            "cuda-graph-bs-decode",
            "mem-fraction-static",
            "host",
            "gpu",
            "cpu",
            "memory",
            "path",
            "name",
            "type",
        ]
    ),
    st.text(max_size=8),
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


def either(fitting: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what fits, else anything at all."""
    return st.integers(0, 9).flatmap(lambda drawn: ANYTHING if drawn == 0 else fitting)


def some_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return either(st.fixed_dictionaries({}, optional={name: either(part) for name, part in fields.items()}))


ROLE = some_of(
    {
        "replicas": st.integers(-1, 5),
        "nodes": st.integers(0, 3),
        "args": st.dictionaries(KEYS, SCALARS, max_size=5),
        "env": st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
        "resources": some_of({"gpu": st.integers(0, 9), "memory": SCALARS, "rdma": st.integers(0, 2)}),
        "decoderReplay": st.sampled_from(["Auto", "On", "Off"]),
        "encoderReplay": st.booleans(),
        "hostNetwork": st.booleans(),
    }
)
SPEC = some_of(
    {
        "engine": st.fixed_dictionaries(
            {
                "type": either(st.sampled_from(["SGLang", "Reference"])),
                "version": either(st.sampled_from(["0.5.23", "0.1", "dsv41-37ae292e", "0.5.99", "0.4"])),
                "platform": either(st.sampled_from(["cuda-sm90", "cuda-sm100", "hip-gfx950", "cpu"])),
                "image": either(st.just("registry.example/sglang:v0.5.23")),
            },
            optional={
                "versionPolicy": either(st.sampled_from(["Strict", "Nearest"])),
                "acknowledge": either(st.lists(st.text(max_size=12), max_size=3)),
            },
        ),
        "model": some_of(
            {"path": st.just("/model"), "revision": st.text(max_size=8), "servedName": st.text(max_size=8)}
        ),
        "roles": st.fixed_dictionaries({"prefill": ROLE, "decode": ROLE}, optional={"encode": ROLE}),
        "transfer": some_of(
            {"backend": st.sampled_from(["mooncake", "nixl", "tcp"]), "bootstrapPort": st.integers(0, 70_000)}
        ),
        "router": some_of({"replicas": st.integers(0, 3)}),
    }
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "apiVersion": either(st.just("serving.epd.dev/v1alpha1")),
        "kind": st.just("DeepSeekV41Deployment"),
        "metadata": some_of({"name": st.sampled_from(["demo", "Demo", "x" * 60]), "namespace": st.text(max_size=8)}),
        "spec": SPEC,
    }
)

_START = b"apiVersion: serving.epd.dev/v1alpha1\nkind: DeepSeekV41Deployment\n"
_YAML = [
    "a: ",
    "- ",
    "\n",
    "  ",
    "\t",
    "{",
    "}",
    "[",
    "]",
    "&x ",
    "*x",
    "!!str ",
    "? ",
    ": ",
    "|",
    ">",
    "'",
    '"',
    "<<: ",
]
_ODD = ["---\n", "...\n", "#", "%", "{{ x }}", "\u2028", "\x85", "\ufeff", "1e9", ".inf", "0x", "~", "spec:\n"]
_PIECES = st.sampled_from([*_YAML, *_ODD, "kind: List\nitems:\n"])
TEXTS = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda tail: _START + tail),
    st.lists(_PIECES, max_size=14).map(lambda parts: _START + "".join(parts).encode()),
    st.lists(_PIECES, max_size=14).map(lambda parts: "".join(parts).encode()),
    st.text(max_size=60).map(lambda text: _START + text.encode("utf-16")),
)


def status(*words: str) -> int:
    """Exit status of a quiet run."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    assert out.getvalue() or err.getvalue()
    return code


@pytest.mark.parametrize("output", ["text", "json", "sarif"])
@QUICK
@given(document=DOCUMENTS)
def test_no_document_makes_it_raise(output: str, document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    assert status("validate", "-o", output, str(path)) in {0, 1, 2}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert status("validate", "-o", output, str(path)) in {0, 1, 2}


@pytest.mark.parametrize("output", ["text", "sarif"])
@QUICK
@given(raw=TEXTS)
def test_no_file_makes_it_raise(output: str, raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(raw)
    assert status("validate", "-o", output, str(path)) in {0, 1, 2}


@QUICK
@given(document=DOCUMENTS, command=st.sampled_from(["explain", "render"]))
def test_nor_do_the_other_commands(document: dict[str, Any], command: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert status(command, str(path)) in {0, 1, 2}


@QUICK
@given(
    words=st.lists(
        st.one_of(
            st.text(max_size=10),
            st.sampled_from(
                ["--tp", "4", "--page-size", "--disaggregation-mode", "prefill", "--", "-", "-x", "X=1", "sglang"]
            ),
            st.sampled_from(
                ["--context-length", "--cuda-graph-prefill-max-context", "--max-total-tokens", "--dp", *LONG]
            ),
        ),
        max_size=6,
    ),
    role=st.sampled_from(["aggregated", "prefill", "decode", "encode"]),
)
def test_no_command_line_makes_it_raise(words: list[str], role: str) -> None:
    assert status("validate", "--role", role, "--", *words) in {0, 1, 2}


@QUICK
@given(
    row=st.one_of(
        st.text(max_size=40), ANYTHING.map(json.dumps), st.fixed_dictionaries({"argv": ANYTHING}).map(json.dumps)
    )
)
def test_no_row_makes_it_raise(row: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f'{row}\n{{"argv": []}}\n', encoding="utf-8", errors="surrogatepass")
    assert status("validate", "--cases", str(path)) in {0, 1, 2}
