"""What `epd validate` costs: a whole process on one file, and a thousand files or command lines in one process.

Everything runs in child processes as a user would start them. CPU seconds of the child, user and system, beside what
the clock says: on a busy machine only the former can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 9
MANY = 1000

SPEC = """\
apiVersion: serving.epd.dev/v1alpha1
kind: DeepSeekV41Deployment
metadata: {{name: demo-{number}}}
spec:
  engine:
    type: SGLang
    version: "0.5.23"
    platform: cuda-sm90
    image: registry.example/sglang:v0.5.23
  model: {{path: deepseek-ai/DeepSeek-V4.1-Flash, revision: 2cba9e42aa026125}}
  roles:
    prefill:
      resources: {{gpu: 4, rdma: 1, memory: 512Gi}}
      args: {{tp-size: 4, chunked-prefill-size: {chunk}, attn-cp-size: {cp}}}
    decode:
      resources: {{gpu: 4, rdma: 1, memory: 512Gi}}
      args: {{tp-size: 4, page-size: {page}}}
"""


def seconds(epd: list[str], arguments: list[str], folder: Path) -> tuple[float, float]:
    """CPU and wall seconds of one run of the program `epd`; the exit status may be 0 or 1.

    Raises:
        RuntimeError: The run did not do its work.
    """
    start = time.perf_counter()
    child = subprocess.Popen(  # noqa: S603 - our own program
        [*epd, *arguments], cwd=folder, env=_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    with child:
        errors = child.stderr.read().decode() if child.stderr is not None else ""
    if child.returncode not in {0, 1}:
        raise RuntimeError(f"epd {' '.join(arguments)} ended with {child.returncode}: {errors}")
    return usage.ru_utime + usage.ru_stime, wall


def _environment(folder: Path) -> dict[str, str]:
    """With compiled modules, as they are after an installation, in a place that the run may write to."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def medians(epd: list[str], arguments: list[str], folder: Path, runs: int) -> tuple[float, float]:
    """Medians of CPU and wall seconds, after one run that compiles what is not yet."""
    seconds(epd, arguments, folder)
    measured = [seconds(epd, arguments, folder) for _ in range(runs)]
    return statistics.median(cpu for cpu, _ in measured), statistics.median(wall for _, wall in measured)


def measure(python: str) -> dict[str, float]:
    """Write the inputs and read the figures of the `epd` that an interpreter has installed."""
    epd = [python, "-m", "epd_operator.cli.main"]
    figures: dict[str, float] = {"runs": RUNS, "many": MANY}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "specs").mkdir()
        rows = []
        for number in range(MANY):
            # Half of them are refused: saying why is part of the work.
            text = SPEC.format(number=number, chunk=8192, cp=1 + number % 2, page=64 if number % 3 else 256)
            (folder / "specs" / f"{number}.yaml").write_text(text, encoding="utf-8")
            rows.append({"id": number, "argv": ["--tp-size", "4", "--attn-cp-size", str(1 + number % 2)]})
        (folder / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        jobs = {
            "one_file": (["validate", "specs/0.yaml"], RUNS),
            "one_command_line": (["validate", "--", "--tp-size", "4"], RUNS),
            "many_files": (["validate", "specs"], 3),
            "many_command_lines": (["validate", "--cases", "cases.jsonl"], 3),
        }
        for job, (arguments, runs) in jobs.items():
            cpu, wall = medians(epd, arguments, folder, runs)
            figures[f"{job}_cpu_s"] = round(cpu, 3)
            figures[f"{job}_wall_s"] = round(wall, 3)
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.validate", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument(
        "--python", default=sys.executable, metavar="FILE", help="of another installation, such as one of the wheel"
    )
    chosen = parser.parse_args()
    measured = measure(chosen.python)
    print(
        json.dumps(measured) if chosen.json else "\n".join(f"{name:26} {value:g}" for name, value in measured.items())
    )


if __name__ == "__main__":
    main()
