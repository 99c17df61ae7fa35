"""What sets a flag that a user must not set."""

from __future__ import annotations

import pytest

from epd_operator.engines.table import RULESETS
from epd_operator.rules.expression import Leaf
from epd_operator.rules.flag import Catalogue, FlagSpec
from epd_operator.rules.owner import (
    Declaration,
    Fact,
    Field,
    Fixed,
    Owner,
    Place,
    field_of,
    instead,
    label_of,
    place_of,
    setter_of,
)

NODES = Field("spec.roles.<role>.nodes")
ENCODE = Declaration("encode")
PORT = Fixed("always 30000")
METRICS = Fact("metrics are always on")


@pytest.mark.parametrize(
    ("owner", "field", "setter", "way_out"),
    [
        (
            NODES,
            "spec.roles.prefill.nodes",
            "spec.roles.<role>.nodes",
            "set spec.roles.prefill.nodes instead",
        ),
        (ENCODE, "spec.roles.encode", "spec.roles.encode", "it belongs to spec.roles.encode"),
        (Place(), "spec.roles.prefill", "the place under spec.roles", "the place under spec.roles sets it"),
        (PORT, None, "it is always 30000", "it is always 30000"),
        (METRICS, None, "metrics are always on", "metrics are always on"),
    ],
)
def test_an_owner_names_its_field_and_the_way_out(owner: Owner, field: str | None, setter: str, way_out: str) -> None:
    assert field_of(owner, "prefill") == field
    assert setter_of(owner) == setter
    assert instead(owner, "prefill") == way_out


@pytest.mark.parametrize(
    ("owner", "place", "label"),
    [
        (NODES, "spec.roles.prefill.nodes", None),
        (ENCODE, "spec.roles.encode", None),
        (Place(), "spec.roles.prefill", None),
        (PORT, "spec.roles.prefill.args.flag", "flag (always 30000)"),
        (METRICS, "spec.roles.prefill.args.flag", "flag (metrics are always on)"),
        (None, "spec.roles.prefill.args.flag", None),
    ],
)
def test_a_flag_is_changed_where_its_owner_says(owner: Owner | None, place: str, label: str | None) -> None:
    catalogue = Catalogue("1", {"flag": FlagSpec("flag", owner=owner)}, {})
    leaf = Leaf("flag", "flag", "str")
    assert place_of(leaf, "prefill", catalogue) == place
    assert label_of(leaf, catalogue) == label


def test_every_flag_that_rules_compute_has_an_owner() -> None:
    for ruleset in RULESETS.values():
        for version in ruleset.versions:
            catalogue = ruleset.catalogue(version, "prefill")
            assert all(catalogue.owner(name) is not None for name in ruleset.owned)
