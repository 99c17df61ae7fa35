"""Cluster, images and operator, brought up in this order and only where something is missing.

`python -m e2e.stack` brings up the first two, so that what takes minutes is seen before the tests begin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import packages, program, progress
from tools.cluster import access

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "epd-operator"
OPERATOR_NAMESPACE = "epd-system"
RELEASE = "epd-operator"


@dataclass(frozen=True)
class Stack:
    """A cluster that runs the operator.

    Attributes:
        kubeconfig: How to reach it.
        images: Image reference by image name (operator, router, worker).
    """

    kubeconfig: Path
    images: dict[str, str]


def python(module: str, *args: str, capture: bool = False) -> str:
    """Run one of our own modules, its progress on our terminal.

    Raises:
        subprocess.CalledProcessError: When it failed; it has said why.
    """
    stdout = subprocess.PIPE if capture else None
    done = program.show([sys.executable, "-m", module, *args], cwd=ROOT, stdout=stdout)
    done.check_returncode()
    return done.stdout or ""


def prepare() -> Stack:
    """Bring up the cluster and push the images that changed.

    Raises:
        subprocess.CalledProcessError: When a step failed; it has said why on standard error.
    """
    python("tools.cluster", "up")
    pushed = json.loads(python("tools.images", "push", "--json", capture=True))
    return Stack(kubeconfig=access.kubeconfig(), images=pushed)


def install(stack: Stack, *values: str) -> None:
    """Install or upgrade the operator from its chart and wait until it runs.

    Args:
        stack: Where to, and which images.
        values: Further Helm values, as `name=value`.

    Raises:
        subprocess.CalledProcessError: When Helm refused.
    """
    settings = [f"images.{name}={reference}" for name, reference in sorted(stack.images.items())]
    command = [str(access.tool("helm")), "upgrade", "--install", RELEASE, str(CHART)]
    command += ["--kubeconfig", str(stack.kubeconfig), "--namespace", OPERATOR_NAMESPACE, "--create-namespace"]
    command += ["--wait", "--timeout", "120s"]
    for value in [*settings, *values]:
        command += ["--set", value]
    program.show(command, stdout=subprocess.DEVNULL).check_returncode()


def kubectl_name() -> str:
    """How a person at this machine calls kubectl: by its name where it is installed, else by where ours is."""
    return "kubectl" if packages.which("kubectl") else str(access.tool("kubectl"))


def main() -> int:
    """Prepare the cluster and the images; a machine that cannot is named, and is an error in CI alone."""
    why_not = access.unavailable()
    if why_not:
        print(why_not, file=sys.stderr)
        return 2 if os.environ.get("CI") else 0
    try:
        prepare()
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        return progress.interrupted()
    return 0


if __name__ == "__main__":
    sys.exit(main())
