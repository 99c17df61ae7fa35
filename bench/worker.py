"""What one Reference worker costs: start to ready, idle memory, and the pace of one stream.

A server of both halves is started afresh for every run, as in a pod, with the shipped checkpoint.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.epd.fleet import HOST, free_ports
from bench.spread import Spread
from epd_workers.reference.training.arguments import whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUNS: Final = 5
TOKENS: Final = 200
READY_SECONDS: Final = 120.0
_PROMPT: Final = "The lighthouse keeper counts the ships. "


@dataclass(frozen=True)
class Run:
    """One start.

    Attributes:
        ready_seconds: From the start of the process to its first 200 on `/ready`.
        idle_mib: Resident memory then.
        tokens_per_second: Of one stream of `TOKENS` tokens, from its first to its last.
    """

    ready_seconds: float
    idle_mib: float
    tokens_per_second: float


@dataclass(frozen=True)
class Server:
    """A running one.

    Attributes:
        url: Where it answers.
        ready_seconds: From the start of the process to its first 200 on `/ready`.
    """

    process: subprocess.Popen[bytes]
    url: str
    ready_seconds: float


def measure() -> Run:
    """Start a server, look at it, and end it.

    Raises:
        RuntimeError: It did not become ready; the message has the end of its log.
    """
    with serving() as server:
        return Run(server.ready_seconds, _resident_mib(server.process.pid), _pace(server.url))


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    """Start a server of both halves, wait until it is ready, and end it afterwards.

    Args:
        flags: More of them.

    Raises:
        RuntimeError: It did not become ready; the message has the end of its log.
    """
    port, bootstrap, encoders = free_ports(3)
    command = [sys.executable, "-m", "epd_workers.reference.main", "--role", "aggregated", "--host", HOST, *flags]
    command += ["--port", str(port), "--bootstrap-port", str(bootstrap), "--encoder-bootstrap-port", str(encoders)]
    url = f"http://{HOST}:{port}"
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own program
        try:
            while not _answers(f"{url}/ready"):
                if process.poll() is not None or time.monotonic() - began > READY_SECONDS:
                    raise RuntimeError(f"the server did not become ready:\n{Path(log.name).read_text()[-2000:]}")
                time.sleep(0.02)
            yield Server(process, url, time.monotonic() - began)
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - http, ours
        return bool(answer.status == 200)
    return False


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) / 1024


def _pace(url: str) -> float:
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"text": _PROMPT * 8, "sampling_params": sampling, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})  # noqa: S310 - as above
    with urllib.request.urlopen(request, timeout=READY_SECONDS) as answer:  # noqa: S310 - as above
        pieces = (line for line in answer if line.startswith(b"data: {"))
        seen = [(time.monotonic(), json.loads(piece[6:])["meta_info"]["completion_tokens"]) for piece in pieces]
    (first, low), (last, high) = seen[0], seen[-1]
    return float((high - low) / (last - first))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=whole(1), default=RUNS, help="starts (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    runs = []
    for number in range(given.runs):
        sys.stderr.write(f"start {number + 1} of {given.runs}\n")
        runs.append(measure())
    spreads = {name: Spread.of([getattr(run, name) for run in runs]) for name in vars(runs[0])}
    if given.json:
        print(json.dumps({name: spread.to_json() for name, spread in spreads.items()}))
        return 0
    for name, spread in spreads.items():
        print(f"{name:18} {spread.median:8.1f}  ({spread.low:.1f}-{spread.high:.1f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
