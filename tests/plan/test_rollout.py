"""When old revisions go: only after every router routes to all of the new set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.world import World


@pytest.fixture
def rolling(world: World) -> World:
    """A settled resource whose compatibility key has just changed."""
    world.settle()
    return world.edit(model={"servedName": "new"})


def pruned(world: World) -> set[str]:
    return {f"{ref.kind}/{ref.name}" for ref in world.reconcile().prune}


def new_and_old(world: World, part: str) -> tuple[dict[str, Any], dict[str, Any]]:
    new = world.maker(part)
    old = next(d for d in world.makers(part) if d is not new)
    return new, old


def bring_up(world: World, *parts: str) -> None:
    for part in parts:
        world.set_ready(world.maker(part))


def test_the_old_set_serves_until_the_new_one_is_routable(rolling: World) -> None:
    assert pruned(rolling) == set()
    old = {new_and_old(rolling, part)[1]["metadata"]["name"] for part in ("encode", "prefill", "decode")}
    bring_up(rolling, "prefill", "decode")
    rolling.report()
    assert pruned(rolling) == set(), "encode is not ready"
    assert rolling.condition("Available")["status"] == "True"
    assert rolling.condition("Reconciling")["reason"] == "Replacing"
    bring_up(rolling, "encode")
    assert pruned(rolling) == set(), "no registrar has seen the encoder"
    assert rolling.verdict("Ready") == ("False", "Replacing")
    rolling.report()
    expected = {f"{kind}/{name}" for kind in ("Deployment", "ControllerRevision") for name in old}
    decided = rolling.reconcile()
    assert {f"{ref.kind}/{ref.name}" for ref in decided.prune} == expected
    assert all(ref.uid.startswith("uid-") and ref.api_version == "apps/v1" for ref in decided.prune)
    assert rolling.condition("Ready")["status"] == "True"
    assert not decided.moving


def test_a_worker_that_is_ready_and_not_routable_holds_the_old_set(rolling: World) -> None:
    rolling.reconcile()
    bring_up(rolling, "encode", "prefill", "decode")
    rolling.report()
    revision = rolling.maker("decode")["metadata"]["labels"]["serving.epd.dev/revision"]
    worker = next(w for w in rolling.routers[0]["workers"] if w["revision"] == revision)
    worker["routable"] = False
    assert pruned(rolling) == set()
    worker["routable"] = True
    assert len(pruned(rolling)) == 6


def test_every_ready_router_must_confirm(rolling: World) -> None:
    rolling.reconcile()
    old_view = rolling.routers[0]
    bring_up(rolling, "encode", "prefill", "decode")
    rolling.report()
    rolling.routers.append(old_view)
    assert pruned(rolling) == set()
    old_view["router"] = {"ready": False}
    assert len(pruned(rolling)) == 6


def test_silent_registrars_confirm_nothing(rolling: World) -> None:
    rolling.reconcile()
    bring_up(rolling, "encode", "prefill", "decode")
    rolling.routers = []
    assert pruned(rolling) == set()


def test_going_back_finds_the_old_set_where_it_was(rolling: World) -> None:
    before = {d["metadata"]["name"] for d in rolling.makers("prefill")}
    rolling.reconcile()
    abandoned = new_and_old(rolling, "prefill")[0]["metadata"]["name"]
    bring_up(rolling, "prefill")
    rolling.edit(model={})
    assert f"Deployment/{abandoned}" in pruned(rolling)
    assert {d["metadata"]["name"] for d in rolling.makers("prefill")} == before
    assert rolling.verdict("Ready") == ("True", "AllReady")


def test_a_set_that_never_came_up_makes_room_at_once(rolling: World) -> None:
    rolling.reconcile()
    given_up = new_and_old(rolling, "prefill")[0]["metadata"]["name"]
    rolling.edit(model={"servedName": "newer"})
    first = pruned(rolling)
    assert {f"Deployment/{given_up}", f"ControllerRevision/{given_up}"} <= first
    assert len(rolling.makers("prefill")) == 2, "the serving revision stays"


def test_half_a_set_that_was_given_up_makes_room_at_once(rolling: World) -> None:
    # Its decode pods hold the accelerators that the next set waits for, and nobody can be served by decode alone.
    rolling.reconcile()
    bring_up(rolling, "encode", "decode")
    rolling.report()
    given_up = {rolling.maker(part)["metadata"]["name"] for part in ("encode", "prefill", "decode")}
    rolling.edit(model={"servedName": "newer"})
    assert {name.partition("/")[2] for name in pruned(rolling)} == given_up
    assert len(rolling.makers("decode")) == 2, "the serving revision stays"


def test_a_serving_set_survives_a_moment_without_ready_pods(rolling: World) -> None:
    rolling.reconcile()
    _, old = new_and_old(rolling, "decode")
    rolling.set_ready(old, 0)
    assert pruned(rolling) == set()


def test_one_role_rolls_alone(world: World) -> None:
    world.settle()
    world.role("prefill", env={"A": "b"})
    assert pruned(world) == set()
    assert len(world.makers("prefill")) == 2
    assert len(world.makers("decode")) == 1
    bring_up(world, "prefill")
    world.report()
    assert {name.partition("/")[0] for name in pruned(world)} == {"Deployment", "ControllerRevision"}


def test_a_role_that_left_the_spec_goes_with_everything_that_was_its_own(world: World) -> None:
    world.settle()
    world.edit(roles={"prefill": {}, "decode": {}})
    assert pruned(world) == set(), "vision is turned off by a new set"
    bring_up(world, "prefill", "decode")
    world.report()
    kinds = {name.partition("/")[0] for name in pruned(world) if "encode" in name}
    assert kinds == {"Deployment", "ControllerRevision", "PodDisruptionBudget", "NetworkPolicy"}
    assert world.makers("encode") == []


def test_a_role_that_left_the_spec_keeps_its_budget_and_policy_while_it_serves(world: World) -> None:
    world.settle()
    world.edit(roles={"prefill": {}, "decode": {}})
    assert pruned(world) == set()
    world.edit(networkPolicy={"enabled": False})
    assert {name for name in pruned(world) if "encode" in name} == {"NetworkPolicy/demo-encode"}
    assert ("PodDisruptionBudget", "demo-encode") in world.children


def test_policies_go_when_they_are_turned_off(world: World) -> None:
    world.settle()
    world.edit(networkPolicy={"enabled": False})
    assert pruned(world) == {f"NetworkPolicy/demo-{part}" for part in ("encode", "prefill", "decode", "router")}


def test_without_routers_there_is_nobody_to_wait_for(rolling: World) -> None:
    rolling.edit(router={"replicas": 0})
    rolling.reconcile()
    bring_up(rolling, "encode", "prefill", "decode")
    rolling.routers = []
    assert len(pruned(rolling)) == 6


def test_what_is_being_deleted_is_not_deleted_again(world: World) -> None:
    world.settle()
    world.children["NetworkPolicy", "demo-router"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.edit(networkPolicy={"enabled": False})
    assert "demo-router" not in {ref.name for ref in world.plan().prune}


def test_an_old_router_template_goes_at_once(world: World) -> None:
    world.settle()
    world.edit(router={"image": "router:2"})
    assert {name.partition("/")[0] for name in pruned(world)} == {"ControllerRevision"}
    assert world.verdict("RouterReady")[0] == "False"
