"""Which edit makes a new set, which one rolls one part, which one rolls nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

LABEL = "app.kubernetes.io/component"


def templates(world: World) -> dict[str, Any]:
    return {
        obj["metadata"]["labels"][LABEL]: obj["spec"]["template"]
        for obj in world.plan().objects
        if obj["kind"] == "Deployment"
    }


def moved(world: World, **edit: Any) -> tuple[set[str], bool]:
    """Parts whose template changes by an edit, and whether the compatibility key does."""
    world.reconcile()
    before, key = templates(world), world.plan().status["compatKey"]
    world.edit(**edit)
    after = templates(world)
    changed = {part for part in before if before[part] != after.get(part)}
    return changed, world.plan().status["compatKey"] != key


ALL = {"encode", "prefill", "decode"}
ROLES: dict[str, Any] = {"encode": {}, "prefill": {}, "decode": {}}


@pytest.mark.parametrize(
    "edit",
    [
        {"model": {"servedName": "other"}},
        {"model": {"path": "/other"}},
        {"model": {"path": "/model", "source": {"image": {"reference": "weights:2"}}}},
        {"engine": {"type": "Reference", "version": "0.1", "image": "worker:2"}},
        {"roles": {**ROLES, "prefill": {"args": {"page-size": 32}}, "decode": {"args": {"page-size": 32}}}},
        {"roles": {**ROLES, **{key: {"args": {"kv-cache-dtype": "bf16"}} for key in ("prefill", "decode")}}},
        {"roles": {**ROLES, "prefill": {"decoderReplay": "Off"}}},
        {"roles": {**ROLES, "prefill": {"encoderReplay": True}}},
        {"roles": {**ROLES, "prefill": {"args": {"decoder-replay-preset": "dsv41-37ae292e"}}}},
    ],
    ids=[
        "servedName",
        "path",
        "source",
        "image",
        "page-size",
        "kv-cache-dtype",
        "decoder-replay",
        "encoder-replay",
        "preset",
    ],
)
def test_what_the_roles_must_agree_on_makes_a_new_set(world: World, edit: dict[str, Any]) -> None:
    assert moved(world, **edit) == (ALL, True)


def test_asking_for_what_the_engine_does_by_itself_moves_no_pod(world: World) -> None:
    assert moved(world, roles={**ROLES, "prefill": {"decoderReplay": "On"}}) == (set(), False)


def test_the_bootstrap_port_is_each_pods_own_and_leaves_the_router_alone(world: World) -> None:
    assert moved(world, transfer={"bootstrapPort": 9000}) == (ALL, True)


@pytest.mark.parametrize(
    "change",
    [
        {"args": {"chunked-prefill-size": 256}},
        {"args": {"context-length": 4096}},
        {"env": {"A": "b"}},
        {"secretEnv": {"A": {"name": "s", "key": "k"}}},
        {"resources": {"memory": "2Gi"}},
        {"pod": {"nodeSelector": {"a": "b"}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_inputs_of_a_role_roll_that_role(world: World, change: dict[str, Any]) -> None:
    assert moved(world, roles={**ROLES, "prefill": change}) == ({"prefill"}, False)


@pytest.mark.parametrize(
    "router",
    [
        {"policy": {"decode": "random"}},
        {"requestTimeoutSeconds": 60},
        {"image": "router:2"},
        {"resources": {"cpu": "2"}},
    ],
    ids=lambda router: next(iter(router)),
)
def test_router_settings_roll_the_router(world: World, router: dict[str, Any]) -> None:
    assert moved(world, router=router) == ({"router"}, False)


@pytest.mark.parametrize(
    "edit",
    [
        {"roles": {**ROLES, "encode": {"replicas": 3}}},
        {"roles": {**ROLES, "decode": {"replicas": 3}}},  # prefill stays single
        {"roles": {**ROLES, "decode": {"startupMinutes": 30}}},
        {"roles": {**ROLES, "prefill": {"args": {"page-size": 64, "chunked-prefill-size": 512}}}},  # the defaults
        {"engine": {"type": "Reference", "version": "0.1", "imagePullSecrets": [{"name": "s"}]}},
        {"engine": {"type": "Reference", "version": "0.1", "imagePullPolicy": "Always"}},
        {"engine": {"type": "Reference", "version": "0.1", "platform": "cpu"}},
        {"model": {"servedName": "demo"}},
        {"router": {"replicas": 3, "service": {"type": "NodePort"}}},
        {"networkPolicy": {"enabled": False}},
    ],
    ids=["encode", "decode", "startup", "defaults", "secrets", "pull", "platform", "name", "router", "policy"],
)
def test_what_restarts_no_pod(world: World, edit: dict[str, Any]) -> None:
    assert moved(world, **edit) == (set(), False)


def test_turning_vision_on_makes_a_new_set(make_world: type[World], make_resource: MakeResource) -> None:
    world = make_world(make_resource(roles={"prefill": {}, "decode": {}}))
    assert moved(world, roles=ROLES) == ({"prefill", "decode"}, True)
    assert set(templates(world)) == {*ALL, "router"}


def test_the_boundary_from_a_single_worker_to_several_rolls_the_router(world: World) -> None:
    world.role("prefill", replicas=2)
    assert moved(world, roles={**ROLES, "prefill": {"replicas": 2}, "decode": {"replicas": 2}}) == ({"router"}, False)


def test_a_role_that_rolls_after_an_upgrade_keeps_the_image_of_its_set(make_world: type[World]) -> None:
    """Two images under one key would never be paired."""
    world = make_world().settle()
    image = templates(world)["decode"]["spec"]["containers"][0]["image"]
    world.settings = type(world.settings)(router_image="other:9", worker_image="other:9", version="9")
    world.role("prefill", env={"A": "b"})
    actual = templates(world)["prefill"]["spec"]["containers"][0]
    assert actual["image"] == image
    assert {"name": "A", "value": "b"} in actual["env"]
    world.edit(model={"servedName": "new-set"})
    images = {part: template["spec"]["containers"][0]["image"] for part, template in templates(world).items()}
    assert images == {"encode": "other:9", "prefill": "other:9", "decode": "other:9", "router": image_of_router(world)}


def image_of_router(world: World) -> str:
    return str(world.maker("router")["spec"]["template"]["spec"]["containers"][0]["image"])


def test_deleting_a_stored_template_asks_for_a_new_one(make_world: type[World]) -> None:
    world = make_world().settle()
    world.settings = type(world.settings)(router_image="other:9", worker_image="other:9", version="9")
    name = world.maker("router")["metadata"]["labels"]["serving.epd.dev/revision"]
    del world.children["ControllerRevision", f"demo-router-{name}"]
    assert templates(world)["router"]["spec"]["containers"][0]["image"] == "other:9"


def test_a_stored_template_that_is_none_is_rendered_anew(make_world: type[World]) -> None:
    world = make_world()
    world.reconcile()
    before = templates(world)
    for (kind, _), child in world.children.items():
        if kind == "ControllerRevision":
            child["data"] = {"spec": "not a template"}
    assert templates(world) == before
