"""What a part says of itself while its pods come, go, or cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.world import World

PARTS = {"encode": "EncodeReady", "prefill": "PrefillReady", "decode": "DecodeReady", "router": "RouterReady"}


@pytest.fixture
def settled(world: World) -> World:
    return world.settle()


def down(world: World, part: str) -> World:
    world.set_ready(world.maker(part), 0)
    world.report()
    return world


def test_pods_of_an_earlier_template_are_not_counted_as_the_new_one(settled: World) -> None:
    # The Deployment of the router is one object over all revisions: in mid-roll its ready pod is the old one.
    settled.edit(router={"image": "registry/router:2"}).reconcile()
    router = settled.maker("router")
    router["status"] |= {
        "observedGeneration": router["metadata"]["generation"],
        "replicas": 2,
        "updatedReplicas": 1,
        "readyReplicas": 1,
    }
    assert settled.verdict("RouterReady") == ("False", "Starting")
    assert settled.condition("RouterReady")["message"].startswith("0/1 ready at revision ")
    assert "1 pod of an earlier revision not gone yet" in settled.condition("RouterReady")["message"]
    assert settled.cr["status"]["router"]["ready"] == 1


@pytest.mark.parametrize("part", ["prefill", "decode", "router"])
def test_a_part_without_pods_outweighs_an_old_report(settled: World, part: str) -> None:
    # The registrars' reports stay as they were: they are polled every 15 s at rest, and a router that left sends none.
    if part == "router":
        settled.edit(router={"replicas": 0})
    else:
        settled.role(part, replicas=0)
    settled.reconcile()
    settled.set_ready(settled.maker(part))
    assert settled.verdict("Available") == ("False", "ScaledToZero")
    assert settled.verdict("Ready") == ("False", "ScaledToZero")
    assert settled.verdict("Reconciling") == ("False", "ScaledToZero"), "nothing is on its way"
    assert not settled.plan().moving
    assert settled.condition(PARTS[part])["message"] == f"spec asks for no {part} pod: no request can be answered"


def test_encode_at_zero_says_that_vision_is_off(settled: World) -> None:
    settled.role("encode", replicas=0).reconcile()
    settled.set_ready(settled.maker("encode"))
    assert settled.verdict("EncodeReady") == ("True", "ScaledToZero")
    assert "requests with images are answered 503" in settled.condition("EncodeReady")["message"]
    assert settled.verdict("Ready") == ("True", "AllReady")


def test_a_missing_mounted_secret_is_named(settled: World) -> None:
    settled.edit(router={"apiKeySecret": {"name": "clients", "key": "token"}}).reconcile()
    down(settled, "router")
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "PodReadyToStartContainers", "status": "False"}]
    settled.pod("router")["status"] = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
    settled.pod("router")["status"]["conditions"] += conditions
    assert settled.verdict("RouterReady") == ("False", "Starting")
    assert settled.condition("RouterReady")["message"].endswith(
        "waits for its volumes: Secret clients with token must exist"
    )


def test_a_container_without_memory_says_what_to_raise(settled: World) -> None:
    down(settled, "decode")
    exit_state = {"exitCode": 137, "reason": "OOMKilled"}
    settled.pod("decode")["status"]["containerStatuses"] = [
        {"name": "engine", "ready": False, "state": {"terminated": exit_state}}
    ]
    assert settled.verdict("DecodeReady") == ("False", "CrashLooping")
    assert "raise resources.memory" in settled.condition("DecodeReady")["message"]


def test_an_object_that_does_not_exist_yet_says_what_keeps_it(world: World) -> None:
    text = "Deployment/demo-prefill-1: InternalError: etcd leader changed"
    world.failures = [text]
    assert world.verdict("Ready")[0] == "False"
    assert world.condition("Ready")["message"].endswith(f"; {text}")
    assert world.condition("Reconciling")["message"].endswith(f"; {text}")


@pytest.mark.parametrize(
    "text",
    [
        ".spec.template.spec.affinity.nodeAffinity.bogus: field not declared in schema",
        '.spec.template.spec.volumes: duplicate entries for key [name="x"]',
    ],
)
@pytest.mark.parametrize("code", ["500", "InternalError"])
def test_an_object_without_sense_is_no_passing_fault(world: World, code: str, text: str) -> None:
    # The API server answers 500 to an apply that it cannot read: no later attempt will fare better.
    line = (
        f"Deployment/demo-prefill-1: {code}: failed to create typed patch object (llm/demo-prefill-1; apps/v1): {text}"
    )
    world.failures = [line]
    assert world.verdict("Stalled") == ("True", "ApplyRejected")
    assert world.condition("Ready")["message"] == line
