"""Fake nodes, and what they are asked to pretend."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tools.cluster import configuration, kwok


def test_a_node_is_fake_and_keeps_ordinary_pods_away() -> None:
    node = kwok.node(3)
    assert node["metadata"]["name"] == "kwok-3"
    assert node["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert node["metadata"]["labels"].items() >= kwok.NODE_SELECTOR.items()
    assert node["spec"]["taints"][0]["effect"] == "NoSchedule"


def test_the_toleration_matches_the_taint() -> None:
    assert all(kwok.TOLERATION[field] == kwok.TAINT[field] for field in ("key", "value", "effect"))


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_the_count_has_bounds(count: int) -> None:
    with pytest.raises(ValueError, match=f"count is {count}"):
        kwok.add_nodes(count)


def test_stages_cover_a_pods_life_and_a_nodes_start() -> None:
    stages = {stage["metadata"]["name"]: stage["spec"] for stage in yaml.safe_load_all(configuration.stages())}
    assert set(stages) == {"node-ready", "pod-ready", "pod-complete", "pod-delete"}
    assert stages["pod-delete"]["next"] == {"delete": True}


def test_roles_are_bound_to_the_users_of_the_certificates() -> None:
    text = (Path(kwok.__file__).parent / "roles.yaml").read_text()
    documents = list(yaml.safe_load_all(text))
    users = {subject["name"] for role in documents if role["kind"].endswith("Binding") for subject in role["subjects"]}
    assert users == {"epd:dns", "epd:kwok"}
    assert not [
        rule for role in documents for rule in role.get("rules", []) if "*" in rule["verbs"] + rule["resources"]
    ]
