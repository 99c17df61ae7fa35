"""ReplayEffective: what the spec asks, what prefill pods say of themselves, and that counters move nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

KIND = "ReplayEffective"
SGLANG = {"type": "SGLang", "version": "0.5.23", "image": "sglang:1", "platform": "cuda-sm90"}


@pytest.fixture
def settled(world: World) -> World:
    return world.settle()


def prefill(world: World, router: int = 0) -> dict[str, Any]:
    actual: dict[str, Any] = next(w for w in world.routers[router]["workers"] if w["role"] == "prefill")
    return actual


def report(world: World, half: str, **values: Any) -> World:
    prefill(world)["replay"][half] |= values
    return world


def message(world: World) -> str:
    return str(world.condition(KIND)["message"])


def test_it_replays_and_says_which_preset(settled: World) -> None:
    assert settled.verdict(KIND) == ("True", "Replaying")
    assert message(settled) == "decoder half, preset 0.5.23"


def test_counters_move_nothing(settled: World) -> None:
    before = settled.reconcile().status
    report(settled, "decoder", rowsRun=10**9, rowsSkipped=10**9)
    report(settled, "encoder", rowsReplayed=10**9)
    assert settled.reconcile().status == before


def test_turned_off_is_known_from_the_spec_alone(settled: World) -> None:
    settled.role("prefill", decoderReplay="Off")
    settled.routers = []
    events = settled.reconcile().events
    assert settled.verdict(KIND) == ("False", "TurnedOff")
    assert message(settled).startswith("spec.roles.prefill.decoderReplay is Off")
    assert settled.cr["status"]["effective"]["replay"] == "Off"
    reported = [(event.type, event.reason) for event in events if event.message.startswith(KIND)]
    assert reported == [("Normal", "TurnedOff")], "what the spec asks for is no warning"


@pytest.mark.parametrize("reason", ["TurnedOff", "PromptLogprobs", ""])
def test_an_engine_that_runs_without_is_told_with_its_reason(settled: World, reason: str) -> None:
    report(settled, "decoder", active=False, reason=reason)
    (event,) = settled.reconcile().events
    assert (event.type, event.reason) == ("Warning", "EngineDoesNotReplay")
    assert settled.verdict(KIND) == ("False", "EngineDoesNotReplay")
    pod = prefill(settled)["pod"]
    assert message(settled) == f"{pod} runs without replay of the decoder half: {reason or 'no reason given'}"
    assert settled.condition("Ready")["status"] == "True", "replay spares work, and decides nothing else"


def test_before_the_first_long_prompt_nobody_can_tell(settled: World) -> None:
    report(settled, "decoder", active=False, reason="NoLongPromptYet")
    (event,) = settled.reconcile().events
    assert (event.type, event.reason) == ("Normal", "NoLongPromptYet")
    assert event.message.startswith("ReplayEffective is Unknown: no prompt has come yet")
    assert settled.verdict(KIND) == ("Unknown", "NoLongPromptYet")
    assert settled.reconcile().events == ()
    report(settled, "decoder", active=True, reason="")
    assert settled.verdict(KIND) == ("True", "Replaying")


def test_until_a_prefill_of_the_revision_is_routable_nothing_is_known(world: World) -> None:
    world.reconcile()
    assert world.verdict(KIND) == ("Unknown", "NotReported")
    world.settle()
    old = world.cr["status"]["roles"]["prefill"]["revision"]
    world.role("prefill", env={"A": "b"})
    assert world.verdict(KIND) == ("Unknown", "NotReported")
    new = world.cr["status"]["roles"]["prefill"]["revision"]
    assert old != new
    assert message(world).endswith(f"no prefill pod of revision {new} is routable yet")
    world.settle()
    assert world.verdict(KIND) == ("True", "Replaying")
    prefill(world)["routable"] = False
    assert world.verdict(KIND) == ("Unknown", "NotReported")


@pytest.mark.parametrize("how", ["null", "absent"])
def test_a_prefill_that_says_nothing(settled: World, how: str) -> None:
    if how == "null":
        prefill(settled)["replay"] = None
    else:
        del prefill(settled)["replay"]
    assert settled.verdict(KIND) == ("Unknown", "NotReported")
    assert message(settled).endswith("no prefill pod has said yet whether it replays")


def test_what_one_router_heard_is_enough(settled: World) -> None:
    late = copy.deepcopy(settled.routers[0])
    settled.routers.insert(0, late)
    prefill(settled)["replay"] = None
    assert settled.verdict(KIND) == ("True", "Replaying")


def test_one_pod_of_two_that_runs_without_is_told(world: World) -> None:
    world.role("prefill", replicas=2).settle()
    assert world.verdict(KIND) == ("True", "Replaying")
    report(world, "decoder", active=False, reason="NoLongPromptYet")
    assert world.verdict(KIND) == ("True", "Replaying"), "a pod that has just started has nothing to say yet"
    report(world, "decoder", active=False, reason="TurnedOff")
    assert world.verdict(KIND) == ("False", "EngineDoesNotReplay")
    assert message(world).count("runs without") == 1


@pytest.mark.parametrize("decoder", ["Auto", "Off"])
def test_the_encoder_half_counts_when_it_is_asked_for(settled: World, decoder: str) -> None:
    settled.role("prefill", decoderReplay=decoder, encoderReplay=True).settle()
    assert settled.verdict(KIND) == ("False", "EngineDoesNotReplay")
    assert message(settled).endswith("runs without replay of the encoder half: TurnedOff")
    report(settled, "encoder", active=False, reason="NoLongPromptYet")
    if decoder == "Auto":
        assert settled.verdict(KIND) == ("True", "Replaying")
        assert message(settled) == "decoder half, preset 0.5.23; encoder half: nothing to replay yet"
    else:
        assert settled.verdict(KIND) == ("Unknown", "NoLongPromptYet")
    report(settled, "encoder", active=True, reason="")
    assert settled.verdict(KIND) == ("True", "Replaying")
    assert message(settled).endswith("encoder half")


def test_silence_after_a_restart_of_the_operator_keeps_what_was_known(settled: World) -> None:
    for values in ({"active": True, "reason": ""}, {"active": False, "reason": "TurnedOff"}):
        report(settled, "decoder", **values)
        before = settled.reconcile().status
        heard, settled.routers = settled.routers, []
        assert settled.reconcile().status == before
        settled.routers = heard


def test_a_spec_that_is_refused_keeps_what_was_known(settled: World) -> None:
    settled.role("prefill", args={"page-sise": 1})
    assert settled.verdict(KIND) == ("True", "Replaying")
    assert settled.condition("Valid")["status"] == "False"


def test_asking_again_after_off_waits_for_the_new_pods(settled: World) -> None:
    settled.role("prefill", decoderReplay="Off").settle()
    settled.role("prefill", decoderReplay="On")
    assert settled.verdict(KIND) == ("Unknown", "NotReported")
    settled.settle()
    assert settled.verdict(KIND) == ("True", "Replaying")


@pytest.mark.parametrize(
    ("fields", "verdict", "words"),
    [
        ({"decoderReplay": "On"}, ("Unknown", "NotReported"), "SGLang 0.5.23 does not say whether it replays"),
        ({}, ("Unknown", "NotReported"), "decoderReplay is on; SGLang 0.5.23 does not say"),
        ({"decoderReplay": "Off"}, ("False", "TurnedOff"), "decoderReplay is Off"),
        (
            {"args": {"enable-return-hidden-states": True}},
            ("False", "EngineDoesNotReplay"),
            "is Auto, which SGLang 0.5.23",
        ),
    ],
)
def test_an_engine_without_a_report(
    make_world: type[World], make_resource: MakeResource, fields: dict[str, Any], verdict: tuple[str, str], words: str
) -> None:
    roles = {"prefill": fields, "decode": {}}
    world = make_world(make_resource(engine=SGLANG, model={"path": "/model"}, roles=roles))
    world.edit(engine={**SGLANG, "acknowledge": ["rdma-missing"]})
    world.reconcile()
    assert world.condition("Valid")["status"] == "True", world.condition("Valid")["message"]
    assert world.verdict(KIND) == verdict
    assert words in message(world)


def test_sglang_says_so_with_the_plugin(make_world: type[World], make_resource: MakeResource) -> None:
    engine = {**SGLANG, "plugins": ["epd"], "acknowledge": ["rdma-missing"]}
    world = make_world(make_resource(engine=engine, model={"path": "/model"}, roles={"prefill": {}, "decode": {}}))
    world.settle()
    assert world.verdict(KIND) == ("True", "Replaying")
