"""The cluster's processes: how each is started, what it needs first, and how one sees that it serves."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tools import packages, program
from tools.cluster import binaries, certificates, configuration, kubeconfig, machine, network, process
from tools.cluster.layout import (
    API_URL,
    AUDIT_LOG,
    CLUSTER_DOMAIN,
    CONTAINERD_SOCKET,
    FAKE_POD_NETWORK,
    LOGS,
    NODE,
    NODE_ADDRESS,
    REGISTRY,
    SERVICE_NETWORK,
    STATE,
    cache_folder,
)
from tools.program import Unfit


@dataclass(frozen=True)
class Component:
    """One process of the cluster.

    Attributes:
        name: Name of the process, its log and its pid file.
        argv: Program and arguments, without the words that enter the network namespace.
        health: URL that answers 200 when it serves, or the path of a socket that accepts.
        needs: Components that must serve before this one is started.
        files: Configuration files and their texts; a change restarts the process.
        grace_seconds: Time between SIGTERM and SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    health: str
    needs: tuple[str, ...] = ()
    files: dict[Path, str] = field(default_factory=dict)
    grace_seconds: float = 5.0

    @property
    def pid_file(self) -> Path:
        """Where its record lies."""
        return STATE / "pids" / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return LOGS / f"{self.name}.log"

    def fingerprint(self, surroundings: str) -> str:
        """Hash everything the process depends on: arguments, files, and what all components share."""
        parts = [surroundings, *self.argv, *(f"{path}\0{text}" for path, text in sorted(self.files.items()))]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def running(self) -> bool:
        """Say whether its process runs."""
        return process.alive(process.read(self.pid_file))


def components() -> tuple[Component, ...]:
    """Return every component in the order of their needs."""
    return (
        etcd(),
        containerd(),
        registry(),
        api_server(),
        controller_manager(),
        scheduler(),
        kubelet(),
        proxy(),
        dns(),
        kwok(),
    )


def start(component: Component, surroundings: str) -> bool:
    """Start a component unless it runs already with the same configuration in the same surroundings.

    Returns:
        Whether a process was started.
    """
    wanted = component.fingerprint(surroundings)
    record = process.read(component.pid_file)
    if record is not None and process.alive(record) and record.fingerprint == wanted:
        return False
    process.stop(component.pid_file, grace_seconds=component.grace_seconds)
    configuration.write(component.files)
    program.check(component.argv[0])
    process.start(
        component.pid_file,
        [*network.enter(), *component.argv],
        log=component.log,
        fingerprint=wanted,
        env=environment(),
    )
    return True


def environment() -> dict[str, str]:
    """Return the components' environment: a PATH with the system's folders, and nothing that would steer them.

    Proxy settings in particular must not reach them: all their traffic is between addresses of this machine.
    """
    return {
        "PATH": f"{os.defpath}:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin",
        "HOME": str(STATE),
        "LANG": "C.UTF-8",
    }


def etcd() -> Component:
    """Return the store. Loopback of the namespace only, so it needs no certificates: nobody else can reach it."""
    return Component(
        "etcd",
        (
            str(binaries.path("etcd")),
            f"--name={NODE}",
            f"--data-dir={STATE}/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            f"--initial-cluster={NODE}=http://127.0.0.1:2380",
            f"--listen-metrics-urls=http://{NODE_ADDRESS}:2381",
            "--unsafe-no-fsync",
            "--auto-compaction-retention=10m",
            "--quota-backend-bytes=2147483648",
            "--log-level=warn",
        ),
        f"http://{NODE_ADDRESS}:2381/health",
    )


def containerd() -> Component:
    """Return the container runtime, with folders and socket of its own."""
    plugins = packages.cni_folder()
    if plugins is None:
        raise Unfit("The CNI plugins are not installed (Debian: containernetworking-plugins).")
    return Component(
        "containerd",
        (program.path("containerd"), f"--config={configuration.CONTAINERD}", "--log-level=warn"),
        str(CONTAINERD_SOCKET),
        files={
            configuration.CONTAINERD: configuration.containerd(
                snapshotter=machine.snapshotter(
                    STATE, Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
                ),
                systemd_cgroup=machine.cgroup_driver() == "systemd",
                cni_binaries=plugins,
            ),
            configuration.CNI: configuration.cni(),
            configuration.REGISTRIES / REGISTRY / "hosts.toml": configuration.registry_hosts(),
        },
    )


def registry() -> Component:
    """Return the image registry, so that only changed layers move."""
    (cache_folder() / "registry").mkdir(parents=True, exist_ok=True)
    return Component(
        "registry",
        (program.path("docker-registry"), "serve", str(configuration.REGISTRY_FILE)),
        f"http://{REGISTRY}/v2/",
        files={configuration.REGISTRY_FILE: configuration.registry()},
    )


def api_server() -> Component:
    """Return the API server: RBAC, pod security admission and a full audit log."""
    cert, key = certificates.certificate, certificates.key
    return Component(
        "kube-apiserver",
        (
            str(binaries.path("kube-apiserver")),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={NODE_ADDRESS}",
            f"--advertise-address={NODE_ADDRESS}",
            "--secure-port=6443",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--tls-cert-file={cert('server')}",
            f"--tls-private-key-file={key('server')}",
            f"--client-ca-file={cert('ca')}",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"--service-account-key-file={cert(certificates.SIGNING_KEY)}",
            f"--service-account-signing-key-file={key(certificates.SIGNING_KEY)}",
            f"--kubelet-certificate-authority={cert('ca')}",
            f"--kubelet-client-certificate={cert('kubelet-client')}",
            f"--kubelet-client-key={key('kubelet-client')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={cert('front-proxy-ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={cert('front-proxy')}",
            f"--proxy-client-key-file={key('front-proxy')}",
            "--enable-aggregator-routing=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,PodSecurity",
            "--allow-privileged=true",
            f"--audit-policy-file={configuration.AUDIT_POLICY}",
            f"--audit-log-path={AUDIT_LOG}",
            "--audit-log-maxsize=200",
            "--audit-log-maxbackup=3",
            "--shutdown-delay-duration=0s",
        ),
        f"{API_URL}/readyz",
        needs=("etcd",),
        files={configuration.AUDIT_POLICY: configuration.audit_policy()},
        grace_seconds=15.0,
    )


def _secure_port(port: int) -> tuple[str, ...]:
    return (
        f"--bind-address={NODE_ADDRESS}",
        f"--secure-port={port}",
        f"--tls-cert-file={certificates.certificate('server')}",
        f"--tls-private-key-file={certificates.key('server')}",
    )


def controller_manager() -> Component:
    """Return the controllers: deployments, garbage collection, endpoints, tokens."""
    config = kubeconfig.path("controller-manager")
    return Component(
        "kube-controller-manager",
        (
            str(binaries.path("kube-controller-manager")),
            *_secure_port(10257),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--root-ca-file={certificates.certificate('ca')}",
            f"--service-account-private-key-file={certificates.key(certificates.SIGNING_KEY)}",
            f"--cluster-signing-cert-file={certificates.certificate('ca')}",
            f"--cluster-signing-key-file={certificates.key('ca')}",
            "--use-service-account-credentials=true",
            f"--flex-volume-plugin-dir={configuration.VOLUME_PLUGINS}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ),
        f"https://{NODE_ADDRESS}:10257/healthz",
        needs=("kube-apiserver",),
    )


def scheduler() -> Component:
    """Return the scheduler."""
    config = kubeconfig.path("scheduler")
    return Component(
        "kube-scheduler",
        (
            str(binaries.path("kube-scheduler")),
            *_secure_port(10259),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ),
        f"https://{NODE_ADDRESS}:10259/healthz",
        needs=("kube-apiserver",),
    )


def kubelet() -> Component:
    """Return the node's agent."""
    return Component(
        "kubelet",
        (
            str(binaries.path("kubelet")),
            f"--config={configuration.KUBELET}",
            f"--kubeconfig={kubeconfig.path('kubelet')}",
            f"--root-dir={STATE}/kubelet",
            f"--cert-dir={STATE}/kubelet/pki",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_ADDRESS}",
        ),
        f"http://{NODE_ADDRESS}:10248/healthz",
        needs=("containerd", "kube-apiserver"),
        files={configuration.KUBELET: configuration.kubelet()},
    )


def proxy() -> Component:
    """Return kube-proxy, which turns Services into rules of the cluster's network namespace."""
    return Component(
        "kube-proxy",
        (str(binaries.path("kube-proxy")), f"--config={configuration.PROXY}"),
        f"http://{NODE_ADDRESS}:10256/livez",
        needs=("kube-apiserver",),
        files={configuration.PROXY: configuration.proxy()},
    )


def dns() -> Component:
    """Return CoreDNS."""
    return Component(
        "coredns",
        (str(binaries.path("coredns")), "-conf", str(configuration.DNS)),
        f"http://{NODE_ADDRESS}:8054/ready",
        needs=("kube-apiserver",),
        files={configuration.DNS: configuration.dns()},
    )


def kwok() -> Component:
    """Return the controller of fake nodes; without annotated nodes it does nothing."""
    return Component(
        "kwok",
        (
            str(binaries.path("kwok")),
            f"--kubeconfig={kubeconfig.path('kwok')}",
            f"--config={configuration.STAGES}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--cidr={FAKE_POD_NETWORK}",
            f"--node-ip={NODE_ADDRESS}",
            "--node-lease-duration-seconds=40",
            f"--server-address={NODE_ADDRESS}:10247",
        ),
        f"http://{NODE_ADDRESS}:10247/healthz",
        needs=("kube-apiserver",),
        files={configuration.STAGES: configuration.stages()},
    )
