"""What tests and other tools ask: which cluster, with which kubectl, and where the tools are."""

from __future__ import annotations

import os
from pathlib import Path

from tools import packages
from tools.cluster import binaries, lifecycle
from tools.cluster.layout import AUDIT_LOG, CONTEXT, HOST_ADDRESS, KUBECONFIG
from tools.program import Unfit


def given() -> Path | None:
    """Return the KUBECONFIG that the caller brought; None when it is unset or names our own file.

    Raises:
        Unfit: It names several files, or one that does not exist.
    """
    value = os.environ.get("KUBECONFIG", "")
    if not value:
        return None
    if os.pathsep in value:
        raise Unfit(f"KUBECONFIG={value}: it must name one file here, so that nobody has to guess which wins.")
    path = Path(value).expanduser()
    if path.resolve() == KUBECONFIG.resolve():
        return None
    if not path.is_file():
        raise Unfit(f"KUBECONFIG={value}: there is no such file. Unset it to use the local cluster.")
    return path


def kubeconfig() -> Path:
    """Return the kubeconfig in use: the caller's KUBECONFIG, or the local cluster's.

    Raises:
        Unfit: There is neither.
    """
    path = given() or KUBECONFIG
    if not path.is_file():
        raise Unfit(
            "There is no cluster: run `python -m tools.cluster up`, or set KUBECONFIG to the file of one you may use."
        )
    return path


def kubectl() -> list[str]:
    """Return the first words of a kubectl command on the cluster in use."""
    return [str(tool("kubectl")), f"--kubeconfig={kubeconfig()}"]


def tool(name: str) -> Path:
    """Return the path of a program; it is built first when the cache does not hold it.

    Who brings a cluster need not build: a program on PATH will do then.

    Args:
        name: ``kubectl``, ``helm``, ``kubeconform``, ``kube-score``, ``kwok``, or a component's name.

    Raises:
        KeyError: Unknown name; the message lists the names.
        Unfit: It must be built, and cannot.
    """
    return (built(name) if given() is not None else None) or binaries.path(name)


def built(name: str) -> Path | None:
    """Return a program that is built already or lies on PATH; None where it would have to be built.

    Raises:
        KeyError: Unknown name; the message lists the names.
    """
    built = binaries.folder(binaries.module_of(name))
    if built.is_dir():
        return built / name
    on_path = packages.which(name)
    return None if on_path is None else Path(on_path)


def host_address() -> str:
    """Return the address under which pods of the local cluster reach a server of this machine.

    Such a server must listen on this address (or on all): the machine's loopback is not the cluster's.
    """
    return HOST_ADDRESS


def require_throwaway(context: str) -> None:
    """Refuse destructive test set-up on a cluster that was not meant for it.

    Args:
        context: The context the caller is about to change.

    Raises:
        Unfit: It is not the local cluster's, and ``EPD_THROWAWAY_CONTEXT`` does not name it.
    """
    if context == CONTEXT and given() is None:
        return
    if os.environ.get("EPD_THROWAWAY_CONTEXT") != context:
        raise Unfit(
            f"Context {context!r}: this would delete and change things cluster-wide, and only the local cluster "
            f"({CONTEXT}) may be treated so unasked.\n"
            f"If that cluster may be thrown away, say so: EPD_THROWAWAY_CONTEXT={context}"
        )


def audit_log() -> Path | None:
    """Return the API server's audit log: one JSON record a line, metadata only, reads included.

    A watch that is still open has a record of stage ``ResponseStarted`` only.

    Returns:
        None where it cannot be read, as on a cluster that the caller brought.
    """
    return AUDIT_LOG if given() is None and AUDIT_LOG.is_file() else None


def unavailable() -> str | None:
    """Return why no cluster can be had here, in words that say what to do; None when one can."""
    try:
        if given() is None:
            lifecycle.check()
    except Unfit as reason:
        return str(reason)
    return None
