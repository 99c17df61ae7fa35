"""Texts of the components' configuration files. JSON where YAML is expected: it is YAML, and quotes itself."""

from __future__ import annotations

import json
from pathlib import Path

from tools.cluster import certificates, kubeconfig, machine
from tools.cluster.layout import (
    BRIDGE,
    CLUSTER_DOMAIN,
    CONFIG,
    CONTAINERD_SOCKET,
    LOGS,
    NAMESPACE,
    NODE,
    NODE_ADDRESS,
    PAUSE_IMAGE,
    POD_NETWORK,
    POD_RANGE,
    REGISTRY,
    RUN,
    STATE,
    cache_folder,
)

AUDIT_POLICY = CONFIG / "audit-policy.yaml"
CONTAINERD = CONFIG / "containerd.toml"
CNI_FOLDER = CONFIG / "cni"
CNI = CNI_FOLDER / "10-epd.conflist"
REGISTRIES = CONFIG / "registries"
KUBELET = CONFIG / "kubelet.yaml"
PROXY = CONFIG / "proxy.yaml"
DNS = CONFIG / "Corefile"
STAGES = CONFIG / "stages.yaml"
REGISTRY_FILE = CONFIG / "registry.yaml"
POD_LOGS = STATE / "pods"
VOLUME_PLUGINS = STATE / "volume-plugins"

SYSTEM_USERS = (
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:kube-proxy",
    "epd:kwok",
    "epd:dns",
)


def audit_policy() -> str:
    """Record who did what to which object, reads included; bodies never.

    Only the components' own heartbeats and health checks are left out: they would be nine lines of ten.
    """
    return _json(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {
                    "level": "None",
                    "userGroups": ["system:nodes"],
                    "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
                },
                {
                    "level": "None",
                    "users": [*SYSTEM_USERS],
                    "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
                },
                {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version"]},
                {"level": "Metadata"},
            ],
        }
    )


def containerd(*, snapshotter: str, systemd_cgroup: bool, cni_binaries: Path) -> str:
    """Return containerd's configuration (schema 2, which 1.6 to 2.x read)."""
    cri = '[plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{STATE}/containerd"
state = "{RUN}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
address = "{CONTAINERD_SOCKET}"

{cri}]
sandbox_image = "{PAUSE_IMAGE}"
# Root without CAP_SYS_RESOURCE may not lower oom_score_adj; without this every sandbox fails there.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

{cri}.containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"

{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

{cri}.containerd.runtimes.runc.options]
SystemdCgroup = {str(systemd_cgroup).lower()}
Root = "{RUN}/runc"

{cri}.cni]
bin_dir = "{cni_binaries}"
conf_dir = "{CNI_FOLDER}"

{cri}.registry]
config_path = "{REGISTRIES}"
"""


def cni() -> str:
    """Return the pods' network: one bridge, addresses from one range, no way out of the machine."""
    return _json(
        {
            "cniVersion": "0.4.0",
            "name": NAMESPACE,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isDefaultGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(RUN / "addresses"),
                        "ranges": [
                            [
                                {
                                    "subnet": POD_NETWORK,
                                    "gateway": NODE_ADDRESS,
                                    "rangeStart": POD_RANGE[0],
                                    "rangeEnd": POD_RANGE[1],
                                }
                            ]
                        ],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )


def registry_hosts() -> str:
    """Return containerd's `hosts.toml` for the local registry: plain http."""
    return f'server = "http://{REGISTRY}"\n\n[host."http://{REGISTRY}"]\ncapabilities = ["pull", "resolve"]\n'


def registry() -> str:
    """Return the registry's configuration; its layers lie in the cache so that they outlive the cluster."""
    return _json(
        {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "cache": {"blobdescriptor": "inmemory"},
                "filesystem": {"rootdirectory": str(cache_folder() / "registry")},
                "delete": {"enabled": True},
            },
            "http": {"addr": REGISTRY, "headers": {"X-Content-Type-Options": ["nosniff"]}},
        }
    )


def kubelet() -> str:
    """Return the kubelet's configuration."""
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS,
            "healthzBindAddress": NODE_ADDRESS,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(certificates.certificate("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificates.certificate("server")),
            "tlsPrivateKeyFile": str(certificates.key("server")),
            "clusterDNS": [NODE_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": "",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": machine.cgroup_driver(),
            "cgroupRoot": f"/{NAMESPACE}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            # A laptop's disk is often nearly full, and evicting the pods under test explains nothing.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "maxPods": 200,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "podLogsDir": str(POD_LOGS),
            "volumePluginDir": str(VOLUME_PLUGINS),
            "containerLogMaxSize": "20Mi",
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "10s",
        }
    )


def proxy() -> str:
    """Return kube-proxy's configuration."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "bindAddress": NODE_ADDRESS,
            "healthzBindAddress": f"{NODE_ADDRESS}:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "clientConnection": {"kubeconfig": str(kubeconfig.path("proxy"))},
            "clusterCIDR": POD_NETWORK,
            "hostnameOverride": NODE,
            # The conntrack limits belong to the machine, not to this namespace.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        }
    )


def dns() -> str:
    """Return CoreDNS's configuration: the cluster's names, and a plain "no such name" for everything else."""
    return f"""{CLUSTER_DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {NODE_ADDRESS}
    errors
    health {NODE_ADDRESS}:8053
    ready {NODE_ADDRESS}:8054
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig.path("dns")}
        pods insecure
        ttl 5
    }}
    cache 5
    loadbalance
}}
.:53 {{
    bind {NODE_ADDRESS}
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def stages() -> str:
    """Return how kwok's nodes and pods behave."""
    return Path(__file__).with_name("stages.yaml").read_text(encoding="utf-8")


def write(files: dict[Path, str]) -> None:
    """Write configuration files, replacing only what changed."""
    for file, text in files.items():
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(file.name + ".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
    LOGS.mkdir(parents=True, exist_ok=True)


def _json(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2) + "\n"
