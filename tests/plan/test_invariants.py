"""What holds for every resource: properties of the plan as a function."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import given, settings

from epd_operator.plan import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.world import World

few = settings(max_examples=30)  # a deadline would time the machine, not the plan

names = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
replicas = st.none() | st.integers(0, 4)
env = st.dictionaries(
    st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True).filter("POD_IP".__ne__), st.text("ab", max_size=3)
)
labels = st.dictionaries(
    st.sampled_from(
        [
            "argocd.argoproj.io/instance",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/part-of",
            "serving.epd.dev/revision",
            "helm.toolkit.fluxcd.io/name",
        ]
    ),
    st.just("leaked"),
)


def absent(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if inner is not None}


def role(flags: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "replicas": replicas,
            "args": st.fixed_dictionaries({}, optional=flags),
            "env": env,
            "startupMinutes": st.none() | st.integers(1, 90),
            "resources": st.sampled_from([{}, {"cpu": "2"}, {"memory": "2Gi"}]),
            "pod": st.sampled_from([{}, {"priorityClassName": "high"}, {"terminationGracePeriodSeconds": 90}]),
        }
    ).map(absent)


serving = {"chunked-prefill-size": st.sampled_from([512, 1024]), "max-running-requests": st.sampled_from([8, 16])}
router = st.fixed_dictionaries(
    {
        "replicas": replicas,
        "requestTimeoutSeconds": st.none() | st.integers(1, 60),
        "image": st.none() | st.just("registry/router:own"),
        "apiKeySecret": st.none() | st.just({"name": "client", "key": "key"}),
    }
).map(absent)

pools: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["Disabled", "InProcess", "Valkey", "Mooncake"]),
        "ttl": st.none() | st.sampled_from(["30s", "10m"]),
    }
).map(absent)


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    roles = {"prefill": draw(role(serving)), "decode": draw(role(serving))}
    if draw(st.booleans()):
        roles["encode"] = draw(role({}))
    page_size = draw(st.sampled_from([None, 64, 128]))
    if page_size is not None:
        for name in ("prefill", "decode"):
            roles[name]["args"]["page-size"] = page_size
    pool = draw(pools)
    if pool:
        roles["prefill"]["encoderReplay"] = True
    engine = {"type": "Reference", "version": "0.1", "image": draw(st.none() | st.just("registry/engine:own"))}
    return {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {
            "name": draw(names),
            "namespace": "llm",
            "uid": "uid-of-it",
            "generation": 1,
            "labels": draw(labels),
            "annotations": draw(labels),
        },
        "spec": {
            "engine": absent(engine),
            "roles": roles,
            "router": draw(router),
            "networkPolicy": {"enabled": draw(st.booleans())},
            "swaPool": pool,
        },
    }


def gpu_role(flags: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "replicas": replicas,
            "nodes": st.sampled_from([None, 1, 2]),
            "args": st.fixed_dictionaries({"tp-size": st.sampled_from([4, 8])}, optional=flags),
            "resources": st.sampled_from([{}, {"memory": "64Gi"}, {"shm": "8Gi", "rdma": 1}]),
            "hostNetwork": st.none() | st.booleans(),
            "pod": st.sampled_from([{}, {"priorityClassName": "high"}]),
        }
    ).map(absent)


@st.composite
def gpu_resources(draw: st.DrawFn) -> dict[str, Any]:
    cr = draw(resources())
    cr["metadata"]["name"] = cr["metadata"]["name"][:31].rstrip("-")
    prefill = {"chunked-prefill-size": st.sampled_from([4096, 8192])}
    roles = {
        "prefill": {**draw(gpu_role(prefill)), "decoderReplay": draw(st.sampled_from(["Auto", "On", "Off"]))},
        "decode": draw(gpu_role({"max-running-requests": st.sampled_from([8, 16])})),
    }
    cr["spec"] |= {
        "engine": {
            "type": "SGLang",
            "version": draw(st.sampled_from(["0.5.23", "dsv41-2026-09"])),
            "platform": draw(st.sampled_from(["cuda-sm90", "cuda-sm100"])),
            "image": "registry/sglang:own",
        },
        "model": {"path": "/weights"},
        "transfer": {"backend": "mooncake_tcp"},
        "swaPool": {},  # SGLang has none
        "roles": roles,
    }
    return cr


def anything() -> st.SearchStrategy[dict[str, Any]]:
    return resources() | gpu_resources()


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MAKERS = ("Deployment", "LeaderWorkerSet")
FIELDS = ["schema", "pod", "router", "compatKeys", "workers", "encoders"]


def templates(obj: Any) -> list[Any]:
    match obj["kind"]:
        case "Deployment":
            return [obj["spec"]["template"]]
        case "LeaderWorkerSet":
            group = obj["spec"]["leaderWorkerTemplate"]
            return [group["leaderTemplate"], group["workerTemplate"]]
        case _:
            return []


def by_name(objects: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    return {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == kind}


@few
@given(cr=anything())
def test_the_same_arguments_give_the_same_plan(make_world: type[World], cr: dict[str, Any]) -> None:
    world = make_world(cr)
    before = copy.deepcopy((world.cr, world.observed()))
    assert world.plan() == world.plan()
    assert (world.cr, world.observed()) == before, "the plan changed its arguments"


@few
@given(cr=anything())
def test_planning_again_after_applying_changes_nothing(make_world: type[World], cr: dict[str, Any]) -> None:
    world = make_world(cr)
    first = world.reconcile()
    assert first.objects
    second = world.reconcile()
    assert second.objects == first.objects
    assert second.prune == ()
    assert second.events == ()
    settled = world.settle().reconcile()
    assert (settled.objects, settled.prune, settled.events) == (first.objects, (), ())
    assert world.reconcile().status == settled.status


@few
@given(cr=anything())
def test_labels_and_names_are_ours_alone(make_world: type[World], cr: dict[str, Any]) -> None:
    for obj in make_world(cr).plan().objects:
        assert len(obj["metadata"]["name"]) <= 63
        assert "leaked" not in repr(obj)
        labelled = [obj["metadata"]["labels"]]
        labelled += [template["metadata"]["labels"] for template in templates(obj)]
        for item in labelled:
            assert item["app.kubernetes.io/instance"] == cr["metadata"]["name"]
            assert all(len(value) <= 63 for value in item.values())


@few
@given(cr=anything(), settle=st.booleans())
def test_an_upgrade_of_the_operator_changes_no_deployment(
    make_world: type[World], cr: dict[str, Any], *, settle: bool
) -> None:
    world = make_world(cr)
    before = (world.settle() if settle else world).reconcile()
    world.settings = Settings(router_image="other/router:9", worker_image="other/worker:9", version="9.9.9")
    after = world.reconcile()
    for kind in (*MAKERS, "ControllerRevision"):
        assert by_name(after.objects, kind) == by_name(before.objects, kind)
    assert after.prune == ()


@few
@given(cr=anything(), counts=st.tuples(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9)))
def test_scaling_changes_replicas_only(
    make_world: type[World], cr: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    for name in ("prefill", "decode"):
        cr["spec"]["roles"][name]["replicas"] = 2  # the router's flags know one boundary: single or several
    world = make_world(cr)
    before = world.reconcile()
    world.role("prefill", replicas=counts[0]).role("decode", replicas=counts[1])
    world.edit(router={**world.spec["router"], "replicas": counts[2]})
    after = world.reconcile()
    expected = copy.deepcopy(before.objects)
    for obj in expected:
        wanted = dict(zip(("prefill", "decode", "router"), counts, strict=True))
        part = obj["metadata"]["labels"]["app.kubernetes.io/component"]
        if obj["kind"] in MAKERS and part in wanted:
            obj["spec"]["replicas"] = wanted[part]
    assert after.objects == expected
    assert after.prune == ()


@few
@given(cr=anything(), broken=st.sampled_from(["decode", "args", "version", "platform"]))
def test_an_invalid_spec_touches_nothing(make_world: type[World], cr: dict[str, Any], broken: str) -> None:
    world = make_world(cr).settle()
    world.cr["metadata"]["generation"] += 1
    match broken:
        case "decode":
            del world.spec["roles"]["decode"]
        case "args":
            world.role("prefill", args={"page-sise": 64})
        case "version":
            world.edit(engine={"type": "Reference", "version": "7"})
        case _:
            wrong = "cpu" if world.spec["engine"]["type"] == "SGLang" else "cuda-sm90"
            world.edit(engine={**world.spec["engine"], "platform": wrong})
    decided = world.reconcile()
    assert decided.objects == ()
    assert decided.prune == ()
    assert world.condition("Valid")["status"] == "False"
    assert world.condition("Ready")["status"] == "False"
    assert not decided.moving


@few
@given(cr=resources(), edit=st.sampled_from(["page-size", "env", "encode"]))
def test_foreign_objects_are_never_pruned(make_world: type[World], cr: dict[str, Any], edit: str) -> None:
    world = make_world(cr).settle()
    theirs = []
    for index, child in enumerate(list(world.children.values())):
        foreign = copy.deepcopy(child)
        foreign["metadata"] |= {"name": f"foreign-{index}", "uid": f"foreign-{index}"}
        match index % 3:
            case 0:
                foreign["metadata"]["ownerReferences"][0]["uid"] = "someone-else"
            case 1:
                foreign["metadata"]["ownerReferences"] = []
            case _:
                foreign["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
        theirs.append(foreign["metadata"]["uid"])
        world.children[foreign["kind"], foreign["metadata"]["name"]] = foreign
    match edit:
        case "page-size":
            world.role("prefill", args={"page-size": 32}).role("decode", args={"page-size": 32})
        case "env":
            world.role("prefill", env={"ADDED": "1"})
        case _:
            world.edit(roles={name: role for name, role in world.spec["roles"].items() if name != "encode"})
    for _ in range(3):
        pruned = world.settle().plan().prune
        assert not {ref.uid for ref in pruned} & set(theirs)
    assert {child["metadata"]["uid"] for child in world.children.values()} >= set(theirs)


@few
@given(
    field=st.sampled_from(["model", "engine", "roles", "transfer", "router", "networkPolicy", "swaPool"]), value=json
)
def test_every_spec_gets_a_plan(make_world: type[World], field: str, value: Any) -> None:
    decided = make_world().edit(**{field: value}).plan()
    assert bool(decided.objects) == (decided.status["conditions"][0]["status"] == "True")


@few
@given(document=json | st.dictionaries(st.sampled_from(FIELDS), json))
def test_a_registrar_that_talks_nonsense_is_not_believed(make_world: type[World], document: Any) -> None:
    world = make_world().settle()
    before = world.cr["status"]
    world.routers.append(document)
    world.reconcile()
    assert world.cr["status"] == before
