"""SwaPoolReady: every reason, what of it is news, and that nothing waits for a pool."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator.api.status import Status
from epd_operator.plan.conditions.swa_pool_ready import STALE

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

KIND = "SwaPoolReady"
WORDS = ("Unreachable", "Full", "NoHits")


@pytest.fixture
def world(make_world: type[World], make_resource: MakeResource) -> World:
    return make_world(make_resource(roles={"prefill": {"encoderReplay": True}, "decode": {}}))


def pooled(world: World, mode: str, **fields: Any) -> World:
    return world.edit(swaPool={"mode": mode, **fields})


@pytest.fixture(params=["Valkey", "Mooncake"])
def warming(world: World, request: pytest.FixtureRequest) -> World:
    return pooled(world, request.param, ttl="300s").settle()


@pytest.fixture
def warm(warming: World) -> World:
    return later(warming, STALE)


def later(world: World, by: timedelta) -> World:
    world.now += by
    world.reconcile()
    return world


def report_fault(world: World, fault: str, router: int = 0, index: int = 0) -> World:
    prefill = [worker for worker in world.routers[router]["workers"] if worker["role"] == "prefill"][index]
    prefill["swaPool"] = {
        "engine": "valkey",
        "fault": fault,
        **dict.fromkeys(("hits", "misses", "stored", "dropped"), 7),
    }
    return world


def message(world: World) -> str:
    return str(world.condition(KIND)["message"])


def lame(world: World, part: str, *, ready: int = 0, **container: Any) -> World:
    """Some pods of a part are not ready, and their containers are as given."""
    world.set_ready(world.maker(part), ready)
    for pod in world.pods:
        labels, conditions = pod["metadata"]["labels"], pod["status"]["conditions"]
        if labels["app.kubernetes.io/component"] == part and conditions[0]["status"] == "False" and container:
            pod["status"]["containerStatuses"][0] |= {"state": {}, **container}
    return world


def test_without_a_pool_there_is_no_condition(world: World) -> None:
    world.settle()
    assert KIND not in {condition["type"] for condition in world.cr["status"]["conditions"]}
    assert world.plan().after is None


def test_a_new_pool_is_made_then_starts_then_warms_up_then_is_there(world: World) -> None:
    pooled(world, "Mooncake", stores=2, ttl="60s").reconcile()
    assert world.verdict(KIND) == ("False", "Scaling"), "nobody has taken the Deployments up yet"
    for part in ("swa-pool", "swa-pool-store"):
        lame(world, part)
    assert world.verdict(KIND) == ("False", "Starting")
    assert message(world).startswith("master: 0/1 ready at revision ")
    world.set_ready(world.maker("swa-pool"))
    lame(world, "swa-pool-store", ready=1)
    assert world.verdict(KIND) == ("False", "Starting")
    assert message(world).startswith("store: 1/2 ready at revision ")
    assert message(world).endswith("; pod demo-swa-pool-store-1 is not ready"), "the pod that is missing has a name"
    assert message(world).count("is not ready") == 1
    world.settle()
    assert world.verdict(KIND) == ("True", "Warming")
    assert world.verdict("Ready") == ("True", "AllReady")
    assert world.condition("Ready")["message"] == "prefill, decode, router, swaPool as declared"
    later(world, timedelta(seconds=60))
    assert world.verdict(KIND) == ("True", "AtDesired")
    assert message(world).count("ready at revision") == 2
    Status.model_validate(world.cr["status"])


def test_before_anything_exists_it_is_being_created(world: World) -> None:
    pooled(world, "Valkey")
    plan = world.plan()
    (condition,) = (one for one in plan.status["conditions"] if one["type"] == KIND)
    assert (condition["status"], condition["reason"]) == ("False", "Creating")
    assert plan.moving


def test_warming_says_which_pod_and_until_when_and_asks_to_be_woken_then(warming: World) -> None:
    newest = max(
        (pod for pod in warming.pods if "swa-pool" in pod["metadata"]["name"]),
        key=lambda pod: pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
    )
    started = newest["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    until = datetime.fromisoformat(started) + timedelta(seconds=300)
    assert warming.verdict(KIND) == ("True", "Warming")
    assert f"started empty at {started}" in message(warming)
    assert f"until {until:%Y-%m-%dT%H:%M:%SZ} at the latest" in message(warming)
    before = warming.reconcile()
    assert before.after == (until - warming.now).total_seconds()
    assert not before.moving
    again = later(warming, timedelta(seconds=30)).reconcile()
    assert again.status == before.status, "the wait itself writes nothing"
    warming.now = until - timedelta(seconds=1)  # a reconcile takes one
    assert warming.verdict(KIND) == ("True", "AtDesired")
    assert warming.reconcile().after is None


@pytest.mark.parametrize("how", ["a new pod", "its container"])
def test_d4_d6_a_server_that_starts_anew_has_lost_its_windows(warm: World, how: str) -> None:
    # What a master knew is gone with it, and is told as long as it matters.
    assert warm.verdict(KIND) == ("True", "AtDesired")
    if how == "a new pod":
        lame(warm, "swa-pool")
        assert [event.reason for event in warm.reconcile().events if event.message.startswith(KIND)] == ["Starting"]
        warm.set_ready(warm.maker("swa-pool"))
    else:
        container = warm.pod("swa-pool")["status"]["containerStatuses"][0]
        container |= {"restartCount": 1, "state": {"running": {"startedAt": f"{warm.now:%Y-%m-%dT%H:%M:%SZ}"}}}
    assert warm.verdict(KIND) == ("True", "Warming")
    assert warm.verdict("Ready") == ("True", "AllReady")
    assert warm.verdict("Available") == ("True", "Serving")
    later(warm, timedelta(seconds=300))
    assert warm.verdict(KIND) == ("True", "AtDesired")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "CrashLooping": (
        {"lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no room for the segment"}}},
        "exited with code 1 (Error): no room for the segment",
    ),
    "ImagePullFailed": ({"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}, "not found"),
    "ContainerNotCreated": ({"state": {"waiting": {"reason": "CreateContainerError", "message": "x"}}}, "x"),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_d9_one_bad_server_is_named_with_its_reason(world: World, reason: str) -> None:
    # Two stores are well, the third is not.
    pooled(world, "Mooncake", stores=3).settle()
    container, words = FAULTS[reason]
    lame(world, "swa-pool-store", ready=2, **container)
    (event,) = (event for event in world.reconcile().events if event.message.startswith(KIND))
    assert (event.type, event.reason) == ("Warning", reason)
    assert world.verdict(KIND) == ("False", reason)
    assert "pod demo-swa-pool-store-2, container store: " in message(world)
    assert words in message(world)
    assert world.verdict("Ready") == ("False", reason)
    assert world.condition("Ready")["message"].startswith("swaPool: store: 2/3 ready")


def test_a_server_without_a_node(world: World) -> None:
    pooled(world, "Mooncake", stores=2).settle()
    lame(world, "swa-pool-store", ready=1)
    pod = next(p for p in world.pods if p["metadata"]["name"] == "demo-swa-pool-store-1")
    pod["status"]["conditions"].append({"type": "PodScheduled", "status": "False", "message": "Insufficient memory"})
    assert world.verdict(KIND) == ("False", "Unschedulable")
    assert message(world).endswith("pod demo-swa-pool-store-1: Insufficient memory")


def test_a_fault_comes_before_what_only_waits(world: World) -> None:
    pooled(world, "Mooncake").settle()
    lame(world, "swa-pool")
    lame(world, "swa-pool-store", **FAULTS["CrashLooping"][0])
    assert world.verdict(KIND) == ("False", "CrashLooping")
    assert message(world).startswith("store: ")
    assert "; master: 0/1 ready" in message(world)


def test_memory_that_does_not_suffice_points_at_the_pool_s_own_field(world: World) -> None:
    pooled(world, "Valkey").settle()
    lame(world, "swa-pool", lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    assert world.verdict(KIND) == ("False", "CrashLooping")
    assert "spec.swaPool.memory" in message(world)
    assert "resources.memory" not in message(world)


def test_pods_that_a_quota_refuses_stall(world: World) -> None:
    pooled(world, "Valkey").settle()
    text = 'pods "x" is forbidden: exceeded quota: q, requested: memory=8Gi'
    world.set_ready(world.maker("swa-pool"), 0)
    world.maker("swa-pool")["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": text}]
    assert world.verdict(KIND) == ("False", "QuotaExceeded")
    assert world.verdict("Stalled") == ("True", "QuotaExceeded")
    assert world.verdict("Available") == ("True", "Serving")


@pytest.mark.parametrize("name", ["ConfigMap/demo-swa-pool", "Service/demo-swa-pool", "Deployment/demo-swa-pool-store"])
def test_what_is_not_ours_is_named_by_the_pool_s_own_condition(world: World, name: str) -> None:
    # Engines follow the file and the address of these names, whoever made them.
    pooled(world, "Mooncake").settle()
    world.conflicts = ["Service/demo", name]
    assert world.verdict(KIND) == ("False", "NameConflict")
    assert f"not ours, so left alone: {name};" in message(world)
    assert "Service/demo," not in message(world)
    assert world.verdict("Stalled") == ("True", "NameConflict")
    assert world.verdict("Available") == ("True", "Serving")
    assert world.verdict("PrefillReady") == ("True", "AtDesired")
    world.conflicts = ["Service/demo"]
    assert world.verdict(KIND)[0] == "True", "what is not the pool's"


@pytest.mark.parametrize("part", ["swa-pool", "swa-pool-store"])
def test_no_part_waits_for_a_pool(world: World, part: str) -> None:
    pooled(world, "Mooncake").settle()
    before = copy.deepcopy(world.cr["status"])
    lame(world, part, **FAULTS["CrashLooping"][0])
    decided = world.reconcile()
    assert world.cr["status"]["roles"] == before["roles"]
    for kind in ("Available", "PrefillReady", "DecodeReady", "RouterReady", "ReplayEffective"):
        assert world.condition(kind) == next(one for one in before["conditions"] if one["type"] == kind)
    assert decided.prune == ()


def test_a_rollout_of_the_roles_ends_although_the_pool_is_down(world: World) -> None:
    pooled(world, "Valkey").settle()
    old = {maker["metadata"]["name"] for part in ("prefill", "decode") for maker in world.makers(part)}
    world.edit(model={"servedName": "new"}).settle()
    lame(world, "swa-pool").reconcile()
    assert not old & {name for _, name in world.children}
    assert world.condition("Available")["status"] == "True"
    assert world.condition("Ready")["status"] == "False"


@pytest.mark.parametrize("word", WORDS)
def test_d10_d12_a_word_that_prefill_keeps_saying_is_told_with_what_it_comes_from(warm: World, word: str) -> None:
    # Sustained Full, and an hour of windows with no hit, among them.
    report_fault(warm, word)
    (event,) = (event for event in warm.reconcile().events if event.message.startswith(KIND))
    assert (event.type, event.reason) == ("Warning", "Degraded")
    assert warm.verdict(KIND) == ("False", "Degraded")
    pod = next(worker["pod"] for worker in warm.routers[0]["workers"] if worker["role"] == "prefill")
    assert message(warm).startswith(f"{word} for {pod}: ")
    assert "spec.swaPool." in message(warm)
    assert "7" not in message(warm).replace(pod, ""), "counters would be written for ever"
    assert warm.verdict("Ready") == ("False", "Degraded")
    assert warm.verdict("Reconciling") == ("False", "Degraded"), "nothing is on its way"
    assert warm.verdict("Available") == ("True", "Serving")
    settled = warm.reconcile()
    assert (settled.moving, settled.events, settled.after) == (False, (), None)
    report_fault(warm, "")
    assert warm.verdict(KIND) == ("True", "AtDesired")


def test_a_word_that_this_release_does_not_know_is_told_as_it_is(warm: World) -> None:
    report_fault(warm, "Odd")
    assert warm.verdict(KIND) == ("False", "Degraded")
    assert message(warm).startswith("Odd for ")


def test_words_of_several_pods_are_told_once_each(world: World) -> None:
    pooled(world, "Valkey")
    world.role("prefill", replicas=3).settle()
    later(world, STALE)
    for index, word in enumerate(("Full", "NoHits", "Full")):
        report_fault(world, word, index=index)
    assert world.verdict(KIND) == ("False", "Degraded")
    reported = message(world)
    assert (reported.count("Full for "), reported.count("NoHits for ")) == (1, 1)
    assert reported.index("Full for ") < reported.index("NoHits for ")
    assert reported.count("prefill-") == 3


@pytest.mark.parametrize("word", WORDS)
def test_a_word_about_the_server_before_is_not_believed(warming: World, word: str) -> None:
    # An idle prefill pod goes on saying what it last met for ten minutes.
    report_fault(warming, word)
    assert warming.verdict(KIND) == ("True", "Warming")
    first = warming.reconcile()
    assert first.after is not None
    assert first.after < 300
    warming.now += timedelta(seconds=300)
    assert warming.verdict(KIND) == ("True", "AtDesired")
    second = warming.reconcile()
    assert second.after is not None
    assert 0 < second.after < STALE.total_seconds() - 300, "the word must be looked at again although nothing happens"
    later(warming, timedelta(seconds=second.after))
    assert warming.verdict(KIND) == ("False", "Degraded")


def test_a_long_life_of_windows_does_not_hide_a_word_for_as_long(world: World) -> None:
    report_fault(pooled(world, "Valkey", ttl="1h").settle(), "Full")
    waiting = world.reconcile()
    assert world.condition(KIND)["reason"] == "Warming"
    assert waiting.after is not None
    assert waiting.after < STALE.total_seconds()
    later(world, timedelta(seconds=waiting.after))
    assert world.verdict(KIND) == ("False", "Degraded")


def test_a_file_that_a_pod_cannot_follow_is_told_at_once(warming: World) -> None:
    lame(warming, "swa-pool").reconcile()
    warming.set_ready(warming.maker("swa-pool"))
    report_fault(warming, "Misconfigured")
    (event,) = warming.reconcile().events
    assert (event.type, event.reason) == ("Warning", "Degraded"), "told although the condition was False before"
    assert event.message.startswith(KIND)
    assert warming.verdict(KIND) == ("False", "Degraded")
    assert "its image may be older" in message(warming)


def test_a_server_on_its_way_out_says_nothing_of_the_one_that_stays(warm: World) -> None:
    leaving = copy.deepcopy(warm.pod("swa-pool"))
    leaving["metadata"] |= {"name": "demo-swa-pool-old", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    leaving["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = f"{warm.now:%Y-%m-%dT%H:%M:%SZ}"
    warm.pods.append(leaving)
    assert warm.verdict(KIND) == ("True", "AtDesired")


def test_what_one_router_heard_is_enough(warm: World) -> None:
    warm.routers.append(copy.deepcopy(warm.routers[0]))
    report_fault(warm, "Full", router=1)
    assert warm.verdict(KIND) == ("False", "Degraded")


def test_pods_of_an_earlier_revision_say_nothing_about_this_one(warm: World) -> None:
    report_fault(warm, "Full")
    next(worker for worker in warm.routers[0]["workers"] if worker["role"] == "prefill")["revision"] = "00000000"
    assert warm.verdict(KIND) == ("True", "AtDesired")


def test_counters_move_nothing(warm: World) -> None:
    report_fault(warm, "")
    before = warm.reconcile().status
    prefill = next(worker for worker in warm.routers[0]["workers"] if worker["role"] == "prefill")
    prefill["swaPool"] |= dict.fromkeys(("hits", "misses", "stored", "dropped"), 10**9)
    assert warm.reconcile().status == before


def test_silence_after_a_restart_of_the_operator_keeps_what_was_known(warm: World) -> None:
    for word in ("Full", ""):
        report_fault(warm, word)
        before = warm.reconcile().status
        heard, warm.routers = warm.routers, []
        assert warm.reconcile().status == before
        warm.routers = heard


def test_a_registrar_that_has_not_asked_everybody_yet_ends_nothing(world: World) -> None:
    pooled(world, "Valkey")
    world.role("prefill", replicas=2).settle()
    later(world, STALE)
    report_fault(report_fault(world, "Full", index=0), "", index=1)
    before = world.reconcile().status
    world.report()  # a new router: it has asked nobody
    assert world.reconcile().status == before
    report_fault(world, "", index=1)
    assert world.reconcile().status == before, "the pod that complained has not been asked"
    report_fault(world, "", index=0)
    assert world.verdict(KIND) == ("True", "AtDesired")
    world.report()
    assert world.verdict(KIND) == ("True", "AtDesired"), "who complained of nothing is not missed"


@pytest.mark.parametrize("heard_by_the_first", ["Full", "", None])
def test_two_routers_agree_on_the_worse_word(warm: World, heard_by_the_first: str | None) -> None:
    warm.routers.append(copy.deepcopy(warm.routers[0]))
    if heard_by_the_first is not None:
        report_fault(warm, heard_by_the_first, router=0)
    report_fault(warm, "" if heard_by_the_first == "Full" else "Full", router=1)
    assert warm.verdict(KIND) == ("False", "Degraded")


@pytest.mark.parametrize("router", [0, 1])
def test_that_one_router_heard_of_the_end_is_enough(warm: World, router: int) -> None:
    report_fault(warm, "Full").reconcile()
    warm.report()
    warm.routers.append(copy.deepcopy(warm.routers[0]))
    report_fault(warm, "", router=router)
    assert warm.verdict(KIND) == ("True", "AtDesired")


def test_a_spec_that_is_refused_keeps_what_was_known(warm: World) -> None:
    warm.role("prefill", args={"page-sise": 1})
    assert warm.verdict(KIND) == ("True", "AtDesired")
    assert warm.verdict("Valid")[0] == "False"
    assert warm.plan().after is None


def test_in_process_it_is_what_prefill_pods_say(world: World) -> None:
    pooled(world, "InProcess").settle()
    assert world.verdict(KIND) == ("True", "AtDesired"), "nothing said yet"
    assert message(world) == "each prefill pod keeps its own windows"
    report_fault(world, "")
    before = world.reconcile()
    assert before.after is None
    assert world.verdict(KIND) == ("True", "AtDesired")
    report_fault(world, "NoHits")
    assert world.verdict(KIND) == ("False", "Degraded")
    assert "a router that sends each turn to another pod" in message(world)
