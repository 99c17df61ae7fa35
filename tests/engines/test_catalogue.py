"""The flags of SGLang: facts that other parts lean on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from epd_operator.engines.sglang.catalogue import REFUSED_IN_ARGS, REMOVED, catalogue
from epd_operator.rules.owner import Field, Fixed
from epd_operator.rules.version import KNOWN

if TYPE_CHECKING:
    from epd_operator.rules.flag import FlagRole

RELEASE = catalogue("0.5.23")


def test_the_release_has_every_flag_of_its_parser() -> None:
    assert len(RELEASE) == 531


@pytest.mark.parametrize("version", KNOWN)
def test_defaults_are_values_of_the_flag(version: str) -> None:
    wrong = {
        name: flag.default
        for name, flag in catalogue(version).flags.items()
        if flag.default not in (None, []) and flag.fault(flag.default) is not None
    }
    assert wrong == {}


def test_spellings_are_unique() -> None:
    spellings = [word for flag in RELEASE.flags.values() for word in (flag.name, *flag.aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("tp-size", "tensor-parallel-size"),
        ("attn-dp-size", "attention-data-parallel-size"),
        ("ep-size", "ep"),
        ("model-path", "model"),
        ("enable-hierarchical-cache", "enable-hicache"),
    ],
)
def test_the_canonical_name_is_the_short_one(name: str, alias: str) -> None:
    assert RELEASE.canonical(alias) == name


def test_types_and_choices_are_the_parser_s() -> None:
    assert RELEASE["context-length"].type == "human-int"
    assert RELEASE["tp-size"].type == "int"
    assert RELEASE["trust-remote-code"].switch
    assert not RELEASE["trust-remote-code"].negatable
    assert RELEASE["dsv4-attn-backend"].choices == ("auto", "flashmla", "flashmla_mega", "trtllm")
    assert RELEASE["cuda-graph-bs-decode"].nargs == "+"
    assert RELEASE["extra-metric-labels"].type == "json"
    assert RELEASE["speculative-algorithm"].default is None


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("tp-size", {"encode", "prefill", "decode", "aggregated"}),
        ("chunked-prefill-size", {"prefill", "aggregated"}),
        ("dcp-size", {"decode", "aggregated"}),
        ("disaggregation-bootstrap-port", {"prefill", "decode"}),
        ("encoder-register-urls", {"encode"}),
        ("numa-node", {"prefill", "decode", "aggregated"}),
    ],
)
def test_roles_are_where_a_flag_does_something(name: str, roles: set[FlagRole]) -> None:
    assert RELEASE[name].roles == roles


def test_every_owned_flag_exists_and_says_what_sets_it() -> None:
    assert set(REFUSED_IN_ARGS) <= set(RELEASE)
    assert {name for name, flag in RELEASE.flags.items() if flag.owner} == set(REFUSED_IN_ARGS)
    assert RELEASE["disaggregation-bootstrap-port"].owner == Field("spec.transfer.bootstrapPort")
    assert RELEASE["nnodes"].owner == Field("spec.roles.<role>.nodes")
    assert RELEASE["port"].owner == Fixed("always 30000")
    assert RELEASE["api-key"].owner == Field("spec.router.apiKeySecret")


def test_retired_spellings_are_unknown_and_their_advice_names_flags_that_exist() -> None:
    old_values = {"round-robin-split", "in-seq-split"}
    for name, advice in REMOVED.items():
        assert RELEASE.canonical(name) is None, name
        named = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", advice)) - old_values
        assert named <= set(RELEASE), name


def test_decoder_replay_has_three_states_since_the_release() -> None:
    name = "enable-decoder-swa-bounded-replay"
    assert RELEASE[name].negatable
    assert RELEASE[name].default is None
    for version in ("dsv41-2026-09", "dsv41-37ae292e"):
        before = catalogue(version)
        assert before[name].switch
        assert not before[name].negatable
        assert before[name].default is False
        assert f"--no-{name}" not in before.options
        assert before.advise(f"no-{name}")[1] == "leave it out: replay is off unless it is asked for"
        assert before.version == version


def test_a_version_without_rules_has_no_catalogue() -> None:
    with pytest.raises(ValueError, match=r"0\.6\.0"):
        catalogue("0.6.0")


def test_one_catalogue_a_version() -> None:
    assert catalogue("0.5.23") is RELEASE
