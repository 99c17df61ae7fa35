"""Which rules judge which version."""

from __future__ import annotations

import pytest

from epd_operator.admission.version import refusals
from epd_operator.engines import table
from epd_operator.rules.version import KNOWN, Policy, Refusal, Resolved, rank, release_key, resolve

SGLANG = table.RULESETS["SGLang"]
BOTH: tuple[Policy, ...] = ("Strict", "Nearest")


def test_known_versions_rank_by_age() -> None:
    assert [rank(version) for version in ("dsv41-2026-09", "dsv41-37ae292e", "0.5.23")] == [0, 1, 2]


def test_a_version_without_rules_has_no_rank() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        rank("0.6.0")


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("version", KNOWN)
def test_a_known_version_is_judged_by_its_own_rules(version: str, policy: Policy) -> None:
    assert resolve(version, policy) == Resolved(version, approximate=False)


@pytest.mark.parametrize("version", ["0.5.24", "0.5.23.post1", "0.6.0", "1.0.0rc1", "0.5.24rc1"])
def test_a_newer_release_needs_the_policy_nearest(version: str) -> None:
    assert resolve(version, "Nearest") == Resolved("0.5.23", approximate=True)
    refusal = resolve(version, "Strict")
    assert isinstance(refusal, Refusal)
    for known in KNOWN:
        assert f'"{known}"' in refusal.message
    assert "versionPolicy" in refusal.message


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("version", ["0.5.22", "0.4.10.post2", "0.5.23rc1", "0.0.1"])
def test_a_release_before_the_model_is_refused_with_the_minimum(version: str, policy: Policy) -> None:
    refusal = resolve(version, policy)
    assert isinstance(refusal, Refusal)
    assert f'"{version}" does not serve DeepSeek-V4.1: use "0.5.23" or newer' in refusal.message


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize(
    "version",
    ["", "latest", "5", "0.5.x", "0.5.9999999999999999999", "0.5.\u0662", "0.5.23-cu130", "0.5.23 ", "main"],
)
def test_neither_profile_nor_release_is_refused_and_the_known_are_listed(version: str, policy: Policy) -> None:
    refusal = resolve(version, policy)
    assert isinstance(refusal, Refusal)
    assert f'"{version}" is neither' in refusal.message
    for known in KNOWN:
        assert f'"{known}"' in refusal.message


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("version", ["v0.5.23", "V0.6.0", "v0.5.1"])
def test_a_leading_v_is_told_to_go(version: str, policy: Policy) -> None:
    refusal = resolve(version, policy)
    assert isinstance(refusal, Refusal)
    assert refusal.message.endswith(f'write "{version[1:]}"')


def test_releases_sort_as_they_were_made() -> None:
    order = ["0.5.9", "0.5.23a1", "0.5.23b2", "0.5.23rc1", "0.5.23rc2", "0.5.23", "0.5.23.post1", "0.5.24", "0.6.0"]
    keys = [release_key(version) for version in order]
    assert None not in keys
    assert keys == sorted(keys, key=lambda key: key or ())


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("version", ["0.5", "0.6", "1.0"])
def test_a_release_without_its_third_part_is_told_so(version: str, policy: Policy) -> None:
    refusal = resolve(version, policy)
    assert isinstance(refusal, Refusal)
    assert refusal.message.endswith(f'as in "{version}.0"')


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("version", ["0.4.0", "0.6", "v0.5.23", "main", "0.5.24"])
def test_no_message_names_a_version_twice(version: str, policy: Policy) -> None:
    refusal = resolve(version, policy)
    if isinstance(refusal, Refusal):
        for name in (*KNOWN, version):
            assert refusal.message.count(f'"{name}"') <= 1


def test_python_and_policy_read_as_many_digits() -> None:
    longest = f"1.0.{'9' * 18}"
    assert release_key(longest)
    assert release_key(f"{longest}9") is None
    assert "[0-9]{1,18}" in refusals(SGLANG)
