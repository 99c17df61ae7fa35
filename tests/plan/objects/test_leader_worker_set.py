"""Roles whose engine spans pods: LeaderWorkerSets beside Deployments, in every part of the plan."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

ROLE = "serving.epd.dev/role"


@pytest.fixture
def world(make_world: type[World], make_resource: MakeResource) -> World:
    """Two groups of two prefill pods, and one decode pod."""
    engine = {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "sglang:1"}
    roles = {
        "prefill": {"replicas": 2, "nodes": 2, "args": {"tp-size": 16}},
        "decode": {"args": {"tp-size": 8}},
    }
    transfer = {"backend": "mooncake_tcp"}
    return make_world(make_resource(engine=engine, model={"path": "/weights"}, roles=roles, transfer=transfer))


def kinds(world: World) -> dict[str, str]:
    return {part: world.maker(part)["kind"] for part in ("prefill", "decode", "router")}


def test_a_role_across_nodes_is_ready_with_its_groups(world: World) -> None:
    world.settle()
    assert kinds(world) == {"prefill": "LeaderWorkerSet", "decode": "Deployment", "router": "Deployment"}
    assert world.verdict("Ready") == ("True", "AllReady")
    assert world.cr["status"]["roles"]["prefill"]["summary"] == "2/2"
    world.set_ready(world.maker("prefill"), 1)
    world.report()
    assert world.verdict("PrefillReady") == ("False", "Starting")
    assert world.condition("PrefillReady")["message"].startswith("1/2 ready")
    assert world.verdict("Available") == ("True", "Serving")


def test_only_the_leader_answers_the_router(world: World) -> None:
    world.reconcile()
    leader, worker = (
        world.maker("prefill")["spec"]["leaderWorkerTemplate"][field] for field in ("leaderTemplate", "workerTemplate")
    )
    assert leader["metadata"]["labels"][ROLE] == "prefill"
    assert leader["metadata"]["labels"] == {**worker["metadata"]["labels"], ROLE: "prefill"}
    assert ROLE not in worker["metadata"]["labels"]
    services = {obj["metadata"]["name"]: obj["spec"] for obj in world.plan().objects if obj["kind"] == "Service"}
    assert services["demo-prefill"]["selector"][ROLE] == "prefill"
    assert services["demo-prefill"]["publishNotReadyAddresses"] is True


def test_a_group_forms_without_waiting_for_its_leader_and_restarts_whole(world: World) -> None:
    world.reconcile()
    spec = world.maker("prefill")["spec"]
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    for field in ("leaderTemplate", "workerTemplate"):
        words = spec["leaderWorkerTemplate"][field]["spec"]["containers"][0]["args"]
        given = dict(pairwise(words))
        assert given["--nnodes"] == "2"
        assert given["--node-rank"] == "$(LWS_WORKER_INDEX)"
        assert given["--dist-init-addr"] == "$(LWS_LEADER_ADDRESS):20000"


def test_a_fault_of_a_follower_is_told(world: World) -> None:
    world.settle()
    maker = world.maker("prefill")
    world.set_ready(maker, 1)
    follower = next(pod for pod in world.pods if pod["metadata"]["name"] == f"{maker['metadata']['name']}-1-1")
    follower["status"]["containerStatuses"] = [
        {"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    ]
    assert world.verdict("PrefillReady") == ("False", "ImagePullFailed")


def test_a_cluster_without_the_api_is_told_what_to_install(world: World) -> None:
    world.reconcile()
    name = world.maker("prefill")["metadata"]["name"]
    del world.children["LeaderWorkerSet", name]
    world.failures.append(f"LeaderWorkerSet/{name}: 404: 404 page not found")
    decided = world.plan()
    actual = {c["type"]: c for c in decided.status["conditions"]}
    assert (actual["Stalled"]["status"], actual["Stalled"]["reason"]) == ("True", "LeaderWorkerSetMissing")
    assert "install it, see https://lws.sigs.k8s.io" in actual["Stalled"]["message"]
    assert actual["Valid"]["status"] == "True"
    assert name in {obj["metadata"]["name"] for obj in decided.objects}, "it is made as soon as the API is there"


def test_a_group_that_nobody_takes_up_is_told(world: World) -> None:
    world.reconcile()
    assert world.verdict("PrefillReady") == ("False", "Scaling")
    assert "does the LeaderWorkerSet controller run?" in world.condition("PrefillReady")["message"]


def test_the_old_set_serves_until_the_new_one_does(world: World) -> None:
    world.settle()
    old = world.maker("prefill")["metadata"]["name"]
    # A set that is unready for a moment is still the one that serves.
    maker = world.maker("prefill")
    world.set_ready(maker, 0)
    maker["status"]["conditions"][0]["status"] = "False"
    world.role("prefill", nodes=4, args={"tp-size": 32})
    world.reconcile()
    assert ("LeaderWorkerSet", old) in world.children
    assert ("ControllerRevision", old) in world.children
    assert world.condition("Reconciling")["reason"] == "Replacing"
    world.settle()
    assert ("LeaderWorkerSet", old) not in world.children
    assert ("ControllerRevision", old) not in world.children


def test_a_set_that_never_served_makes_room_at_once(world: World) -> None:
    world.reconcile()
    given_up = world.maker("prefill")["metadata"]["name"]
    world.role("prefill", nodes=4, args={"tp-size": 32})
    world.reconcile()
    assert ("LeaderWorkerSet", given_up) not in world.children


def test_from_one_node_to_two_and_back(world: World) -> None:
    world.role("prefill", nodes=1).settle()
    single = world.maker("prefill")
    assert single["kind"] == "Deployment"
    world.role("prefill", nodes=2)
    assert ("Deployment", single["metadata"]["name"]) in world.children
    world.settle()
    assert kinds(world)["prefill"] == "LeaderWorkerSet"
    assert ("Deployment", single["metadata"]["name"]) not in world.children
    world.role("prefill", nodes=1).settle()
    assert world.maker("prefill")["metadata"]["name"] == single["metadata"]["name"]


def test_a_refused_spec_leaves_the_groups_alone(world: World) -> None:
    world.settle()
    before = copy.deepcopy(world.children)
    world.role("prefill", args={"tp-sise": 16})
    decided = world.reconcile()
    assert (decided.objects, decided.prune) == ((), ())
    assert world.children == before
    assert world.condition("Available")["status"] == "True"
    assert world.cr["status"]["roles"]["prefill"]["ready"] == 2


def test_an_upgrade_of_the_operator_rolls_no_group(world: World) -> None:
    world.settle()
    before = copy.deepcopy(world.maker("prefill")["spec"])
    world.settings = type(world.settings)(
        router_image="other:9", worker_image="other:9", version="9", rdma_resource="vendor.example/nic"
    )
    world.reconcile()
    assert world.maker("prefill")["spec"] == before


def test_a_stored_group_without_its_workers_is_rendered_anew(world: World) -> None:
    world.reconcile()
    before = copy.deepcopy(world.maker("prefill")["spec"])
    name = world.maker("prefill")["metadata"]["name"]
    del world.children["ControllerRevision", name]["data"]["spec"]["workerTemplate"]
    world.reconcile()
    assert world.maker("prefill")["spec"] == before
