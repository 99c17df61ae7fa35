"""What the API server's audit log says of the operator, and which of its pods acts."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from e2e.stack import OPERATOR_NAMESPACE
from tools.cluster import access

if TYPE_CHECKING:
    from e2e.kube import Kube, Object

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
ACCOUNT = f"system:serviceaccount:{OPERATOR_NAMESPACE}:epd-operator"


def holder(kube: Kube) -> str:
    """The lease holder's identity; it starts with the holder's pod name."""
    lease = kube.get("coordination.k8s.io/v1", "Lease", OPERATOR_NAMESPACE, "epd-operator") or {}
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def writes(*, since: dt.datetime) -> list[Object]:
    """The operator's writes that the API server's audit log has seen, the lease and events left out."""
    log = access.audit_log()
    if log is None:
        pytest.skip("this cluster's audit log cannot be read (only the local cluster's can)")
    actual = []
    for line in log.read_text().splitlines():
        record = json.loads(line)
        if record["stage"] != "ResponseComplete" or record["verb"] not in WRITES:
            continue
        at = dt.datetime.fromisoformat(record["requestReceivedTimestamp"])
        resource = record.get("objectRef", {}).get("resource")
        if record["user"].get("username") == ACCOUNT and at >= since and resource not in {"leases", "events"}:
            actual.append(record)
    return actual


def spelled(records: list[Object]) -> Counter[str]:
    """Writes as a person reads them."""
    return Counter(f"{record['verb']} {record['requestURI'].partition('?')[0]}" for record in records)
