"""The generated CRD on a real API server: what it takes, what it refuses, and in which words.

The documents are those of `tests/support/corpus.yaml`: the API server and `epd_operator.api.parse` cannot drift apart.
"""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.corpus import Case, cases
from tools.cluster import access

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.kube import Kube

ROOT = Path(__file__).parents[2]
CRD = ROOT / "charts" / "epd-operator" / "files" / "crd.yaml"
CASES = cases()


def kubectl(*args: str, document: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl as a user would, and keep what it says."""
    text = yaml.safe_dump(document) if document else None
    return subprocess.run([*access.kubectl(), *args], input=text, text=True, capture_output=True, check=False)


@pytest.fixture(scope="module")
def namespace(operator: Kube, new_namespace: Callable[[str], str]) -> str:
    """A namespace on a cluster where the chart has installed the CRD."""
    return new_namespace("e2e-crd")


def apply(namespace: str, document: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
    return kubectl("apply", "--validate=strict", "--namespace", namespace, *flags, "-f", "-", document=document)


@pytest.mark.usefixtures("operator")
def test_the_crd_is_taken_whole_under_strict_validation() -> None:
    done = kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", str(CRD)
    )
    assert done.returncode == 0, done.stderr
    established = kubectl("get", "-f", str(CRD), "-o", "jsonpath={.status.conditions[?(@.type=='Established')].status}")
    assert established.stdout == "True"
    structural = kubectl("get", "-f", str(CRD), "-o", "jsonpath={.status.conditions[?(@.type=='NonStructuralSchema')]}")
    assert structural.stdout == ""


@pytest.mark.parametrize("case", [case for case in CASES if case.server is None], ids=lambda case: case.name)
def test_a_good_document_is_accepted(namespace: str, case: Case) -> None:
    done = apply(namespace, case.document, "--dry-run=server")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", [case for case in CASES if case.server is not None], ids=lambda case: case.name)
def test_a_bad_document_is_refused_at_apply_in_these_words(namespace: str, case: Case) -> None:
    done = apply(namespace, case.document)
    assert done.returncode != 0
    assert case.server is not None
    assert case.server in done.stderr


@pytest.fixture
def idle(namespace: str) -> dict[str, Any]:
    """A stored deployment without any pod."""
    (scaled,) = (case.document for case in CASES if case.name == "scaled to zero")
    document: dict[str, Any] = {**copy.deepcopy(scaled), "metadata": {"name": "idle"}}
    document["spec"]["router"] = {"replicas": 0}
    done = apply(namespace, document)
    assert done.returncode == 0, done.stderr
    return document


def test_the_engine_s_type_cannot_be_changed(namespace: str, idle: dict[str, Any]) -> None:
    idle["spec"]["engine"] = {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "engine:1"}
    idle["spec"]["model"] = {"path": "/model"}
    done = apply(namespace, idle)
    assert done.returncode != 0
    assert "spec.engine.type cannot be changed: create a second DeepSeekV41Deployment" in done.stderr


def test_kubectl_get_shows_the_columns(namespace: str, idle: dict[str, Any]) -> None:
    header = kubectl("get", "dsv41", "--namespace", namespace, idle["metadata"]["name"]).stdout.splitlines()[0]
    assert header.split() == ["NAME", "READY", "REASON", "MODEL", "ENCODE", "PREFILL", "DECODE", "AGE"]


def test_a_new_object_looks_unready_before_the_operator_has_seen_it(namespace: str) -> None:
    (smallest,) = (case.document for case in CASES if case.name == "smallest")
    done = apply(namespace, smallest, "--dry-run=server", "-o", "jsonpath={.status.observedGeneration}")
    assert done.stdout == "-1"


@pytest.mark.usefixtures("operator")
def test_explain_reads_well() -> None:
    text = " ".join(kubectl("explain", "dsv41.spec.roles.prefill").stdout.split())
    assert "Reads the prompt, and hands its key/value pages to a decode pod." in text
    assert "args <map[string]Object> Engine flags: full name without dashes to a scalar or a list" in text
    assert "replicas <integer> Number of pods, or of groups of pods when nodes is above 1; default 1." in text
    assert "<no description>" not in kubectl("explain", "dsv41.spec").stdout.split("FIELDS", 1)[1]
