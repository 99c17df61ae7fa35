"""A port of the cluster on this machine: `kubectl port-forward` for the length of a `with` block."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tools import program
from tools.cluster import access

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from types import TracebackType


class Forward:
    """Forwards one port of a pod or Service.

    Args:
        kubeconfig: Which cluster.
        namespace: Where the target is.
        target: `pod/NAME` or `svc/NAME` (one of its pods is chosen).
        port: The target's port.
    """

    def __init__(self, kubeconfig: Path, namespace: str, target: str, port: int) -> None:
        self.command = [*access.kubectl(), "--kubeconfig", str(kubeconfig), "--namespace", namespace]
        self.command += ["port-forward", target, f":{port}"]
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> str:
        """Start it.

        Returns:
            The base URL on this machine.

        Raises:
            ConnectionError: When kubectl could not forward; the message holds its words.
        """
        self.process = program.start(self.command)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"127\.0\.0\.1:(\d+)", line)
        if match is None:
            rest = self.process.communicate(timeout=10)[0]
            raise ConnectionError(f"port-forward failed: {line}{rest}".strip())
        return f"http://127.0.0.1:{match.group(1)}"

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        if self.process is not None:
            self.process.terminate()
            self.process.communicate(timeout=10)
