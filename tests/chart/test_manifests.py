"""What can be said about chart and manifests without helm or a cluster; the rest is in e2e/tests/test_chart.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from epd_operator import __version__
from epd_operator.admission import manifest
from epd_operator.api import crd
from epd_operator.engines.validation import validate
from epd_operator.runtime.config import from_environment
from epd_operator.runtime.permissions import PERMISSIONS, Permission
from tests.support.kubernetes import OLDEST, require_known

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "epd-operator"
INSTALL = ROOT / "manifests" / "install"
SAMPLES = sorted(path for path in (ROOT / "manifests" / "samples").glob("*.yaml") if path.name != "kustomization.yaml")
OPERATOR = [item for item in yaml.safe_load_all((INSTALL / "operator.yaml").read_text(encoding="utf-8")) if item]

Verb = tuple[str, str, str, str]  # group, resource, verb, resource name


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [item for item in OPERATOR if item["kind"] == kind]


def pod() -> dict[str, Any]:
    (deployment,) = of_kind("Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def granted(rules: list[dict[str, Any]]) -> set[Verb]:
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def needed(rows: list[Permission]) -> set[Verb]:
    return {
        (row.group, resource, verb, name)
        for row in rows
        for resource in row.resources
        for verb in row.verbs
        for name in row.names or ("",)
    }


def bound_to_the_operator(kind: str) -> list[dict[str, Any]]:
    """Rules of the roles that a binding gives to the operator's service account."""
    (account,) = of_kind("ServiceAccount")
    subject = {
        "kind": "ServiceAccount",
        "name": account["metadata"]["name"],
        "namespace": account["metadata"]["namespace"],
    }
    names = {item["roleRef"]["name"] for item in of_kind(f"{kind}Binding") if item["subjects"] == [subject]}
    return [rule for item in of_kind(kind) if item["metadata"]["name"] in names for rule in item["rules"]]


@pytest.mark.parametrize(("kind", "scope"), [("ClusterRole", "watched"), ("Role", "own")])
def test_the_operator_is_granted_exactly_what_it_uses(kind: str, scope: str) -> None:
    rows = [row for row in PERMISSIONS if row.scope == scope]
    assert granted(bound_to_the_operator(kind)) == needed(rows)


def test_no_role_grants_secrets_wildcards_or_more_rights() -> None:
    rules = [rule for kind in ("ClusterRole", "Role") for item in of_kind(kind) for rule in item["rules"]]
    verbs = granted(rules)
    assert not {verb for verb in verbs if "*" in verb}
    assert not {verb for verb in verbs if verb[1].split("/")[0] in {"secrets", "nodes", "namespaces"}}
    assert not {verb for verb in verbs if verb[2] in {"escalate", "bind", "impersonate"}}


def test_the_roles_for_people_reach_custom_resources_only() -> None:
    for item in of_kind("ClusterRole"):
        if any("aggregate-to-" in label for label in item["metadata"]["labels"]):
            assert {group for group, *_ in granted(item["rules"])} == {"serving.epd.dev"}


def test_the_pod_is_restricted() -> None:
    spec = pod()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert "cpu" not in container["resources"]["limits"]


def test_the_operator_understands_its_environment_and_listens_where_it_is_probed() -> None:
    (container,) = pod()["containers"]
    environment = {entry["name"]: entry.get("value", "given by the kubelet") for entry in container["env"]}
    config = from_environment(environment)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": config.metrics_port, "probes": config.probes_port}
    assert config.lease == "epd-operator"
    assert config.scope.namespaces == ()
    assert (config.router_image, config.worker_image) == (f"epd-router:{__version__}", f"epd-worker:{__version__}")
    assert [*container["command"], container["args"][0]] == ["epd", "run"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "probes"


def test_two_replicas_and_a_budget_for_one() -> None:
    (deployment,) = of_kind("Deployment")
    (budget,) = of_kind("PodDisruptionBudget")
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    for selecting in (budget, *of_kind("NetworkPolicy")):
        selector = selecting["spec"].get("selector") or selecting["spec"]["podSelector"]
        assert selector["matchLabels"].items() <= labels


@pytest.mark.parametrize("document", OPERATOR, ids=lambda actual: f"{actual['kind']}/{actual['metadata']['name']}")
def test_kubernetes_knows_every_field(document: dict[str, Any]) -> None:
    require_known(document, OLDEST)


def kinds(path: Path) -> set[str]:
    """The kinds of the objects in a file of YAML or of a chart's templates."""
    return set(re.findall(r"^kind: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_crd_and_the_policies_are_in_the_repository_once() -> None:
    """Helm reads its own folder only, kustomize takes that folder as a base: nobody needs a copy."""
    files = [path for folder in (ROOT / "charts", ROOT / "manifests") for path in sorted(folder.rglob("*.yaml"))]
    assert [path for path in files if "CustomResourceDefinition" in kinds(path)] == [CHART / "files" / "crd.yaml"]
    policies = [path for path in files if "ValidatingAdmissionPolicy" in kinds(path)]
    assert policies == [CHART / "files" / "admission.yaml"]
    assert not [path for path in files if path.is_symlink()]  # not every client of git and of Helm follows them


def test_the_files_of_the_chart_are_what_the_code_says() -> None:
    assert (ROOT / crd.FILE).read_text(encoding="utf-8") == crd.text(), (
        f"run: python -m epd_operator.api.crd {crd.FILE}"
    )
    for path, text in manifest.texts().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run `make generate`"


def test_the_templates_read_the_files_that_are_there() -> None:
    read = {
        name
        for template in (CHART / "templates").iterdir()
        for name in re.findall(r'\.Files\.Get "([^"]+)"', template.read_text(encoding="utf-8"))
    }
    files = {f"files/{path.name}" for path in (CHART / "files").iterdir()}
    # kustomize's file is of no use inside of a packaged chart.
    ignored = set((CHART / ".helmignore").read_text(encoding="utf-8").split()) & files
    assert (read, ignored) == (files - ignored, {"files/kustomization.yaml"})


def test_the_plain_manifests_name_and_label_the_policies_as_the_chart_does() -> None:
    """That kustomize then makes the chart's very objects is seen by e2e/tests/test_chart.py."""
    whole = kustomization(INSTALL / "api")
    assert whole["namePrefix"] == f"{manifest.INSTANCE}-"
    (labels,) = whole["labels"]
    (account,) = of_kind("ServiceAccount")
    assert labels == {"pairs": account["metadata"]["labels"]}
    assert (INSTALL / "api" / whole["resources"][0]).resolve() == CHART / "files"


def test_default_values_fit_their_schema_and_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema, jsonschema.Draft7Validator)
    assert set(values) == set(schema["properties"]) - {"global"}
    for name, value in values.items():
        fields = schema["properties"][name].get("properties")
        if fields:
            assert set(value) == set(fields), name


def test_the_chart_s_version_is_the_project_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_samples_are_valid_and_the_engine_takes_them(path: Path) -> None:
    judgement = validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert judgement.findings == ()


def kustomization(folder: Path) -> dict[str, Any]:
    kustomization: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    return kustomization


@pytest.mark.parametrize(
    "folder", [INSTALL, ROOT / "manifests" / "samples", CHART / "files"], ids=lambda path: path.name
)
def test_kustomizations_list_every_file(folder: Path) -> None:
    entries = {path.name for path in folder.iterdir() if path.is_dir() or path.suffix == ".yaml"}
    assert sorted(kustomization(folder)["resources"]) == sorted(entries - {"kustomization.yaml"})


def test_the_chart_s_readme_names_every_value() -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    sections = ("images", "crds", "rbac", "networkPolicy", "podDisruptionBudget", "metrics", "log", "serviceAccount")
    for name, value in values.items():
        for leaf in value if name in sections else [name]:
            assert leaf in readme, f"{name}.{leaf}" if leaf != name else name
