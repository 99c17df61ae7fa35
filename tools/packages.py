"""Every program, shared library and file of the machine that set-up, demo and tests use, and who brings it.

One table: `tools.program` runs nothing that is not in it, `tools.setup` installs what of it is missing, and a test
holds every call of the repository against it. Set-up reads it before there is a Python environment to import from.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The system's folders, which a user's PATH may lack."""
CNI_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
CERTIFICATE_BUNDLES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/pki/tls/certs/ca-bundle.crt"),
    Path("/etc/ssl/cert.pem"),
)
"""Where Debian, Red Hat and Alpine keep the certificates they trust."""
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Kind(Enum):
    """What a requirement is, which says how to look for it."""

    PROGRAM = "program"
    LIBRARY = "shared library"
    FILES = "files"
    MODULE = "Python module"


class Job(Enum):
    """What a requirement is needed for."""

    ENVIRONMENT = "the Python environment"
    TESTS = "the tests that need no cluster"
    CLUSTER = "the local cluster"
    IMAGES = "building the images"
    BASE = "making the base image"


@dataclass(frozen=True)
class Requirement:
    """One thing that the machine must have.

    Attributes:
        name: Name of the program, of the library (as the loader knows it) or of the module; of files, what they are.
        package: The Debian package that brings it.
        purpose: What it is used for.
        jobs: What cannot be done without it.
        kind: What it is.
        choices: Of files only: groups of paths, of which one must be there whole.
    """

    name: str
    package: str
    purpose: str
    jobs: frozenset[Job]
    kind: Kind = Kind.PROGRAM
    choices: tuple[tuple[Path, ...], ...] = ()

    def present(self) -> bool:
        """Say whether this machine has it."""
        match self.kind:
            case Kind.PROGRAM:
                return which(self.name) is not None
            case Kind.LIBRARY:
                return loads(self.name)
            case Kind.FILES:
                return any(all(path.exists() for path in paths) for paths in self.choices)
            case Kind.MODULE:
                importlib.invalidate_caches()  # the package may have been installed since this process looked
                return importlib.util.find_spec(self.name) is not None


def _program(name: str, package: str, purpose: str, *jobs: Job) -> Requirement:
    return Requirement(name, package, purpose, frozenset(jobs))


def _library(name: str, package: str) -> Requirement:
    return Requirement(name, package, "Mooncake's programs load it", frozenset({Job.TESTS}), Kind.LIBRARY)


REQUIREMENTS = (
    Requirement("ensurepip", "python3-venv", "gives an environment its pip", frozenset({Job.ENVIRONMENT}), Kind.MODULE),
    Requirement(
        "certificates of public authorities",
        "ca-certificates",
        "the Go module proxy and package indexes are reached by TLS",
        frozenset({Job.ENVIRONMENT, Job.CLUSTER, Job.IMAGES}),
        Kind.FILES,
        tuple((bundle,) for bundle in CERTIFICATE_BUNDLES),
    ),
    _program("awk", "mawk", "prints the Makefile's help", Job.ENVIRONMENT),
    _program("find", "findutils", "finds what `make clean` removes", Job.ENVIRONMENT),
    _program("rm", "coreutils", "removes it", Job.ENVIRONMENT),
    _program("touch", "coreutils", "notes that the environment is made", Job.ENVIRONMENT),
    _program("dirname", "coreutils", "finds the checkout in CI's script", Job.TESTS),
    _program("apt-config", "apt", "says how this machine reaches its mirror", Job.TESTS),
    _library("libcurl.so.4", "libcurl4"),
    _library("libibverbs.so.1", "libibverbs1"),
    _library("libnuma.so.1", "libnuma1"),
    _program("sh", "dash", "runs small scripts", Job.TESTS, Job.CLUSTER),
    _program("git", "git", "says which files are a release's", Job.TESTS),
    _program("sha256sum", "coreutils", "checks a release's sums, to test them", Job.TESTS),
    _program("cat", "coreutils", "stands in for programs in tests", Job.TESTS),
    _program("sleep", "coreutils", "stands in for programs in tests", Job.TESTS),
    _program("true", "coreutils", "stands in for programs in tests", Job.TESTS),
    _program("false", "coreutils", "stands in for programs in tests", Job.TESTS),
    _program("tail", "coreutils", "follows a component's log", Job.TESTS, Job.CLUSTER),
    _program("chroot", "coreutils", "runs set-up in a bare system, to test it", Job.TESTS),
    _program("dpkg", "dpkg", "says which package brings a program, to test this table", Job.TESTS),
    _program("unshare", "util-linux", "gives a process mounts of its own", Job.TESTS),
    _program("openssl", "openssl", "makes the cluster's certificates", Job.TESTS, Job.CLUSTER),
    _program("mount", "mount", "the kubelet mounts volumes; tests fill small disks", Job.TESTS, Job.CLUSTER),
    _program("umount", "mount", "unmounts what the pods' containers leave", Job.TESTS, Job.CLUSTER),
    _program("nsenter", "util-linux", "starts components in the cluster's network", Job.CLUSTER),
    _program("modprobe", "kmod", "loads the bridge's packet filter", Job.CLUSTER),
    _program("ip", "iproute2", "makes the cluster's network", Job.CLUSTER),
    _program("iptables", "iptables", "kube-proxy's rules for Services", Job.CLUSTER),
    _program("iptables-save", "iptables", "kube-proxy reads its rules", Job.CLUSTER),
    _program("iptables-restore", "iptables", "kube-proxy writes its rules", Job.CLUSTER),
    _program("containerd", "containerd", "runs the pods' containers", Job.CLUSTER),
    _program("ctr", "containerd", "imports the image of the pods' sandbox", Job.CLUSTER),
    _program("runc", "runc", "starts a container", Job.CLUSTER),
    _program("busybox", "busybox-static", "is the pods' sandbox", Job.CLUSTER),
    _program("docker-registry", "docker-registry", "keeps the cluster's images", Job.CLUSTER),
    _program("buildah", "buildah", "builds images and pushes them", Job.CLUSTER, Job.IMAGES),
    _program("tar", "tar", "reads image archives, packs the base image", Job.CLUSTER, Job.BASE),
    _program("debootstrap", "debootstrap", "makes a minimal Debian", Job.TESTS, Job.BASE),
    Requirement(
        "network plugins",
        "containernetworking-plugins",
        "give a pod its address",
        frozenset({Job.CLUSTER}),
        Kind.FILES,
        tuple(tuple(folder / plugin for plugin in CNI_PLUGINS) for folder in CNI_FOLDERS),
    ),
    Requirement(
        "keys of Debian's archive",
        "debian-archive-keyring",
        "debootstrap checks what it downloads by them",
        frozenset({Job.TESTS, Job.BASE}),
        Kind.FILES,
        ((DEBIAN_KEYRING,),),
    ),
)
"""What set-up installs where it is missing."""

PREREQUISITES = {
    "python3": "Python 3.11 or newer runs set-up itself",
    "go": "Go 1.26 or newer (go.dev/dl; distributions have older ones) builds Kubernetes once; the cache holds it then",
    "make": "names the commands",
    "bash": "is the Makefile's and CI's shell",
    "apt-get": "installs what is missing; without it, everything must be there",
}
"""What set-up cannot install: whoever calls it has it. Only Go is not part of every Debian that runs `make`."""

GO_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "coredns",
    "kwok",
    "helm",
    "kubeconform",
    "kube-score",
)
"""What `tools.cluster.binaries` builds."""

PYTHON_PROGRAMS = (
    "python",
    "uv",
    "pytest",
    "ruff",
    "mypy",
    "lint-imports",
    "smg",
    "epd",
    "epd-reference",
    "epd-registrar",
    "epd-swapool",
)
"""What the lock files put into the Python environment."""


LIBRARIES = tuple(requirement for requirement in REQUIREMENTS if requirement.kind is Kind.LIBRARY)
"""What Mooncake loads, here and in the images."""


def names() -> frozenset[str]:
    """Return the name of every program that may be run."""
    debian = (requirement.name for requirement in REQUIREMENTS if requirement.kind is Kind.PROGRAM)
    return frozenset(debian) | PREREQUISITES.keys() | frozenset(GO_PROGRAMS) | frozenset(PYTHON_PROGRAMS)


def of(*jobs: Job) -> tuple[Requirement, ...]:
    """Return what any of some jobs needs, in the table's order."""
    return tuple(requirement for requirement in REQUIREMENTS if requirement.jobs.intersection(jobs))


def missing(*jobs: Job) -> tuple[Requirement, ...]:
    """Return what any of some jobs needs and this machine lacks."""
    return tuple(requirement for requirement in of(*jobs) if not requirement.present())


def packages(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """Return the Debian packages that bring some requirements, each once, sorted."""
    return tuple(sorted({requirement.package for requirement in requirements}))


def cni_folder() -> Path | None:
    """Return the first folder that holds every network plugin we use; None without one."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def which(name: str) -> str | None:
    """Find a program on PATH or in the system's folders; None where it is not."""
    return shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)


def loads(library: str) -> bool:
    """Say whether the dynamic loader finds a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def root() -> bool:
    """Say whether this process may install packages and make containers."""
    return os.geteuid() == 0
