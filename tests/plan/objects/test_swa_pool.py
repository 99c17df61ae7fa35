"""The pool of windows: what each mode makes, what a change of it rolls, and that it goes without a trace."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from epd_operator.api import names, quantity
from epd_operator.plan import Settings
from epd_workers.swapool.server.options import MasterOptions, StoreOptions, ValkeyOptions
from epd_workers.swapool.server.options import parse as command_line
from epd_workers.swapool.settings import PoolSettings, parse

if TYPE_CHECKING:
    from tests.support.world import MakeResource, World

MAKERS = ("Deployment", "LeaderWorkerSet")
MIB = 2**20


@pytest.fixture
def world(make_world: type[World], make_resource: MakeResource) -> World:
    return make_world(make_resource(roles={"prefill": {"encoderReplay": True}, "decode": {}}))


def pooled(world: World, mode: str, **fields: Any) -> World:
    return world.edit(swaPool={"mode": mode, **fields})


def planned(world: World) -> dict[tuple[str, str], dict[str, Any]]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in world.plan().objects}


def pool_of(world: World) -> dict[tuple[str, str], dict[str, Any]]:
    return {key: obj for key, obj in planned(world).items() if key[1].startswith("demo-swa-")}


def container(world: World, name: str) -> dict[str, Any]:
    actual: dict[str, Any] = planned(world)["Deployment", name]["spec"]["template"]["spec"]["containers"][0]
    return actual


def engine(world: World, role: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (maker,) = (
        obj
        for obj in world.plan().objects
        if obj["kind"] == "Deployment" and obj["metadata"]["labels"].get(names.LABEL_ROLE) == role
    )
    spec = maker["spec"]["template"]["spec"]
    return spec["containers"][0], spec["volumes"]


KINDS = {
    "Disabled": set(),
    "InProcess": {"ConfigMap/demo-swa-pool"},
    "Valkey": {
        *(f"{kind}/demo-swa-pool" for kind in ("ConfigMap", "Deployment", "NetworkPolicy", "Service")),
        "ControllerRevision/demo-swa-pool-*",
    },
    "Mooncake": {
        *(f"{kind}/demo-swa-pool" for kind in ("ConfigMap", "Deployment", "NetworkPolicy", "Service")),
        *(f"{kind}/demo-swa-pool-store" for kind in ("Deployment", "NetworkPolicy", "PodDisruptionBudget")),
        "ControllerRevision/demo-swa-pool-*",
        "ControllerRevision/demo-swa-store-*",
    },
}


@pytest.mark.parametrize("mode", KINDS)
def test_each_mode_has_its_objects_and_no_more(world: World, mode: str) -> None:
    pooled(world, mode)
    actual = {
        f"{kind}/{name.rpartition('-')[0]}-*" if kind == "ControllerRevision" else f"{kind}/{name}"
        for kind, name in pool_of(world)
    }
    assert actual == KINDS[mode]


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_every_mode_leads_to_every_other_and_leaves_nothing_behind(world: World, before: str, after: str) -> None:
    pooled(world, before).settle()
    decode = copy.deepcopy(world.maker("decode"))
    prefill = world.maker("prefill")["metadata"]["name"]
    router = copy.deepcopy(world.maker("router")["spec"])
    pooled(world, after).settle()
    left = {(kind, name) for kind, name in world.children if name.startswith("demo-swa-")}
    assert left == set(pool_of(world))
    assert world.maker("decode")["spec"] == decode["spec"]
    assert world.maker("decode")["metadata"]["name"] == decode["metadata"]["name"]
    assert world.maker("router")["spec"] == router
    assert (world.maker("prefill")["metadata"]["name"] == prefill) == (before == after)
    assert world.plan().prune == ()
    assert world.condition("Ready")["status"] == "True"


def test_a_pool_that_is_turned_off_goes_at_once_and_waits_for_no_rollout(world: World) -> None:
    pooled(world, "Mooncake", stores=2).settle()
    pooled(world, "Disabled").reconcile()
    assert world.condition("Reconciling")["reason"] == "Replacing"
    assert not [name for _, name in world.children if name.startswith("demo-swa-")]
    assert "SwaPoolReady" not in {condition["type"] for condition in world.cr["status"]["conditions"]}


SETTINGS_OF_A_POOL = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from(["32Mi", "1Gi", "2Gi"]),
        "ttl": st.sampled_from(["30s", "5m", "1h"]),
        "deadline": st.sampled_from(["5ms", "20ms", "100ms"]),
        "stores": st.integers(1, 5),
        "pod": st.sampled_from([{}, {"priorityClassName": "high"}, {"labels": {"a": "b"}}]),
    },
)


@settings(max_examples=30)
@given(first=SETTINGS_OF_A_POOL, second=SETTINGS_OF_A_POOL)
def test_settings_of_a_pool_change_no_other_pod(
    make_world: type[World], make_resource: MakeResource, first: dict[str, Any], second: dict[str, Any]
) -> None:
    world = make_world(make_resource(roles={"prefill": {"encoderReplay": True}, "decode": {}}))
    before = planned(pooled(world, "Mooncake", **first))
    after = planned(pooled(world, "Mooncake", **second))
    others = [key for key in before if not key[1].startswith("demo-swa-")]
    assert {key: after[key] for key in others} == {key: before[key] for key in others}
    stays = {name: first.get(name) == second.get(name) for name in ("memory", "pod", "stores")}
    masters, stores = (
        before["Deployment", name]["spec"] == after["Deployment", name]["spec"]
        for name in ("demo-swa-pool", "demo-swa-pool-store")
    )
    assert masters or not stays["pod"], "the master forgets everything when it is replaced"
    assert stores or not all(stays.values()), "lifetimes are in no template"


def test_a_number_of_stores_replaces_none(world: World) -> None:
    before = planned(pooled(world, "Mooncake", stores=1))
    after = planned(pooled(world, "Mooncake", stores=4))
    assert before.keys() == after.keys()
    before["Deployment", "demo-swa-pool-store"]["spec"]["replicas"] = 4
    assert after == before


@pytest.mark.parametrize(
    ("mode", "address"),
    [
        ("InProcess", "memory:?bytes=67108864"),
        ("Valkey", "valkey://demo-swa-pool.llm.svc:6379"),
        ("Mooncake", "mooncake://demo-swa-pool.llm.svc:50051"),
    ],
)
def test_the_file_says_where_and_how_long(world: World, mode: str, address: str) -> None:
    pooled(world, mode, memory="64Mi", ttl="2m30s", deadline="15ms")
    text = planned(world)["ConfigMap", "demo-swa-pool"]["data"]["pool.json"]
    assert parse(text.encode()) == PoolSettings(address, 150.0, 0.015)


@pytest.mark.parametrize("mode", KINDS)
def test_decode_reads_the_file_always_and_prefill_where_there_is_a_pool(world: World, mode: str) -> None:
    pooled(world, mode)
    for role, reads in (("decode", True), ("prefill", mode != "Disabled")):
        actual, volumes = engine(world, role)
        words = dict(zip(actual["args"], actual["args"][1:], strict=False))
        flag = words.get("--swa-pool-config", "")
        mounts = {mount["name"]: mount for mount in actual["volumeMounts"]}
        sources = {volume["name"]: volume for volume in volumes}
        assert bool(flag) == ("epd-swa-pool" in mounts) == ("epd-swa-pool" in sources) == reads
        if reads:
            mount = mounts["epd-swa-pool"]
            assert flag == f"{mount['mountPath']}/pool.json"
            assert "subPath" not in mount, "the kubelet never changes a file that is mounted alone"
            assert sources["epd-swa-pool"]["configMap"] == {"name": "demo-swa-pool", "optional": True}
        assert words["--tenant"] == "llm/demo"


def test_templates_stored_by_an_older_release_stay(world: World) -> None:
    # A release that knew no pool stored a decode template without its mount; turning a pool on restarts no such pod.
    world.reconcile()
    (stored,) = (
        child
        for (kind, _), child in world.children.items()
        if kind == "ControllerRevision" and child["metadata"]["labels"].get(names.LABEL_ROLE) == "decode"
    )
    spec = stored["data"]["spec"]["template"]["spec"]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "epd-swa-pool"]
    old = copy.deepcopy(stored["data"]["spec"]["template"])
    world.settle()
    pooled(world, "Valkey").settle()
    assert world.maker("decode")["spec"]["template"] == old
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("mode", ["Valkey", "Mooncake"])
def test_a_newer_operator_restarts_no_pod_of_a_pool(world: World, mode: str) -> None:
    pooled(world, mode).settle()
    before = pool_of(world)
    world.settings = Settings(router_image="r:9", worker_image="w:9", version="9.9.9")
    assert pool_of(world) == before
    pooled(world, mode, memory="3Gi")
    changed = "demo-swa-pool" if mode == "Valkey" else "demo-swa-pool-store"
    assert container(world, changed)["image"] == "w:9", "new pods are the running release's"


@pytest.mark.parametrize("mode", ["Valkey", "Mooncake"])
def test_deleting_what_is_stored_of_a_server_gives_it_the_running_release_s_image(world: World, mode: str) -> None:
    pooled(world, mode).settle()
    engines = world.maker("prefill")["spec"]["template"]
    world.settings = Settings(router_image="r:9", worker_image="w:9", version="9.9.9")
    for stored in [key for key in pool_of(world) if key[0] == "ControllerRevision"]:
        assert stored[1].startswith(("demo-swa-pool-", "demo-swa-store-")), "as the runbook spells it"
        world.children.pop(stored)
    world.settle()
    servers = [key[1] for key in pool_of(world) if key[0] == "Deployment"]
    assert {container(world, name)["image"] for name in servers} == {"w:9"}
    assert world.maker("prefill")["spec"]["template"] == engines


@pytest.mark.parametrize("memory", ["16Mi", "100Mi", "640Mi", "8Gi", "1.5Gi", "2G", "100Gi"])
def test_memory_leaves_room_beside_the_windows(world: World, memory: str) -> None:
    asked = int(quantity.parse(memory) or 0)

    def limit(name: str) -> int:
        resources = container(world, name)["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]
        assert "cpu" in resources["requests"]
        assert "cpu" not in resources["limits"]
        return int(quantity.parse(resources["limits"]["memory"]) or 0)

    pooled(world, "Valkey", memory=memory)
    assert 0 <= limit("demo-swa-pool") - asked - max(asked // 10, 64 * MIB) - 64 * MIB < MIB
    assert f"--memory {asked}" in " ".join(container(world, "demo-swa-pool")["args"])
    # Without it the server's memory grows by more than the tenth that it is given beside its windows.
    assert {"name": "MALLOC_MMAP_THRESHOLD_", "value": "262144"} in container(world, "demo-swa-pool")["env"]
    pooled(world, "Mooncake", memory=memory)
    assert 0 <= limit("demo-swa-pool-store") - asked - 256 * MIB < MIB
    assert f"--memory {asked}" in " ".join(container(world, "demo-swa-pool-store")["args"])
    assert limit("demo-swa-pool") == 512 * MIB


def test_the_supervisor_understands_every_command_line(world: World) -> None:
    pooled(world, "Valkey", memory="1Gi")
    assert command_line(container(world, "demo-swa-pool")["args"]) == ValkeyOptions(2**30, 6379, 8088)
    pooled(world, "Mooncake", memory="1Gi")
    assert command_line(container(world, "demo-swa-pool")["args"]) == MasterOptions(50051, 9003, 8088)
    store = StoreOptions("demo-swa-pool.llm.svc:50051", 2**30, "$(POD_IP)", "tcp", "", 8088)
    assert command_line(container(world, "demo-swa-pool-store")["args"]) == store


def test_stores_are_replaced_one_at_a_time_with_a_pause_and_spread(world: World) -> None:
    pooled(world, "Mooncake", stores=3)
    spec = planned(world)["Deployment", "demo-swa-pool-store"]["spec"]
    assert (spec["replicas"], spec["minReadySeconds"]) == (3, 10)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert planned(world)["PodDisruptionBudget", "demo-swa-pool-store"]["spec"]["maxUnavailable"] == 1
    own = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pooled(world, "Mooncake", pod={"topologySpreadConstraints": [own]})
    (wished,) = planned(world)["Deployment", "demo-swa-pool-store"]["spec"]["template"]["spec"][
        "topologySpreadConstraints"
    ]
    assert own.items() <= wished.items(), "a user's own spread stands alone"


@pytest.mark.parametrize("mode", ["Valkey", "Mooncake"])
def test_there_are_never_two_of_the_one_server(world: World, mode: str) -> None:
    spec = planned(pooled(world, mode))["Deployment", "demo-swa-pool"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_placement_is_the_user_s(world: World) -> None:
    pod = {
        "nodeSelector": {"pool": "memory"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
    }
    pooled(world, "Mooncake", pod=pod)
    for name in ("demo-swa-pool", "demo-swa-pool-store"):
        template = planned(world)["Deployment", name]["spec"]["template"]
        assert template["metadata"]["labels"]["team"] == "a"
        assert template["metadata"]["annotations"] == {"note": "b"}
        for field in ("nodeSelector", "tolerations", "priorityClassName"):
            assert template["spec"][field] == pod[field]


def admits(rule: dict[str, Any], part: str) -> bool:
    """Whether a rule of a policy speaks of the pods of a part of this resource."""
    for peer in rule.get("from", rule.get("to", ())):
        selector = peer.get("podSelector", {})
        chosen = [value for one in selector.get("matchExpressions", ()) for value in one["values"]]
        if selector.get("matchLabels", {}).get(names.LABEL_INSTANCE) == "demo" and part in chosen:
            return True
    return False


def ports(rules: list[dict[str, Any]], part: str) -> set[tuple[int, int]]:
    return {
        (port["port"], port.get("endPort", port["port"]))
        for rule in rules
        if admits(rule, part)
        for port in rule.get("ports", [{"port": 1, "endPort": 65535}])
    }


PORTS = {
    ("Valkey", "swa-pool"): {(6379, 6379)},
    ("Mooncake", "swa-pool"): {(50051, 50051)},
    ("Mooncake", "swa-pool-store"): {(15000, 15099)},
}


@pytest.mark.parametrize(("mode", "part"), PORTS)
def test_prefill_and_decode_alone_reach_a_pool_and_both_ends_admit_it(world: World, mode: str, part: str) -> None:
    world.role("encode")
    pooled(world, mode)
    actual = planned(world)
    pool = actual["NetworkPolicy", f"demo-{part}"]["spec"]
    assert set(pool["policyTypes"]) == {"Ingress", "Egress"}
    assert all(rule.get("from") for rule in pool["ingress"]), "a rule without peers admits everybody"
    for role, wanted in (("prefill", PORTS[mode, part]), ("decode", PORTS[mode, part]), ("encode", set())):
        assert ports(pool["ingress"], role) == wanted
        assert ports(actual["NetworkPolicy", f"demo-{role}"]["spec"]["egress"], part) == wanted
    assert ports(pool["ingress"], "router") == set()
    assert not [rule for rule in pool["egress"] if admits(rule, "prefill") or admits(rule, "router")]


def test_stores_reach_their_master_and_scrapers_the_metrics(world: World) -> None:
    pooled(world, "Mooncake")
    actual = planned(world)
    assert ports(actual["NetworkPolicy", "demo-swa-pool"]["spec"]["ingress"], "swa-pool-store") == {(50051, 50051)}
    egress = actual["NetworkPolicy", "demo-swa-pool-store"]["spec"]["egress"]
    assert ports(egress, "swa-pool")
    assert {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]} == {53}
    for name, numbers in (("demo-swa-pool", {8088, 9003}), ("demo-swa-pool-store", {8088})):
        (scraped,) = (
            rule
            for rule in actual["NetworkPolicy", name]["spec"]["ingress"]
            if any("namespaceSelector" in peer for peer in rule["from"])
        )
        assert {port["port"] for port in scraped["ports"]} == numbers


@pytest.mark.parametrize("how", ["off", "a role on its nodes' network"])
def test_no_policy_names_what_it_cannot(world: World, how: str) -> None:
    pooled(world, "Mooncake")
    if how == "off":
        world.edit(networkPolicy={"enabled": False})
    else:
        world.role("prefill", hostNetwork=True)
    assert not [name for kind, name in pool_of(world) if kind == "NetworkPolicy"]


def test_a_pool_s_pods_have_their_own_resource_s_labels_and_no_role(world: World) -> None:
    # The registrar and the headless Service look for the role's label: a pool's pod must never be taken for an engine.
    pooled(world, "Mooncake")
    for name in ("demo-swa-pool", "demo-swa-pool-store"):
        labels = planned(world)["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        assert names.LABEL_ROLE not in labels
        assert names.LABEL_COMPAT_KEY not in labels
        assert labels[names.LABEL_REVISION]


def test_the_longest_name_still_fits(make_world: type[World], make_resource: MakeResource) -> None:
    cr = make_resource(roles={"prefill": {"encoderReplay": True}, "decode": {}}, swaPool={"mode": "Mooncake"})
    cr["metadata"]["name"] = "a" * names.MAX_NAME
    assert max(len(obj["metadata"]["name"]) for obj in make_world(cr).plan().objects) <= 63
