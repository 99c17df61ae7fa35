"""Runs the health checks that Argo CD and Flux would run, on the same objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cel
import jsonschema
import lupa
import pytest
import yaml

from epd_operator.api.crd import schema
from epd_operator.plan.conditions.reason import Reason

GITOPS = Path(__file__).parents[2] / "manifests" / "gitops"
ARGO = GITOPS / "argocd" / "serving.epd.dev" / "DeepSeekV41Deployment"
CASES = yaml.safe_load((ARGO / "health_test.yaml").read_text(encoding="utf-8"))["tests"]
STATUS = schema()["properties"]["status"]
FLUX = {"Healthy": "current", "Degraded": "failed"}


def document(case: dict[str, Any]) -> dict[str, Any]:
    actual: dict[str, Any] = yaml.safe_load((ARGO / case["inputPath"]).read_text(encoding="utf-8"))
    return actual


def name(case: dict[str, Any]) -> str:
    return Path(case["inputPath"]).stem


@pytest.mark.parametrize("case", CASES, ids=name)
def test_argo_cd_s_verdict(case: dict[str, Any]) -> None:
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)
    lua.globals()["obj"] = lua.table_from(document(case), recursive=True)
    health = lua.execute((ARGO / "health.lua").read_text(encoding="utf-8"))
    assert dict(health.items()) == case["healthStatus"]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_test_data_are_what_the_operator_writes(case: dict[str, Any]) -> None:
    status = document(case).get("status", {})
    jsonschema.validate(status, STATUS)
    reasons = {reason.value for reason in Reason}
    assert {condition["reason"] for condition in status.get("conditions", ())} <= reasons


def test_every_file_of_test_data_is_used() -> None:
    assert {path.name for path in (ARGO / "testdata").glob("*")} == {Path(case["inputPath"]).name for case in CASES}


def test_the_patch_for_argo_cd_carries_the_script() -> None:
    patch = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text(encoding="utf-8"))
    assert list(patch["data"].values()) == [(ARGO / "health.lua").read_text(encoding="utf-8")]
    assert list(patch["data"]) == ["resource.customizations.health.serving.epd.dev_DeepSeekV41Deployment"]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_flux_s_verdict(case: dict[str, Any]) -> None:
    actual = yaml.safe_load((GITOPS / "flux" / "kustomization.yaml").read_text(encoding="utf-8"))
    (checks,) = actual["spec"]["healthCheckExprs"]
    # Flux asks in this order, and takes the first that holds; none means still in progress. A missing status is an
    # empty one to it.
    whole = {"status": {}, **document(case)}
    verdict = next(
        (asked for asked in ("inProgress", "failed", "current") if cel.evaluate(checks[asked], whole)), "inProgress"
    )
    expected = FLUX.get(case["healthStatus"]["status"], "inProgress")
    if name(case) == "no_longer_available":
        expected = "inProgress"  # Flux's timeout decides: the pods may come back
    assert verdict == expected
