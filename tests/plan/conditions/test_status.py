"""Each condition, true and false, and each reason that a cluster can give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import epd_operator.plan
from epd_operator.api.status import CONDITION_TYPES, Status
from epd_operator.plan import Reason

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

PARTS = {"encode": "EncodeReady", "prefill": "PrefillReady", "decode": "DecodeReady", "router": "RouterReady"}


@pytest.fixture
def settled(world: World) -> World:
    return world.settle()


def down(world: World, part: str, ready: int = 0) -> World:
    world.set_ready(world.maker(part), ready)
    world.report()
    return world


def test_a_settled_resource_says_so(settled: World) -> None:
    status = {condition["type"]: condition["status"] for condition in settled.cr["status"]["conditions"]}
    declared = [kind for kind in CONDITION_TYPES if kind != "SwaPoolReady"]
    assert list(status) == declared
    assert status == {**dict.fromkeys(declared, "True"), "Reconciling": "False", "Stalled": "False"}
    assert settled.condition("Ready")["reason"] == "AllReady"
    assert settled.condition("Available")["message"].startswith("1 prefill and 1 decode routable under key ")
    assert settled.cr["status"]["roles"]["decode"]["summary"] == "1/1"
    assert settled.cr["status"]["router"] == {
        "desired": 1,
        "ready": 1,
        "summary": "1/1",
        "url": "http://demo.llm.svc:8000",
    }
    assert settled.cr["status"]["effective"] == {
        "servedName": "demo",
        "contextLength": 8192,
        "pageSize": 64,
        "replay": "On",
        "kvLayout": "fp4",
    }
    assert not settled.plan().moving


def test_the_status_fits_its_schema(settled: World) -> None:
    Status.model_validate(settled.cr["status"])
    Status.model_validate(down(settled, "decode").plan().status)


def test_a_new_resource_is_reconciling(world: World) -> None:
    decided = world.reconcile()
    assert decided.moving
    assert world.condition("Valid")["status"] == "True"
    for kind in ("Available", *PARTS.values(), "Ready", "Stalled"):
        assert world.condition(kind)["status"] == "False"
    assert world.condition("Reconciling") | {"message": "", "lastTransitionTime": ""} == {
        "type": "Reconciling",
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": "",
        "reason": "Progressing",
        "message": "",
    }
    assert world.condition("PrefillReady")["reason"] == "Creating"


def test_encode_ready_is_absent_without_the_role(make_world: type[World], make_resource: MakeResource) -> None:
    world = make_world(make_resource(roles={"prefill": {}, "decode": {}})).settle()
    kinds = [condition["type"] for condition in world.cr["status"]["conditions"]]
    assert kinds == [kind for kind in CONDITION_TYPES if kind not in {"EncodeReady", "SwaPoolReady"}]
    assert "encode" not in world.cr["status"]["roles"]


def test_text_goes_on_without_encoders(settled: World) -> None:
    down(settled, "encode").reconcile()
    assert settled.condition("Available")["status"] == "True"
    assert settled.condition("EncodeReady")["status"] == "False"
    assert settled.condition("Ready")["status"] == "False"
    assert settled.condition("Reconciling")["status"] == "True"
    assert settled.condition("Stalled")["status"] == "False"


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_text_stops_without_a_pair(settled: World, part: str) -> None:
    down(settled, part)
    assert settled.verdict("Available") == ("False", "NoRoutablePair")
    assert f"no ready {part} pod" in settled.condition("Available")["message"]
    assert settled.condition(PARTS[part])["reason"] == "Starting"
    assert settled.condition("Ready")["status"] == "False"


def test_a_pair_of_two_keys_is_no_pair(settled: World) -> None:
    document = settled.routers[0]
    document["compatKeys"] = {
        "a" * 16: {"prefill": 1, "decode": 0, "routable": False},
        "b" * 16: {"prefill": 0, "decode": 1, "routable": False},
    }
    assert settled.verdict("Available") == ("False", "NoRoutablePair")
    assert "key aaaaaaaaaaaaaaaa: 1 prefill, 0 decode routable; key bbbb" in settled.condition("Available")["message"]
    assert settled.verdict("Ready") == ("False", "NoRoutablePair")
    assert settled.condition("Reconciling")["status"] == "True"


def test_a_router_that_is_not_ready_serves_nothing(settled: World) -> None:
    settled.routers[0]["router"]["ready"] = False
    assert settled.verdict("Available") == ("False", "NoRoutablePair")


def test_one_of_two_routers_is_enough(settled: World) -> None:
    settled.routers.insert(0, {"pod": "late", "router": {"ready": False}, "compatKeys": {}, "workers": []})
    assert settled.verdict("Available") == ("True", "Serving")


def test_silence_after_a_restart_of_the_operator_changes_nothing(settled: World) -> None:
    before = settled.cr["status"]
    settled.routers = []
    assert settled.reconcile().status == before


def test_silence_from_the_start_is_said(world: World) -> None:
    world.settle()
    world.routers = []
    del world.cr["status"]
    assert world.verdict("Available") == ("False", "RouterNotReporting")
    assert world.plan().moving


def test_scaled_to_zero_is_not_available(settled: World) -> None:
    settled.role("decode", replicas=0).settle()
    assert settled.condition("Available")["reason"] == "ScaledToZero"
    assert settled.condition("DecodeReady")["status"] == "True"
    assert settled.condition("Ready")["status"] == "False"


@pytest.mark.parametrize("part", list(PARTS))
def test_each_part_is_scaling_until_its_deployment_follows(settled: World, part: str) -> None:
    if part == "router":
        settled.edit(router={"replicas": 2})
    else:
        settled.role(part, replicas=2)
    assert settled.verdict(PARTS[part]) == ("False", "Scaling")
    assert settled.verdict(PARTS[part]) == ("False", "Scaling")  # applied, not yet seen by its controller
    settled.set_ready(settled.maker(part), 1)
    assert settled.verdict(PARTS[part]) == ("False", "Starting")
    assert "1/2 ready" in settled.condition(PARTS[part])["message"]
    settled.set_ready(settled.maker(part), 2)
    if part in {"prefill", "decode"}:  # a pod that the router does not know yet serves nobody
        assert settled.verdict(PARTS[part]) == ("False", "NotRoutable")
        assert settled.plan().moving
    settled.report()
    assert settled.verdict(PARTS[part]) == ("True", "AtDesired")


WAITING = {
    "CrashLoopBackOff": (Reason.CRASH_LOOPING, "exited with code 137 (OOMKilled): no room for the pool"),
    "ImagePullBackOff": (Reason.IMAGE_PULL_FAILED, "ImagePullBackOff of worker:1: back-off pulling"),
    "CreateContainerConfigError": (Reason.CONTAINER_NOT_CREATED, "secret hf not found"),
}


def container(reason: str) -> dict[str, Any]:
    texts = {"ImagePullBackOff": "back-off pulling", "CreateContainerConfigError": "secret hf not found"}
    last = {"exitCode": 137, "reason": "OOMKilled", "message": "⣦⣤ banner\nTraceback:\n no room\tfor the pool\n ⣦⣤\n"}
    waiting = {"reason": reason, "message": texts.get(reason, "")}
    crashed = {"lastState": {"terminated": last}} if reason == "CrashLoopBackOff" else {}
    return {"name": "engine", "image": "worker:1", "ready": False, "state": {"waiting": waiting}, **crashed}


@pytest.mark.parametrize("waiting", list(WAITING))
def test_a_pod_that_cannot_run_says_why(settled: World, waiting: str) -> None:
    down(settled, "prefill")
    pod = settled.pod("prefill")
    pod["status"]["containerStatuses"] = [container(waiting)]
    reason, words = WAITING[waiting]
    assert settled.verdict("PrefillReady") == ("False", reason)
    message = settled.condition("PrefillReady")["message"]
    assert words in message
    assert f"pod {pod['metadata']['name']}, container engine" in message
    assert "\n" not in message
    assert settled.verdict("Ready") == ("False", reason)
    assert settled.verdict("Stalled") == ("False", "NotStalled")


def test_a_container_that_runs_again_after_an_exit_still_says_so(settled: World) -> None:
    down(settled, "decode")
    running = {**container("CrashLoopBackOff"), "state": {"running": {}}}
    settled.pod("decode")["status"]["containerStatuses"] = [running]
    assert settled.verdict("DecodeReady") == ("False", "CrashLooping")


def test_a_clean_exit_of_an_init_container_is_no_crash(settled: World) -> None:
    down(settled, "router")
    done = {"name": "draw-key", "ready": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    settled.pod("router")["status"]["initContainerStatuses"] = [done]
    assert settled.verdict("RouterReady") == ("False", "Starting")


def test_the_end_of_a_pod_being_deleted_is_no_crash(settled: World) -> None:
    down(settled, "decode")
    settled.pod("decode")["status"]["containerStatuses"] = [container("CrashLoopBackOff")]
    settled.pod("decode")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert settled.verdict("DecodeReady") == ("False", "Starting")


def test_a_pod_that_fits_nowhere_quotes_the_scheduler(settled: World) -> None:
    down(settled, "decode")
    words = "0/3 nodes are available: 3 Insufficient memory."
    settled.pod("decode")["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    )
    assert settled.verdict("DecodeReady") == ("False", "Unschedulable")
    assert words in settled.condition("DecodeReady")["message"]
    assert settled.verdict("Stalled") == ("False", "NotStalled")


def test_a_ready_pod_that_the_registrar_refuses_is_not_ready(settled: World) -> None:
    worker = next(w for w in settled.routers[0]["workers"] if w["role"] == "decode")
    worker |= {"state": "refused", "routable": False, "reason": "image differs from its set"}
    settled.routers[0]["compatKeys"] = {}
    assert settled.verdict("DecodeReady") == ("False", "WorkerRefused")
    assert "image differs" in settled.condition("DecodeReady")["message"]
    assert "refused: image differs" in settled.condition("Available")["message"]


@pytest.mark.parametrize("part", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["unlisted", "not routable"])
def test_a_ready_pod_that_the_router_sends_nothing_is_not_ready(settled: World, part: str, how: str) -> None:
    report = settled.routers[0]
    worker = next(w for w in report["workers"] if w["role"] == part)
    if how == "unlisted":
        report["workers"].remove(worker)
    else:
        worker |= {"state": "not_ready", "routable": False, "reason": "its health check fails"}
    condition = "PrefillReady" if part == "prefill" else "DecodeReady"
    assert settled.verdict(condition) == ("False", "NotRoutable")
    assert worker["pod"] in settled.condition(condition)["message"]
    assert settled.verdict("Ready") == ("False", "NotRoutable")
    report["router"]["ready"] = False  # a router that is not ready says nothing about pods
    assert settled.verdict(condition) == ("True", "AtDesired")
    settled.routers = []  # nor does an operator that has just started know better
    assert settled.verdict(condition) == ("True", "AtDesired")


def test_an_encoder_that_a_prefill_does_not_know_is_not_ready(settled: World) -> None:
    settled.routers[0]["encoders"][0]["missing"] = ["demo-prefill-x"]
    assert settled.verdict("EncodeReady") == ("False", "EncoderNotRegistered")
    assert "with demo-prefill-x" in settled.condition("EncodeReady")["message"]
    assert settled.condition("Available")["status"] == "True"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: q, requested: memory=1Gi', Reason.QUOTA_EXCEEDED),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', Reason.FORBIDDEN),
        ("Deployment.apps is invalid: spec: Required value", Reason.APPLY_REJECTED),
    ],
)
def test_refusals_of_the_api_server_stall(settled: World, text: str, reason: Reason) -> None:
    settled.failures = [text]
    assert settled.verdict("Stalled") == ("True", reason)
    assert settled.condition("Stalled")["message"] == text
    assert settled.verdict("Reconciling") == ("False", reason)
    assert settled.verdict("Ready") == ("False", reason)
    assert settled.condition("Valid")["status"] == "True"
    settled.failures = []
    assert settled.verdict("Stalled") == ("False", "NotStalled")


def test_a_passing_error_is_no_stall(settled: World) -> None:
    settled.failures = ["Service/demo: InternalError: etcd leader changed", "Role/demo-router: 503: busy"]
    assert settled.verdict("Stalled") == ("False", "NotStalled")
    assert settled.verdict("Ready") == ("False", "ApplyFailed")
    assert settled.condition("Ready")["message"] == "; ".join(sorted(settled.failures))
    assert settled.condition("Reconciling")["status"] == "True"
    settled.failures.append("Deployment/demo-router: Forbidden: denied by policy")
    assert settled.verdict("Stalled") == ("True", "Forbidden")
    assert settled.condition("Stalled")["message"] == settled.failures[2]


def test_refused_pods_stall(settled: World) -> None:
    deployment = settled.maker("encode")
    text = 'pods "demo" is forbidden: exceeded quota: q'
    deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": text}]
    assert settled.verdict("EncodeReady") == ("False", "QuotaExceeded")
    assert settled.verdict("Stalled") == ("True", "QuotaExceeded")


def test_foreign_objects_are_named(settled: World) -> None:
    settled.conflicts = ["Service/demo", "Deployment/demo-router"]
    assert settled.verdict("Stalled") == ("True", "NameConflict")
    message = settled.condition("Stalled")["message"]
    assert message.startswith("not ours, so left alone: Deployment/demo-router, Service/demo; ")
    assert settled.condition("Valid")["status"] == "True"
    assert settled.verdict("Ready") == ("False", "NameConflict")
    assert settled.condition("Available")["status"] == "True"


def test_an_invalid_edit_leaves_the_good_generation_running_and_watched(settled: World) -> None:
    revision = settled.cr["status"]["roles"]["prefill"]["revision"]
    settled.role("prefill", args={"page-sise": 64}).role("decode", replicas=-1)
    decided = settled.reconcile()
    assert decided.objects == ()
    valid = settled.condition("Valid")
    assert (valid["status"], valid["reason"]) == ("False", "InvalidSpec")
    assert "spec.roles.decode.replicas" in valid["message"]
    assert settled.condition("Stalled")["reason"] == "InvalidSpec"
    assert settled.condition("Available")["status"] == "True"
    assert settled.condition("PrefillReady")["status"] == "True"
    assert settled.cr["status"]["roles"]["prefill"]["revision"] == revision
    assert settled.cr["status"]["router"]["url"] == "http://demo.llm.svc:8000"
    assert settled.cr["status"]["observedGeneration"] == settled.cr["metadata"]["generation"]
    settled.set_ready(settled.makers("decode")[0], 0)
    settled.report()
    assert settled.verdict("Available") == ("False", "NoRoutablePair")
    assert settled.condition("DecodeReady")["status"] == "False"
    settled.role("prefill", args={}).role("decode", replicas=1).settle()
    assert settled.condition("Ready")["status"] == "True"


def test_every_fault_of_the_engine_is_listed(world: World) -> None:
    world.role("prefill", args={"page-sise": 64, "window-cache-tokens": "x"})
    world.reconcile()
    message = world.condition("Valid")["message"]
    assert "spec.roles.prefill.args.page-sise" in message
    assert "did you mean page-size?" in message
    assert "spec.roles.prefill.args.window-cache-tokens" in message


def test_a_spec_that_was_never_accepted_makes_nothing(make_world: type[World], make_resource: MakeResource) -> None:
    engine = {"type": "SGLang", "version": "0.4.0", "image": "sglang:1", "platform": "cuda-sm90"}
    roles: dict[str, Any] = {"prefill": {}, "decode": {}}
    world = make_world(make_resource(engine=engine, model={"path": "/model"}, roles=roles))
    decided = world.reconcile()
    assert (decided.objects, decided.prune, decided.moving) == ((), (), False)
    assert world.verdict("Valid") == ("False", "UnknownEngineVersion")
    assert world.verdict("Available") == ("False", "NoRoutablePair")
    assert [c["type"] for c in world.cr["status"]["conditions"]] == [
        kind for kind in CONDITION_TYPES if kind not in {*PARTS.values(), "ReplayEffective", "SwaPoolReady"}
    ]


def test_a_version_judged_by_a_lower_one_is_told(make_world: type[World], make_resource: MakeResource) -> None:
    engine = {"type": "SGLang", "version": "0.5.99", "image": "sglang:1", "platform": "cuda-sm90"}
    roles: dict[str, Any] = {"prefill": {}, "decode": {}}
    world = make_world(make_resource(engine=engine, model={"path": "/model"}, roles=roles))
    assert world.verdict("Valid") == ("False", "UnknownEngineVersion")
    world.edit(engine={**engine, "versionPolicy": "Nearest", "acknowledge": ["rdma-missing"]})
    assert world.verdict("Valid") == ("True", "RulesApproximate")
    assert world.condition("Valid")["message"].startswith(
        "this version has no rules of its own; accepted by those of SGLang 0.5.23"
    )
    assert world.cr["status"]["acknowledged"] == ["rdma-missing"]


def test_an_unknown_version_lists_the_known(make_world: type[World], make_resource: MakeResource) -> None:
    world = make_world(make_resource(engine={"type": "Reference", "version": "9"}))
    assert world.verdict("Valid") == ("False", "UnknownEngineVersion")
    assert "0.1" in world.condition("Valid")["message"]


def test_transition_time_moves_with_status_only(settled: World) -> None:
    since = settled.condition("DecodeReady")["lastTransitionTime"]
    settled.role("decode", env={"A": "b"})
    settled.role("decode", env={})
    settled.reconcile()
    assert settled.condition("DecodeReady")["lastTransitionTime"] == since
    assert settled.condition("DecodeReady")["observedGeneration"] == 3
    down(settled, "decode").reconcile()
    flipped = settled.condition("DecodeReady")["lastTransitionTime"]
    assert flipped > since
    settled.pod("decode")["status"]["containerStatuses"] = [container("CrashLoopBackOff")]
    settled.reconcile()
    assert settled.condition("DecodeReady")["reason"] == "CrashLooping"
    assert settled.condition("DecodeReady")["lastTransitionTime"] == flipped


def test_events_tell_transitions_once(world: World) -> None:
    assert world.reconcile().events == ()
    world.settle()
    down(world, "encode")
    events = world.reconcile().events
    assert [(event.type, event.reason) for event in events] == [("Warning", "Starting"), ("Warning", "Starting")]
    assert events[0].message.startswith("EncodeReady is False: 0/1 ready")
    assert world.reconcile().events == ()
    world.set_ready(world.maker("encode"))
    world.report()
    assert {(event.type, event.reason) for event in world.reconcile().events} == {
        ("Normal", "AtDesired"),
        ("Normal", "AllReady"),
    }


def test_what_the_spec_asks_for_is_no_warning_and_a_worse_reason_is_told(settled: World) -> None:
    settled.role("decode", replicas=2)
    assert {(event.type, event.reason) for event in settled.reconcile().events} == {("Normal", "Scaling")}
    down(settled, "decode")
    settled.reconcile()
    settled.pod("decode")["status"]["containerStatuses"] = [container("CrashLoopBackOff")]
    (event,) = settled.reconcile().events
    assert (event.type, event.reason) == ("Warning", "CrashLooping")
    assert event.message.startswith("DecodeReady is False")
    assert settled.reconcile().events == ()


def test_an_invalid_new_resource_is_told_at_once(world: World) -> None:
    world.role("decode", replicas=-1)
    assert [event.reason for event in world.reconcile().events] == ["InvalidSpec", "InvalidSpec"]


def test_a_resource_being_deleted_is_left_to_the_garbage_collector(settled: World) -> None:
    settled.cr["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    decided = settled.plan()
    assert (decided.objects, decided.prune, decided.events, decided.moving) == ((), (), (), False)
    assert decided.status == settled.cr["status"]


def test_every_reason_is_documented_and_given_somewhere() -> None:
    folder = Path(epd_operator.plan.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path.name != "reason.py")
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Za-z]+", reason)
        assert reason.doc.endswith(".")
        assert f"Reason.{reason.name}" in source, f"{reason} is listed and never given"


def test_an_invalid_edit_in_the_middle_of_a_rollout_goes_on_watching_the_new_set(settled: World) -> None:
    settled.edit(model={"servedName": "new"}).reconcile()
    wanted = settled.cr["status"]["roles"]["decode"]["revision"]
    assert len(settled.makers("decode")) == 2
    settled.role("decode", replicas=-1).reconcile()
    assert settled.cr["status"]["roles"]["decode"]["revision"] == wanted
    assert settled.condition("DecodeReady")["status"] == "False"
    assert settled.condition("Available")["status"] == "True"
    assert len(settled.makers("decode")) == 2
