"""The chart and the plain manifests with the real programs: helm, kubectl's kustomize, kubeconform, kube-score.

kubeconform needs schemas. They are derived from the OpenAPI document of the API server that the tests run against, so
they are exactly those of its version, and nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e import stack as stacks
from epd_operator import __version__
from epd_operator.api.status import CONDITION_TYPES
from tools.cluster import access

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.kube import Kube

ROOT = stacks.ROOT
CHART = ROOT / "charts" / "epd-operator"
INSTALL = ROOT / "manifests" / "install"
OPERATOR = INSTALL / "operator.yaml"
HEADER = (
    "# Rendered from charts/epd-operator with its default values: change the chart. EPD_REGENERATE=1 writes it anew.\n"
)

# What kube-score finds and why it stays so.
EXCEPTIONS = {
    "container-resources": "a CPU limit would throttle the operator, delay its lease and lose leadership",
    "container-image-pull-policy": "references are release tags or digests; Always would tie restarts to a registry",
}

VARIANTS: dict[str, list[str]] = {
    "defaults": [],
    "two namespaces": ["--set", "watchNamespaces={llm,team-b}"],
    "everything off": [
        "--set",
        "crds.enabled=false,rbac.aggregateToDefaultRoles=false,podDisruptionBudget.enabled=false",
        "--set",
        "networkPolicy.enabled=false,metrics.service=false,admission.enabled=false",
    ],
    "everything set": [
        "--set-json",
        json.dumps(
            {
                "images": {
                    "registry": "registry.example.com/epd",
                    "worker": "registry.example.com/w@sha256:" + "0" * 64,
                    "pullSecrets": ["pull"],
                },
                "serviceAccount": {"annotations": {"example.com/a": "b"}},
                "podLabels": {"team": "serving"},
                "podAnnotations": {"example.com/c": "d"},
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "priorityClassName": "system-cluster-critical",
                "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
            }
        ),
    ],
}


def run(*command: str | Path, text: str | None = None) -> str:
    """Run a program; its standard output, or a failure with what it said."""
    done = subprocess.run([str(word) for word in command], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def template(*flags: str, namespace: str = "epd-system") -> str:
    return run(access.tool("helm"), "template", "epd-operator", CHART, "--namespace", namespace, *flags)


def documents(text: str) -> list[dict[str, Any]]:
    # The C parser: the policies are half a megabyte.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


pytestmark = pytest.mark.usefixtures("able")


def test_helm_lints_it_strictly() -> None:
    run(access.tool("helm"), "lint", "--strict", CHART)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("replica=3", "additional properties 'replica' not allowed"),
        ("replicas=-1", "minimum: got -1, want 0"),
        ("images.pullPolicy=Sometimes", "value must be one of"),
        ("watchNamespaces={Not_A_Name}", "does not match pattern"),
        ("images.registry=registry.example.com/", "does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused(value: str, message: str) -> None:
    done = subprocess.run(
        [access.tool("helm"), "template", "x", CHART, "--set", value], text=True, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert message in done.stderr


def test_image_references() -> None:
    def images(*flags: str) -> list[str]:
        (deployment,) = (document for document in documents(template(*flags)) if document["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        return [container["image"], variables["EPD_ROUTER_IMAGE"], variables["EPD_WORKER_IMAGE"]]

    assert images() == [f"epd-{name}:{__version__}" for name in ("operator", "router", "worker")]
    assert images("--set", "images.registry=r.example/e,images.tag=v9,images.worker=w@sha256:1") == [
        "r.example/e/epd-operator:v9",
        "r.example/e/epd-router:v9",
        "w@sha256:1",
    ]


def test_alerts_are_about_metrics_and_conditions_that_exist() -> None:
    assert not [document for document in documents(template()) if document["kind"] == "PrometheusRule"]
    (rule,) = (
        document
        for document in documents(template("--set", "metrics.alerts=true"))
        if document["kind"] == "PrometheusRule"
    )
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    for alert in alerts:
        assert set(re.findall(r"(\w+)\{", alert["expr"])) == {"epd_deployments"}
        assert set(re.findall(r'condition="(\w+)"', alert["expr"])) <= set(CONDITION_TYPES)
        assert alert["alert"] in runbook
    assert alerts


def test_two_releases_in_one_namespace_share_no_name() -> None:
    def names(release: str) -> set[tuple[str, str]]:
        text = run(access.tool("helm"), "template", release, CHART, "--set", "crds.enabled=false")
        return {(document["kind"], document["metadata"]["name"]) for document in documents(text)}

    assert not names("a") & names("b")
    long = run(access.tool("helm"), "template", "r" * 53, CHART)
    assert all(len(document["metadata"]["name"]) <= 63 for document in documents(long))


def test_the_plain_manifests_are_the_rendered_chart() -> None:
    rendered = plain(documents(template("--set", "crds.enabled=false,admission.enabled=false")))
    text = HEADER + yaml.safe_dump_all(rendered, sort_keys=False, width=110)
    if os.environ.get("EPD_REGENERATE"):
        OPERATOR.write_text(text, encoding="utf-8")
    assert OPERATOR.read_text(encoding="utf-8") == text, "EPD_REGENERATE=1 writes the file anew: review the difference"


def test_kustomize_makes_the_chart_s_crd_and_policies() -> None:
    def shared(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        kinds = ("CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        return {_name(one): one for one in objects if one["kind"] in kinds}

    rendered = shared(plain(documents(template())))
    for document in rendered.values():
        document["metadata"].pop("annotations", None)  # helm.sh/resource-policy
    assert len(rendered) == 7
    assert shared(documents(run(access.tool("kubectl"), "kustomize", INSTALL))) == rendered


def test_policies_apply_where_the_operator_watches_unless_told_otherwise() -> None:
    def selectors(*flags: str) -> list[dict[str, Any]]:
        actual = [one["spec"] for one in documents(template(*flags)) if one["kind"].endswith("AdmissionPolicyBinding")]
        assert actual
        return [one["matchResources"]["namespaceSelector"] for one in actual]

    watched = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["llm", "team-b"]}
    assert all(one == {} for one in selectors())
    assert all(one == {"matchExpressions": [watched]} for one in selectors("--set", "watchNamespaces={llm,team-b}"))
    chosen = selectors("--set", "watchNamespaces={llm},admission.namespaceSelector.matchLabels.tier=prod")
    assert all(one == {"matchLabels": {"tier": "prod"}} for one in chosen)


def _name(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def plain(actual: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chart's objects without Helm's marks, in the order in which they need each other."""
    order = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    for document in actual:
        labels = document["metadata"]["labels"]
        del labels["helm.sh/chart"], labels["app.kubernetes.io/managed-by"]
    return sorted(actual, key=lambda one: order.index(one["kind"]) if one["kind"] in order else len(order))


def test_kustomize_builds_the_folders() -> None:
    kinds = {document["kind"] for document in documents(run(access.tool("kubectl"), "kustomize", INSTALL))}
    assert {"Namespace", "CustomResourceDefinition", "Deployment", "ClusterRole"} <= kinds
    samples = documents(run(access.tool("kubectl"), "kustomize", ROOT / "manifests" / "samples"))
    assert {document["kind"] for document in samples} == {"DeepSeekV41Deployment"}


@pytest.fixture(scope="module")
def schemas(operator: Kube, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of strict JSON schemas, one for each kind that the API server knows, ours included."""
    folder = tmp_path_factory.mktemp("schemas")
    definitions = json.loads(operator.raw("/openapi/v2"))["definitions"]
    strict = {name: _strict(definition) for name, definition in definitions.items()}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            prefix = f"{kind['group'].split('.')[0]}-" if kind["group"] else ""
            path = folder / f"{kind['kind'].lower()}-{prefix}{kind['version']}.json"
            reachable = {used: strict[used] for used in _reachable(name, strict)}
            path.write_text(json.dumps({"$ref": f"#/definitions/{name}", "definitions": reachable}), encoding="utf-8")
    return folder


def _strict(node: dict[str, Any]) -> dict[str, Any]:
    """Swagger's spelling of a schema as JSON schema: no unknown fields, int-or-string as both."""
    if str(node.get("$ref", "")).endswith("apimachinery.pkg.api.resource.Quantity"):
        return {"type": ["number", "string"]}
    actual = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if "properties" in node:
        actual["properties"] = {name: _strict(child) for name, child in node["properties"].items()}
        actual.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            actual[key] = _strict(node[key])
    if node.get("format") == "int-or-string" or node.get("x-kubernetes-int-or-string"):
        actual["type"] = ["integer", "string"]
    return actual


def _reachable(name: str, definitions: dict[str, Any]) -> set[str]:
    seen: set[str] = set()
    rest = [name]
    while rest:
        current = rest.pop()
        if current not in seen:
            seen.add(current)
            rest += _references(definitions[current])
    return seen


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rsplit("/", 1)[1]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def kubeconform(schemas: Path, text: str) -> subprocess.CompletedProcess[str]:
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [
        str(access.tool("kubeconform")),
        "-strict",
        "-summary",
        "-output",
        "json",
        "-schema-location",
        location,
        "-",
    ]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rendered_manifests_pass_kubeconform(schemas: Path, variant: str) -> None:
    text = template(*VARIANTS[variant])
    done = kubeconform(schemas, text)
    assert done.returncode == 0, done.stdout
    summary = json.loads(done.stdout)["summary"]
    assert summary["valid"] == len(documents(text))
    assert summary["skipped"] == 0


def test_plain_manifests_and_samples_pass_kubeconform(schemas: Path) -> None:
    for folder in (INSTALL, ROOT / "manifests" / "samples"):
        done = kubeconform(schemas, run(access.tool("kubectl"), "kustomize", folder))
        assert done.returncode == 0, done.stdout


def test_kubeconform_would_notice(schemas: Path) -> None:
    text = template().replace("revisionHistoryLimit:", "revisionHistoryLimits:")
    done = kubeconform(schemas, text)
    assert done.returncode != 0
    assert "revisionHistoryLimits" in done.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_rendered_manifests_pass_kube_score(variant: str) -> None:
    actual = findings(template(*VARIANTS[variant]))
    if variant == "everything off":
        # Whoever turns budget and policy off is told by kube-score, and by nobody else.
        actual -= {"deployment-has-poddisruptionbudget", "pod-networkpolicy"}
    assert actual <= set(EXCEPTIONS)


def test_every_exception_is_still_needed() -> None:
    assert findings(template()) == set(EXCEPTIONS)


def findings(text: str) -> set[str]:
    """The names of kube-score's checks that a manifest fails."""
    command = [str(access.tool("kube-score")), "score", "--kubernetes-version", "v1.36", "--output-format", "json", "-"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    scored = json.loads(done.stdout)
    assert scored, done.stderr
    return {
        check["check"]["id"]
        for obj in scored
        for check in obj["checks"]
        if not check["skipped"] and check["grade"] < 5  # 1 critical, 5 warning, 7 almost, 10 all right
    }


def test_an_upgrade_that_drops_the_crd_from_the_chart_keeps_it_and_what_it_holds(
    operator: Kube, stack: stacks.Stack
) -> None:
    operator.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "e2e-keep"}})
    document = yaml.safe_load((ROOT / "manifests" / "samples" / "text-only.yaml").read_text())
    document["metadata"]["namespace"] = "e2e-keep"
    document["spec"]["router"] = {"replicas": 0}
    for role in document["spec"]["roles"].values():
        role["replicas"] = 0
    uid = operator.apply(document)["metadata"]["uid"]
    try:
        stacks.install(stack, "crds.enabled=false")
        kept = operator.deployment("e2e-keep", "text")
        assert kept
        assert kept["metadata"]["uid"] == uid
        stacks.install(stack)  # and it is adopted again
        kept = operator.deployment("e2e-keep", "text")
        assert kept
        assert kept["metadata"]["uid"] == uid
    finally:
        operator.delete("v1", "Namespace", None, "e2e-keep")
