"""How the components are started: arguments and configuration, without starting one."""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import packages, program
from tools.cluster import binaries, components, configuration, machine
from tools.cluster.layout import POD_NETWORK, POD_RANGE, STATE, cache_folder

if TYPE_CHECKING:
    from tools.cluster.components import Component

ALLOWED = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "10.244.0.0/16", "10.96.0.0/12")]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Component]:
    """Every component, on a machine where each program exists."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(binaries, "path", lambda name: Path("/built") / name)
    monkeypatch.setattr(program, "path", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(packages, "cni_folder", lambda: Path("/usr/lib/cni"))
    monkeypatch.setattr(machine, "cgroup_driver", lambda: "cgroupfs")
    return {component.name: component for component in components.components()}


def document(component: Component, name: str) -> dict[str, object]:
    text = next(text for path, text in component.files.items() if path.name == name)
    parsed: dict[str, object] = json.loads(text)
    return parsed


def test_every_address_is_one_of_this_machine(everything: dict[str, Component]) -> None:
    for component in everything.values():
        for text in (*component.argv, component.health, *component.files.values()):
            for address in re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text):
                assert any(ipaddress.ip_address(address) in network for network in ALLOWED), (component.name, address)


def test_no_url_names_a_host_outside(everything: dict[str, Component]) -> None:
    for component in everything.values():
        for text in (*component.argv, *component.files.values()):
            for host in re.findall(r"https?://([a-z][\w.-]+)", text):
                assert host == "kubernetes.default.svc.cluster.local", component.name


def test_needs_are_known_and_come_earlier(everything: dict[str, Component]) -> None:
    seen: set[str] = set()
    for component in everything.values():
        assert seen.issuperset(component.needs), component.name
        seen.add(component.name)


def test_no_component_writes_outside_state_and_cache(everything: dict[str, Component]) -> None:
    inside = (STATE, cache_folder())
    for component in everything.values():
        for file in (*component.files, component.pid_file, component.log):
            assert any(file.is_relative_to(folder) for folder in inside), file
        for argument in component.argv[1:]:
            path = argument.partition("=")[2] or argument
            if path.startswith("/") and not path.startswith(("/built", "/usr")):
                assert any(Path(path).is_relative_to(folder) for folder in inside), argument


def test_ports_do_not_collide(everything: dict[str, Component]) -> None:
    health = [component.health for component in everything.values()]
    assert len({re.sub(r"^(\w+://[^/]+).*", r"\1", target) for target in health}) == len(health)


def test_containerd_is_not_the_systems(everything: dict[str, Component]) -> None:
    text = everything["containerd"].files[configuration.CONTAINERD]
    config = tomllib.loads(text)
    assert config["root"].startswith(str(STATE))
    assert config["state"].startswith(str(STATE))
    assert config["grpc"]["address"].startswith(str(STATE))
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False
    assert tomllib.loads(everything["containerd"].files[configuration.REGISTRIES / "10.244.0.1:5000" / "hosts.toml"])


def test_driver_of_kubelet_and_containerd_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in ("systemd", "cgroupfs"):
        monkeypatch.setattr(machine, "cgroup_driver", lambda driver=driver: driver)
        text = configuration.containerd(
            snapshotter="native", systemd_cgroup=machine.cgroup_driver() == "systemd", cni_binaries=Path("/x")
        )
        options = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["runc"]
        assert options["options"]["SystemdCgroup"] is (driver == "systemd")
        assert json.loads(configuration.kubelet())["cgroupDriver"] == driver


def test_the_kubelet_refuses_strangers_and_hands_no_host_dns_to_pods(everything: dict[str, Component]) -> None:
    config = document(everything["kubelet"], "kubelet.yaml")
    assert config["authentication"]["anonymous"] == {"enabled": False}  # type: ignore[index]
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["resolvConf"] == ""
    assert config["failCgroupV1"] is False


def test_pod_addresses_lie_in_the_pod_network_and_miss_ours(everything: dict[str, Component]) -> None:
    first, last = map(ipaddress.ip_address, POD_RANGE)
    assert first in ipaddress.ip_network(POD_NETWORK)
    assert last in ipaddress.ip_network(POD_NETWORK)
    for ours in ("10.244.0.1", "10.244.0.254"):
        assert not int(first) <= int(ipaddress.ip_address(ours)) <= int(last)


def test_the_audit_log_holds_reads_and_writes_but_no_bodies(everything: dict[str, Component]) -> None:
    policy = document(everything["kube-apiserver"], "audit-policy.yaml")
    rules = policy["rules"]
    assert isinstance(rules, list)
    assert rules[-1] == {"level": "Metadata"}
    assert {rule["level"] for rule in rules} == {"None", "Metadata"}
    for rule in rules[:-1]:
        assert rule.get("nonResourceURLs") or rule.get("users") or rule.get("userGroups"), "drops everybody's records"


def test_the_audit_log_is_bounded(everything: dict[str, Component]) -> None:
    flags = dict(flag.lstrip("-").split("=", 1) for flag in everything["kube-apiserver"].argv[1:])
    assert int(flags["audit-log-maxsize"]) * (int(flags["audit-log-maxbackup"]) + 1) <= 1000
    assert flags["authorization-mode"] == "Node,RBAC"
    assert "PodSecurity" in flags["enable-admission-plugins"]


def test_kwok_manages_annotated_nodes_only(everything: dict[str, Component]) -> None:
    argv = everything["kwok"].argv
    assert "--manage-all-nodes=false" in argv
    assert "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in argv


def test_dns_says_no_such_name_for_the_world() -> None:
    cluster, world = configuration.dns().split("\n.:53 {")
    assert "kubernetes cluster.local" in cluster
    assert "forward" not in configuration.dns()
    assert "rcode NXDOMAIN" in world


def test_a_change_of_arguments_files_or_namespace_changes_the_fingerprint(everything: dict[str, Component]) -> None:
    kubelet = everything["kubelet"]
    before = kubelet.fingerprint("1")
    assert kubelet.fingerprint("1") == before
    assert kubelet.fingerprint("2") != before
    assert replace(kubelet, argv=(*kubelet.argv, "--v=2")).fingerprint("1") != before
    assert replace(kubelet, files={path: text + " " for path, text in kubelet.files.items()}).fingerprint("1") != before


def test_components_get_no_proxy_from_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://10.0.0.1:3128")
    assert not [name for name in components.environment() if "proxy" in name.lower()]


def test_files_are_replaced_only_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "LOGS", tmp_path / "logs")
    file = tmp_path / "a" / "b"
    configuration.write({file: "one"})
    before = file.stat().st_ino
    configuration.write({file: "one"})
    assert file.stat().st_ino == before
    configuration.write({file: "two"})
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]
