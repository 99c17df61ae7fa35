"""Manifests of whole resources, reviewed as files. `EPD_REGENERATE=1` writes them anew."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typing_extensions import override

from tests.support.kubernetes import MINORS, require_known

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.world import World

FOLDER = Path(__file__).with_name("golden")
CASES = sorted(path.name.removesuffix(".cr.yaml") for path in FOLDER.glob("*.cr.yaml"))


class Dumper(yaml.SafeDumper):
    """Writes every object in full: an alias hides what a reviewer must see."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cr(case: str) -> dict[str, Any]:
    actual: dict[str, Any] = yaml.safe_load((FOLDER / f"{case}.cr.yaml").read_text(encoding="utf-8"))
    return actual


@pytest.fixture
def objects(make_world: type[World], cr: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    plan_result = make_world(cr).plan()
    assert plan_result.objects, plan_result.status["conditions"][0]["message"]
    return tuple(plan_result.objects)


def test_manifests_are_as_reviewed(case: str, objects: tuple[dict[str, Any], ...]) -> None:
    # The pod templates in the ControllerRevisions are those of Deployments and LeaderWorkerSets: shown once.
    shown = copy.deepcopy(list(objects))
    for obj in shown:
        if obj["kind"] == "ControllerRevision":
            obj["data"] = {"spec": dict.fromkeys(obj["data"]["spec"], "<as in what uses it>")}
    text = yaml.dump_all(shown, Dumper=Dumper, sort_keys=False, width=120)
    path = FOLDER / f"{case}.plan.yaml"
    if os.environ.get("EPD_REGENERATE"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "EPD_REGENERATE=1 writes the files anew: review the difference"


@pytest.mark.parametrize("minor", MINORS)
def test_kubernetes_accepts_every_object(minor: str, objects: tuple[dict[str, Any], ...]) -> None:
    for obj in objects:
        for plain in _built_in(obj):
            require_known(plain, minor)


def _built_in(obj: dict[str, Any]) -> list[dict[str, Any]]:
    """The object, or the pods of a LeaderWorkerSet, whose own schema is tried on an API server that has it."""
    if obj["kind"] != "LeaderWorkerSet":
        return [obj]
    return [{"apiVersion": "v1", "kind": "Pod", **template} for template in _templates(obj)]


def _templates(obj: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of an object, the leader's first."""
    if obj["kind"] == "Deployment":
        return [obj["spec"]["template"]]
    if obj["kind"] == "LeaderWorkerSet":
        group = obj["spec"]["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return []


def test_each_template_is_stored_before_it_is_used(objects: tuple[dict[str, Any], ...]) -> None:
    stored: list[Any] = []
    used = 0
    for obj in objects:
        if obj["kind"] == "ControllerRevision":
            stored += obj["data"]["spec"].values()
        for template in _templates(obj):
            used += 1
            assert template in stored
    assert used == len(stored)


def _containers(objects: tuple[dict[str, Any], ...]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for obj in objects:
        for template in _templates(obj):
            pod = template["spec"]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                yield pod, container


def test_every_pod_meets_the_restricted_profile(cr: dict[str, Any], objects: tuple[dict[str, Any], ...]) -> None:
    on_nodes = any(role.get("hostNetwork") for role in cr["spec"]["roles"].values())
    allowed = {"configMap", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"}
    for pod, container in _containers(objects):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostPID", "hostIPC"} & set(pod)
        assert pod.get("hostNetwork", False) == (on_nodes and container["name"] == "engine")
        assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert "privileged" not in security
        assert "memory" in container["resources"]["limits"]
        assert "cpu" not in container["resources"]["limits"]


def test_only_the_registrar_carries_a_token(objects: tuple[dict[str, Any], ...]) -> None:
    carriers = []
    for pod, container in _containers(objects):
        tokens = {
            volume["name"]
            for volume in pod["volumes"]
            if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
        }
        if any(mount["name"] in tokens for mount in container["volumeMounts"]):
            carriers.append(container["name"])
    assert carriers == ["registrar"]


def test_the_control_key_stays_in_memory_and_in_the_router_pod(objects: tuple[dict[str, Any], ...]) -> None:
    readers = []
    for pod, container in _containers(objects):
        if any(mount["name"] == "epd-control" for mount in container["volumeMounts"]):
            readers.append(container["name"])
            volume = next(volume for volume in pod["volumes"] if volume["name"] == "epd-control")
            assert volume["emptyDir"]["medium"] == "Memory"
    assert readers == ["draw-key", "router", "registrar"]


def test_nothing_of_the_resource_leaks_into_children(cr: dict[str, Any], objects: tuple[dict[str, Any], ...]) -> None:
    ours = {"app.kubernetes.io", "serving.epd.dev"}
    foreign = {**cr["metadata"].get("labels", {}), **cr["metadata"].get("annotations", {})}
    for obj in objects:
        metadata = obj["metadata"]
        assert {key.partition("/")[0] for key in metadata["labels"]} <= ours
        assert metadata["labels"]["app.kubernetes.io/instance"] == cr["metadata"]["name"]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "epd-operator"
        assert not set(metadata.get("annotations", {})) & set(foreign)
        owner = metadata["ownerReferences"]
        assert [(o["uid"], o["controller"], o["blockOwnerDeletion"]) for o in owner] == [
            (cr["metadata"]["uid"], True, True)
        ]
        assert len(metadata["name"]) <= 63
    text = yaml.dump_all(objects, Dumper=Dumper)
    assert "the-argo-application" not in text
    assert "tracking-id" not in text


def test_selectors_pick_the_pods_they_should(objects: tuple[dict[str, Any], ...]) -> None:
    templates = {
        obj["metadata"]["labels"]["app.kubernetes.io/component"]: actual[0]["metadata"]["labels"]
        for obj in objects
        if (actual := _templates(obj))
    }
    fields = {
        "Deployment": ("selector", "matchLabels"),
        "NetworkPolicy": ("podSelector", "matchLabels"),
        "PodDisruptionBudget": ("selector", "matchLabels"),
        "Service": ("selector",),
    }
    seen = set()
    for obj in objects:
        if obj["kind"] not in fields:
            continue
        actual = obj["spec"]
        for field in fields[obj["kind"]]:
            actual = actual[field]
        part = obj["metadata"]["labels"]["app.kubernetes.io/component"]
        picked = {name for name, labels in templates.items() if actual.items() <= labels.items()}
        assert picked == {part}
        seen.add((obj["kind"], part))
    # A budget for the one server of a pool would either say nothing or block its node.
    assert {part for kind, part in seen if kind == "PodDisruptionBudget"} == set(templates) - {"swa-pool"}
