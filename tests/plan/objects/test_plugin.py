"""A plugin of the engine in its pods: the image that brings it, the pool's file, who may reach encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tools.docs.page import ROOT

if TYPE_CHECKING:
    from tests.support.world import World

IMAGE = "registry.example/epd-plugin:0.1.0"
FOLDER = "/opt/epd/plugin"


@pytest.fixture
def world(make_world: type[World]) -> World:
    document = yaml.safe_load((ROOT / "manifests/samples/sglang-cpu.yaml").read_text(encoding="utf-8"))
    document["metadata"] |= {"namespace": "llm", "uid": "uid", "generation": 1}
    return make_world(document)


def pod(world: World, role: str) -> dict[str, Any]:
    (spec,) = (
        obj["spec"]["template"]["spec"]
        for obj in world.plan().objects
        if obj["kind"] == "Deployment" and obj["metadata"]["labels"]["app.kubernetes.io/component"] == role
    )
    return dict(spec)


def variables(world: World, role: str) -> dict[str, Any]:
    (container,) = pod(world, role)["containers"]
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names)), "server-side apply merges variables by their names"
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def plugged_by_image(world: World) -> World:
    return world.edit(engine={**world.spec["engine"], "pluginImage": IMAGE})


@pytest.mark.parametrize("role", ["encode", "prefill", "decode"])
def test_an_image_of_its_own_is_copied_beside_the_engine(world: World, role: str) -> None:
    spec = pod(plugged_by_image(world), role)
    (copies,) = spec["initContainers"]
    assert copies["image"] == IMAGE
    assert copies["command"] == ["cp", "-R", f"{FOLDER}/.", "/plugin/"]
    (written,) = copies["volumeMounts"]
    (read,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == written["name"])
    assert (read["mountPath"], read["readOnly"]) == (FOLDER, True)
    assert {"name": written["name"], "emptyDir": {}} in spec["volumes"]
    assert variables(world, role)["PYTHONPATH"] == FOLDER


def test_an_image_that_has_it_needs_no_copy(world: World) -> None:
    spec = pod(world, "prefill")
    assert "initContainers" not in spec
    assert "PYTHONPATH" not in variables(world, "prefill")
    assert variables(world, "prefill")["SGLANG_PLUGINS"] == "epd,epd-cpu"


def test_another_plugin_image_is_another_set(world: World) -> None:
    before = world.plan().status["compatKey"]
    assert plugged_by_image(world).plan().status["compatKey"] != before


def test_the_pool_is_told_to_prefill_alone(world: World) -> None:
    named = {role: variables(world, role).get("EPD_SWA_POOL") for role in ("encode", "prefill", "decode")}
    assert named == {"encode": None, "prefill": "/etc/epd/swa-pool/pool.json", "decode": None}
    world.edit(swaPool={"mode": "Disabled"})
    assert "EPD_SWA_POOL" not in variables(world, "prefill")


def test_a_user_knows_better_how_long_a_step_takes(world: World) -> None:
    assert variables(world, "decode")["SGLANG_HEALTH_CHECK_TIMEOUT"] == "100"
    world.role("decode", env={"SGLANG_HEALTH_CHECK_TIMEOUT": "300"})
    assert variables(world, "decode")["SGLANG_HEALTH_CHECK_TIMEOUT"] == "300"


def peers(world: World, part: str, direction: str) -> set[str]:
    """The roles that a part's policy lets in or out."""
    (policy,) = (
        obj["spec"]
        for obj in world.plan().objects
        if obj["kind"] == "NetworkPolicy" and obj["metadata"]["labels"]["app.kubernetes.io/component"] == part
    )
    side = "from" if direction == "ingress" else "to"
    return {
        role
        for rule in policy[direction]
        for peer in rule.get(side, ())
        for expression in peer.get("podSelector", {}).get("matchExpressions", ())
        for role in expression["values"]
    }


def test_only_prefill_reaches_encoders_and_the_pool(world: World) -> None:
    assert peers(world, "encode", "ingress") == {"prefill"}
    assert peers(world, "encode", "egress") == {"prefill"}
    assert peers(world, "decode", "egress") == {"prefill", "decode"}
    assert peers(world, "prefill", "ingress") == {"encode", "prefill", "decode"}
    assert peers(world, "swa-pool", "ingress") == {"prefill"}
    assert "swa-pool" in peers(world, "prefill", "egress")


def test_valid_calls_it_a_rehearsal(world: World) -> None:
    world.reconcile()
    assert world.condition("Valid")["message"].startswith(
        "accepted by the rules of SGLang 0.5.23 with epd, a rehearsal on CPU"
    )
    gpus = {**world.spec["engine"], "platform": "cuda-sm90"}
    world.edit(engine=gpus).reconcile()
    assert "rehearsal" not in world.condition("Valid")["message"]
