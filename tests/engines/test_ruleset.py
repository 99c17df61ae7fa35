"""The table of rules is sound as a table: names are unique, every rule can speak and keep quiet, texts are whole."""

from __future__ import annotations

import ast
import copy
import json
import re
import string
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator.engines.table import RULESETS
from epd_operator.engines.validation import validate, validate_command_line
from tools.corpus.rule_examples import RuleExample, changed, rule_examples
from tools.differential import environment
from tools.differential.comparison import VERSION, function
from tools.mutation.record import BOUNDARIES, VERDICTS, recorded, rows
from tools.mutation.recorded_case import SGLANG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_operator.rules.judgement import Judgement
    from epd_operator.rules.rule import Rule
    from epd_operator.rules.ruleset import Ruleset

FUNCTIONS = Path(__file__).parent / "sglang" / "functions.txt"
# Where we say no, or more than the engine, on purpose: each rule that a user may override, and why it is there.
OPERATOR_ONLY = {
    "widths-positive": "a width below one starts, and fails in the middle of loading",
    "sizes-positive": "any number is taken for a number of requests or tokens, and fails after the weights are loaded",
    "memory-share-range": "any number is taken for a share, and fails after the weights are loaded",
    "expert-ranks-divide-tp": "nothing looks at the width before the groups of experts are built",
    "decode-cp-divides-tp": "as above, before the groups of decode context parallelism are built",
    "prefill-cp-nodes": "ranks are counted, not the machines that they are spread over",
    "decode-allocation-window": "whether pages of a sliding window are moved is seen after the weights are loaded",
    "kv-layout-unknown": "the name of a layout is looked at after the weights are loaded",
    "kv-layout-compressed": "as above",
    "kv-layout-hardware": "whether a kernel reads the layout is seen after the weights are loaded",
    "rust-server-prefill": "a server alone works; the registry is not where router, decode and the probe look for it",
    "decoder-replay-cp": "automatic replay turns itself off here, an explicit one is let through",
    "decoder-replay-dcp": "as above",
    "decoder-replay-hidden-states": "as above; the states asked for would not exist",
    "decoder-replay-pd-rocm": "as above",
    "encoder-replay-prefill-cp": "the engine looks at the width before prefill context parallelism sets it",
    "decode-offload-pages": "whether pages of this kind can be saved is seen after the weights are loaded",
}
BESIDE_THE_LINE = {
    "rust-server-prefill": "it takes others that look for the registry, and a command line has none beside it",
}
BEYOND_THE_FLAGS = {
    "elastic-ib-device": "which devices a machine has is not in the flags",
    "ib-device-present": "as above",
    "model-nvidia-megakernel": "whether the image holds a plugin is not in the flags",
    "model-amd-monokernel": "as above",
    "model-config-parser": "whether the image holds a plugin is not in the flags",
    "http2-server": "whether the image holds a package is not in the flags",
    "weights-gpu-memory": "the size of the weights is the user's estimate",
    "memory-share-weights": "as above",
    "engram-host-memory": "memory may come from elsewhere than the limit",
    "hicache-memory": "as above",
    "host-memory-sum": "as above",
    "rdma-missing": "devices may come from elsewhere than the resource",
    "hicache-storage-config-file": "what stands in a file is not in the flags",
    "hicache-storage-shared": "whether anybody else uses the store is not in the flags",
}


@pytest.fixture(params=sorted(RULESETS))
def ruleset(request: pytest.FixtureRequest) -> Ruleset:
    return RULESETS[request.param]


def every_rule() -> list[Rule]:
    return [rule for engine in sorted(RULESETS) for rule in RULESETS[engine].rules]


def texts(rule: Rule) -> Iterator[str]:
    return iter((rule.says, rule.fix))


def test_ids_are_unique(ruleset: Ruleset) -> None:
    assert [name for name, count in Counter(rule.id for rule in ruleset.rules).items() if count > 1] == []


def test_names_of_resolved_values_are_unique(ruleset: Ruleset) -> None:
    assert all(name == value.name for name, value in ruleset.named().items())


@cache
def spoken() -> dict[str, set[bool]]:
    """For each rule, whether it speaks in what is recorded; it is not asked again once it did both."""
    seen: dict[str, set[bool]] = {rule.id: set() for rule in SGLANG.rules}
    asked = list(SGLANG.rules)
    for case in recorded():
        here = [rule for rule in asked if case.applies(rule) and case.places(rule)]
        broken = {rule.id for rule in case.broken(here)}
        for rule in here:
            seen[rule.id].add(rule.id in broken)
        asked = [rule for rule in asked if len(seen[rule.id]) < 2]
    return seen


def test_every_rule_speaks_somewhere_and_keeps_quiet_somewhere() -> None:
    assert [rule for rule, seen in spoken().items() if True not in seen] == [], "never speaks"
    assert [rule for rule, seen in spoken().items() if False not in seen] == [], "never keeps quiet"


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.id)
def test_texts_are_whole(rule: Rule) -> None:
    for text in texts(rule):
        assert text == text.strip()
        assert text
        assert not text.endswith(".")
        assert "  " not in text
        named = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        assert set(named) <= set(rule.shows), "a placeholder without a value"
    assert rule.source
    shown = {name for text in texts(rule) for _, name, _, _ in string.Formatter().parse(text)}
    assert set(rule.shows) <= shown, "a value that no text shows"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_]+(?:-[a-z0-9]+)*", text.lower())


def test_no_text_is_the_engines() -> None:
    """Seven words in a row, a flag being one, would be a quotation."""
    theirs = set()
    for row in (*rows(VERDICTS), *rows(BOUNDARIES)):
        message = words(row.get("error") or "")
        theirs |= {tuple(message[at : at + 7]) for at in range(len(message) - 6)}
    assert theirs
    quoting = []
    for rule in SGLANG.rules:
        for text in texts(rule):
            ours = words(text)
            quoting += [rule.id for at in range(len(ours) - 6) if tuple(ours[at : at + 7]) in theirs]
    assert quoting == []


def test_what_may_be_overridden_is_a_list_with_reasons() -> None:
    assert {rule.id for rule in SGLANG.rules if rule.operator_only} == set(OPERATOR_ONLY)
    assert {rule.id for rule in SGLANG.rules if rule.overridable and not rule.operator_only} == set(BEYOND_THE_FLAGS)


def breaking(rule: str) -> list[RuleExample]:
    return [example for example in rule_examples() if example.rule == rule and example.speaks]


@cache
def accepted_lines() -> tuple[Judgement, ...]:
    """What we say to every line that the engine was seen to accept."""
    return tuple(
        validate_command_line(VERSION, row["platform"], row["argv"], row["env"])
        for row in (*rows(VERDICTS), *rows(BOUNDARIES))
        if row["accepted"] and not row.get("config")
    )


def test_every_line_that_the_engine_was_seen_to_accept_is_accepted() -> None:
    assert accepted_lines()
    assert all(judgement.accepted for judgement in accepted_lines())


@pytest.mark.parametrize("rule", sorted(OPERATOR_ONLY.keys() - BESIDE_THE_LINE.keys()))
def test_an_operator_only_rule_warns_where_the_engine_was_seen_to_accept(rule: str) -> None:
    findings = [finding for judgement in accepted_lines() for finding in judgement.findings if finding.rule == rule]
    assert findings
    assert {finding.severity for finding in findings} == {"warning"}


@pytest.mark.parametrize("rule", sorted(BESIDE_THE_LINE))
def test_an_operator_only_rule_of_a_deployment_says_nothing_about_a_command_line(rule: str) -> None:
    changes = dict(SPECS[rule])
    env = {**changes.pop("env")}
    assert not changes
    judgement = validate_command_line(
        VERSION, "cuda-sm100", ["--tp-size", "4", "--disaggregation-mode", "prefill"], env
    )
    assert rule not in {finding.rule for finding in judgement.findings}
    assert judgement.accepted


SPECS: dict[str, dict[str, Any]] = {
    "widths-positive": {"args": {"ep-size": 0}},
    "sizes-positive": {"args": {"max-total-tokens": 0}},
    "memory-share-range": {"args": {"mem-fraction-static": 1.0}},
    "expert-ranks-divide-tp": {"args": {"ep-size": 3}},
    "decode-cp-divides-tp": {"args": {"dcp-size": 3}},
    "prefill-cp-nodes": {"nodes": 2, "args": {"tp-size": 8, "enable-prefill-cp": True, "cp-strategy": "interleave"}},
    "decode-allocation-window": {"args": {"tp-size": 1, "disaggregation-decode-allocation-policy": "prefill_complete"}},
    "kv-layout-unknown": {"env": {"SGLANG_DSV4_KV_LAYOUT": "v42"}},
    "kv-layout-compressed": {"env": {"SGLANG_DSV4_COMPRESSED_KV_LAYOUT": "fp5"}},
    "kv-layout-hardware": {"env": {"SGLANG_DSV4_KV_LAYOUT": "v41_new"}},
    "rust-server-prefill": {"env": {"SGLANG_RUST_SERVER": "1"}},
    "decoder-replay-cp": {"decoderReplay": "On", "args": {"attn-cp-size": 2}},
    "decoder-replay-dcp": {"decoderReplay": "On", "args": {"dcp-size": 2}},
    "decoder-replay-hidden-states": {"decoderReplay": "On", "args": {"enable-return-hidden-states": True}},
    "decoder-replay-pd-rocm": {"decoderReplay": "On"},
    "decode-offload-pages": {
        "args": {"disaggregation-decode-enable-offload-kvcache": True, "hicache-storage-backend": "mooncake"}
    },
    "encoder-replay-prefill-cp": {
        "encoderReplay": True,
        "args": {"enable-prefill-cp": True, "cp-strategy": "interleave"},
    },
}


def spec_with(rule: str) -> dict[str, Any]:
    base = next(example.document for example in rule_examples() if example.document is not None)
    document = copy.deepcopy(base)
    if rule in {"decoder-replay-pd-rocm", "kv-layout-hardware"}:
        document["spec"]["engine"]["platform"] = "hip-gfx950"
    role = document["spec"]["roles"]["decode" if rule == "decode-offload-pages" else "prefill"]
    changes = dict(SPECS[rule])
    role["args"] |= changes.pop("args", {})
    role.update(changes)
    return document


@pytest.mark.parametrize("rule", sorted(OPERATOR_ONLY))
def test_an_operator_only_rule_refuses_a_spec_until_it_is_acknowledged(rule: str) -> None:
    document = spec_with(rule)
    assert rule in {finding.rule for finding in validate(document).errors}
    document["spec"]["engine"]["acknowledge"] = [rule]
    (actual,) = (finding for finding in validate(document).findings if finding.rule == rule)
    assert actual.severity == "warning"
    assert actual.acknowledged


def functions() -> dict[str, set[str]]:
    """The engine's functions by module, as recorded."""
    lines = [line for line in FUNCTIONS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {module: set(names.split()) for module, _, names in (line.partition(": ") for line in lines)}


def test_deciding_functions_are_the_engines() -> None:
    known = functions()
    deciding = {function(rule.decided_by) for rule in SGLANG.rules if rule.decided_by}
    assert [name for name in sorted(deciding) if name.split(".")[1] not in known.get(name.split(".")[0], ())] == []


@pytest.mark.nightly
def test_the_recorded_functions_are_those_of_the_installed_engine() -> None:
    environment.interpreter()
    (package,) = environment.folder().glob("lib/python*/site-packages/sglang")
    actual: dict[str, set[str]] = {module: set() for module in functions()}
    for path in package.rglob("*.py"):
        module = path.parent.name if path.stem == "__init__" else path.stem
        if module in actual:
            tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            actual[module] |= {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert actual == functions()


def test_examples_come_from_the_table() -> None:
    unknown = {example.rule for example in rule_examples()} - {rule.id for rule in SGLANG.rules}
    assert unknown == set()
    assert len({example.name for example in rule_examples()}) == len(rule_examples())


@pytest.mark.parametrize("example", rule_examples(), ids=lambda example: example.name)
def test_example(example: RuleExample) -> None:
    if example.document is None:
        judgement = validate_command_line(
            example.version, example.platform, example.argv, example.env, plugins=example.plugins
        )
    else:
        judgement = validate(example.document)
    findings = "\n".join(map(str, judgement.findings)) or "(nothing)"
    assert (example.rule in {finding.rule for finding in judgement.findings}) == example.speaks, findings
    assert "structure" not in {finding.rule for finding in judgement.findings}, findings


def test_joined_changes_leave_the_examples_alone() -> None:
    example: dict[str, Any] = {"P.resources": {"memory": "16Gi"}}
    changed({**example, "P.resources.shm": "1Gi"})
    assert example == {"P.resources": {"memory": "16Gi"}}


def test_recorded_lines_are_json_with_sorted_ids() -> None:
    ids = [json.loads(row)["id"] for row in BOUNDARIES.read_text(encoding="utf-8").splitlines()]
    assert ids == sorted(set(ids))
