"""Programs built from Go modules, cached outside the checkout under a hash of everything that goes into them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools import program, progress, tally
from tools.cluster import machine
from tools.cluster.layout import GO_MODULES, cache_folder
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KUBERNETES_VERSION = "v1.36.3"
HELM_VERSION = "v4.2.4"
_STRIP = "-s -w"
LINKED_ANEW = "not installed but available in build cache"
"""Why `go list` calls a program stale of which everything is compiled."""


@dataclass(frozen=True)
class Module:
    """One Go module whose `tool` directives are built together.

    Attributes:
        name: Folder under ``tools/cluster/go``.
        flags: Arguments of ``go build`` before the package.
        programs: Name of each program -> name that the Go tool chain gives its file.
        runs: Whether the cluster needs it to run; otherwise it is built when a test asks for one of its programs.
    """

    name: str
    flags: tuple[str, ...]
    programs: dict[str, str]
    runs: bool = True

    @property
    def source(self) -> Path:
        """Folder of go.mod and go.sum."""
        return GO_MODULES / self.name


def _flags(*defines: str) -> tuple[str, ...]:
    linker = " ".join([_STRIP, *(f"-X {define}" for define in defines)])
    return ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", linker)


MODULES = (
    Module(
        "kubernetes",
        # Without these the API server reports v0.0.0-master, and clients that compare versions refuse it.
        _flags(
            f"k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
            "k8s.io/component-base/version.gitMajor=1",
            "k8s.io/component-base/version.gitMinor=36",
        ),
        {
            "etcd": "server",
            "kube-apiserver": "kube-apiserver",
            "kube-controller-manager": "kube-controller-manager",
            "kube-scheduler": "kube-scheduler",
            "kubelet": "kubelet",
            "kube-proxy": "kube-proxy",
            "kubectl": "kubectl",
        },
    ),
    Module(
        "addons",
        _flags(f"helm.sh/helm/v4/internal/version.version={HELM_VERSION}"),
        {"coredns": "coredns", "kwok": "kwok", "helm": "helm", "kubeconform": "kubeconform"},
    ),
    Module("checks", _flags(), {"kube-score": "kube-score"}, runs=False),
)


def key(module: Module) -> str:
    """Return the 16 hex digits that name a module's build.

    The hash covers go.mod, go.sum and the build flags, each with its length, so that no two inputs run together.
    """
    digest = hashlib.sha256()
    parts = [(module.source / name).read_bytes() for name in ("go.mod", "go.sum")]
    for part in [*parts, *(flag.encode() for flag in module.flags)]:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def folder(module: Module) -> Path:
    """Return where a module's programs lie once built."""
    return cache_folder() / "bin" / f"{module.name}-{key(module)}"


def uncached(*, everything: bool = False) -> list[Module]:
    """List the modules that must still be built for the cluster to run, or for every test to run as well."""
    return [module for module in MODULES if (everything or module.runs) and not folder(module).is_dir()]


def module_of(program: str) -> Module:
    """Return the module that builds a program.

    Raises:
        KeyError: No module builds it; the message lists the names there are.
    """
    for module in MODULES:
        if program in module.programs:
            return module
    known = sorted(name for module in MODULES for name in module.programs)
    raise KeyError(f"no module builds {program!r}; there are: {', '.join(known)}")


def path(name: str) -> Path:
    """Return the path of a program, building its module first when the cache does not hold it.

    Raises:
        KeyError: Unknown name.
        Unfit: Go is missing or the build failed.
    """
    module = module_of(name)
    return ensure(module) / name


def ensure(module: Module) -> Path:
    """Return the folder of a module's programs, building them when they are not cached.

    A build goes to a temporary folder that is renamed when complete, so half a build is never taken for one; a lock
    keeps two commands from building the same thing at once.

    Raises:
        Unfit: Go is missing or too old, or the build failed (the message ends with the compiler's last lines).
    """
    target = folder(module)
    if target.is_dir():
        return target
    machine.require_go()
    with _lock(target):
        if target.is_dir():
            return target
        with progress.step(f"building {module.name} ({', '.join(module.programs)})") as step:
            _build(module, target, step)
    return target


def _build(module: Module, target: Path, step: progress.Step) -> None:
    scratch = tempfile.mkdtemp(prefix=f".{module.name}-", dir=target.parent)
    try:
        output = target.parent / scratch
        output.chmod(0o755)
        stale = _stale(module, step)
        _go(module, ["build", "-v", *module.flags, "-o", f"{output}/", "tool"], step, tally.GoBuild(stale))
        for name, file in module.programs.items():
            if name != file:
                (output / file).rename(output / name)
        output.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _stale(module: Module, step: progress.Step) -> int:
    """Download the modules, and count the packages that the compiler's cache does not hold for this build."""
    listing = ["list", "-deps", "-f", "{{.ImportPath}}:{{.Stale}}:{{.StaleReason}}", *module.flags, "tool"]
    printed = _go(module, listing, step, tally.GoModules())
    return sum(":true:" in line and not line.endswith(LINKED_ANEW) for line in printed)


def _go(module: Module, arguments: list[str], step: progress.Step, counted: tally.Tally) -> list[str]:
    # Else only root could remove the module cache again.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-modcacherw"}
    printed: list[str] = []

    def read(line: str) -> None:
        printed.append(line)
        if far := counted.read(line):
            step.far(far)

    done = program.watch(["go", *arguments], read, cwd=module.source, env=environment)
    if done.status:
        tail = "\n".join(done.tail[-15:])
        raise Unfit(
            f"go {arguments[0]} of {module.source} failed with status {done.status}:\n{tail}\n"
            "Way out: the Go module proxy must be reachable once (GOPROXY); nothing else is downloaded later."
        )
    return printed


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
