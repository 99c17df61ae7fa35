"""Least privilege, read off the API server's audit log of the whole run.

Nothing that the operator needs was refused, and nothing that it was granted went unused.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from e2e.stack import OPERATOR_NAMESPACE
from epd_operator.api.names import MANAGED_SELECTOR, SWA_POOL
from epd_operator.runtime.permissions import PERMISSIONS
from tools.cluster import access

if TYPE_CHECKING:
    from e2e.kube import Kube, Object

ACCOUNT = f"system:serviceaccount:{OPERATOR_NAMESPACE}:epd-operator"
Verb = tuple[str, str, str]  # API group, resource with subresource, verb


@pytest.fixture(scope="module")
def audited(operator: Kube) -> list[Object]:
    """What the operator asked of the API server, one record a request."""
    log = access.audit_log()
    if log is None:
        pytest.skip("this cluster's audit log cannot be read (only the local cluster's can)")
    records = []
    for line in log.read_text().splitlines():
        record = json.loads(line)
        # An open watch has only been answered, never completed.
        stage = "ResponseStarted" if record["verb"] == "watch" else "ResponseComplete"
        if record["user"].get("username") == ACCOUNT and record["stage"] == stage:
            records.append(record)
    assert records, "the operator never asked anything"
    return records


def granted(kube: Kube) -> set[Verb]:
    """Every verb the operator's roles grant, read from the cluster."""
    actual: set[Verb] = set()
    group = "rbac.authorization.k8s.io/v1"
    roles = kube.find(group, "ClusterRole", None, "app.kubernetes.io/name=epd-operator")
    roles += kube.find(group, "Role", OPERATOR_NAMESPACE, "app.kubernetes.io/name=epd-operator")
    for role in roles:
        for rule in role["rules"]:
            actual |= {(g, r, v) for g in rule.get("apiGroups", []) for r in rule["resources"] for v in rule["verbs"]}
    return actual


def used(records: list[Object]) -> set[Verb]:
    """Every verb the operator used with success."""
    actual: set[Verb] = set()
    for record in records:
        ref = record.get("objectRef")
        if ref and record["responseStatus"]["code"] != 403:
            resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
            actual.add((ref.get("apiGroup", ""), resource, record["verb"]))
    return actual


def test_nothing_the_operator_asks_is_refused(audited: list[Object]) -> None:
    refused: dict[str, int] = defaultdict(int)
    for record in audited:
        # A namespace on its way out refuses new objects, and the first refusal is how the operator learns of it.
        leaving = "is being terminated" in record["responseStatus"].get("message", "")
        if record["responseStatus"]["code"] == 403 and not leaving:
            refused[f"{record['verb']} {record['requestURI']}: {record['responseStatus'].get('message')}"] += 1
    assert not refused


def test_nothing_granted_is_unused(operator: Kube, audited: list[Object]) -> None:
    implicit = {
        (rule.group, resource, verb) for rule in PERMISSIONS for resource in rule.resources for verb in rule.implicit
    }
    assert not granted(operator) - used(audited) - implicit


def test_no_wildcards_and_no_secrets(operator: Kube) -> None:
    for group, resource, verb in granted(operator):
        assert "*" not in (group, resource, verb)
        assert resource != "secrets"
        assert verb not in {"escalate", "impersonate", "bind", "deletecollection"}


def test_of_config_maps_only_ours_are_read(audited: list[Object]) -> None:
    asked = [record for record in audited if (record.get("objectRef") or {}).get("resource") == "configmaps"]
    assert asked
    for record in asked:
        if record["verb"] in {"list", "watch"}:
            selector = parse_qs(urlsplit(record["requestURI"]).query)["labelSelector"]
            assert selector == [MANAGED_SELECTOR]
        else:
            assert record["objectRef"]["name"].endswith(f"-{SWA_POOL}")
