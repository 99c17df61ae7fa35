from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from epd_operator.plan import Observed, Settings, plan
from epd_operator.runtime.permissions import PERMISSIONS
from epd_operator.runtime.watch_scope import OPTIONAL, OWNED, WATCHED, kind_of


def granted(group: str, resource: str) -> set[str]:
    return {verb for rule in PERMISSIONS if rule.group == group and resource in rule.resources for verb in rule.verbs}


@pytest.mark.parametrize("kind", [*WATCHED, *OPTIONAL], ids=lambda kind: kind.resource)
def test_everything_watched_may_be_listed_and_watched(kind: Any) -> None:
    assert {"list", "watch"} <= granted(kind.group, kind.plural)


@pytest.mark.parametrize("kind", OWNED, ids=lambda kind: kind.resource)
def test_children_may_be_made_changed_and_removed_and_no_more(kind: Any) -> None:
    assert granted(kind.group, kind.plural) == {"get", "list", "watch", "create", "patch", "delete"}


def test_every_planned_kind_is_watched_and_granted() -> None:
    custom = {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1},
        "spec": {
            "model": {"path": "/weights"},
            "engine": {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "sglang:1"},
            "transfer": {"backend": "mooncake_tcp"},
            "roles": {"prefill": {"nodes": 2, "args": {"tp-size": 8}}, "decode": {}},
        },
    }
    toy = {
        **custom,
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {"prefill": {"encoderReplay": True}, "decode": {}},
            "swaPool": {"mode": "Valkey"},
        },
    }
    observed = Observed((), (), (), (), (), datetime(2026, 1, 1, tzinfo=UTC))
    settings = Settings("r:1", "w:1", "0")
    planned = {kind_of(obj) for each in (custom, toy) for obj in plan(each, observed, settings).objects}
    assert planned == set(OWNED)


def test_nothing_broad_and_nothing_secret() -> None:
    for rule in PERMISSIONS:
        words = {rule.group, *rule.resources, *rule.verbs}
        assert not words & {"*", "secrets", "nodes", "namespaces", "customresourcedefinitions"}
        assert not set(rule.verbs) & {"escalate", "bind", "impersonate", "deletecollection"}
        assert set(rule.implicit) <= set(rule.verbs)
        assert rule.why


def test_no_rule_stands_twice() -> None:
    rows = Counter(
        (r.group, resource, verb, r.scope) for r in PERMISSIONS for resource in r.resources for verb in r.verbs
    )
    assert max(rows.values()) == 1


def test_an_unknown_kind_is_refused_with_a_hint() -> None:
    with pytest.raises(LookupError, match=r"runtime\.watch_scope\.OWNED"):
        kind_of({"apiVersion": "v1", "kind": "Secret"})
