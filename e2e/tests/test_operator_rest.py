"""The operator as installed: it rests when nothing is left to do, its restart is not seen, and one acts at a time.

These tests come after others that leave the twenty deployments alone, so that the two quiet minutes cost nothing.
"""

from __future__ import annotations

import datetime as dt
import time
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from e2e.fleet import MANY, now, operator_pods
from e2e.kube import until
from e2e.stack import OPERATOR_NAMESPACE
from e2e.tests import processes
from e2e.tests.audit import holder, spelled, writes

if TYPE_CHECKING:
    from e2e.fleet import Fleet
    from e2e.kube import Kube

QUIET = dt.timedelta(seconds=120)


def in_fleet(many: Fleet, since: dt.datetime) -> dict[str, int]:
    """The operator's writes to the twenty deployments."""
    path = f"/namespaces/{many.namespace}/"
    return {write: count for write, count in spelled(writes(since=since)).items() if path in write}


def test_no_write_at_rest(operator: Kube, many: Fleet) -> None:
    time.sleep(max(0.0, (many.settled + QUIET - now()).total_seconds()))
    assert not in_fleet(many, many.settled)
    assert len(in_fleet(many, many.began)) > MANY, "the same reading of the log must see the writes that made them"


def test_a_restart_writes_nothing_and_restarts_nothing(operator: Kube, many: Fleet) -> None:
    before = {pod["metadata"]["uid"] for pod in operator.pods(many.namespace)}
    since = now()
    old = {pod["metadata"]["name"] for pod in operator_pods(operator)}
    for name in old:
        operator.delete("v1", "Pod", OPERATOR_NAMESPACE, name)

    def replaced() -> bool:
        names = {pod["metadata"]["name"] for pod in operator_pods(operator)}
        leader = holder(operator)
        return len(names) == 2 and not names & old and any(leader.startswith(name) for name in names)

    until("two new operator pods, one of them leading", replaced, seconds=90)
    time.sleep(15)  # long enough for a first pass over everything
    assert not in_fleet(many, since)
    assert {pod["metadata"]["uid"] for pod in operator.pods(many.namespace)} == before


def test_leader_killed(operator: Kube, many: Fleet) -> None:
    since = now()
    first = holder(operator)
    leader = next(p["metadata"]["name"] for p in operator_pods(operator) if first.startswith(p["metadata"]["name"]))
    if not processes.kill(leader):
        pytest.skip("this cluster's pods are not processes of this machine: their leader cannot be killed from here")
    killed = time.monotonic()
    namespace = many.namespace
    operator.delete("v1", "Service", namespace, "many-00")
    until(
        "the deleted Service, back",
        lambda: operator.get("v1", "Service", namespace, "many-00"),
        seconds=20,
    )
    assert time.monotonic() - killed <= 20
    assert holder(operator) != first
    identities = [record["userAgent"] for record in writes(since=since)]
    blocks = [identity for identity, _ in groupby(identities)]
    assert blocks, "the audit log shows nobody making the Service anew"
    assert holder(operator) in blocks[-1]
    assert len(blocks) == len(set(blocks)), f"writers took turns: {blocks}"
    assert all("epd-operator/" in identity for identity in blocks)
    until("two operator pods again", lambda: len(operator_pods(operator)) == 2, seconds=60)
