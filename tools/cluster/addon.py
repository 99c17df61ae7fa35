"""Add-ons that are no programs here: their definitions come out of a Go module, and nothing is built."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tools import program
from tools.cluster import machine
from tools.cluster.layout import GO_MODULES
from tools.program import Unfit

LEADER_WORKER_SET = "leaderworkersets.leaderworkerset.x-k8s.io"
_MODULE = "sigs.k8s.io/lws"
_FILE = Path("config") / "crd" / "bases" / "leaderworkerset.x-k8s.io_leaderworkersets.yaml"


def leader_worker_set() -> Path:
    """Return the CustomResourceDefinition of LeaderWorkerSet, downloading its module (1.5 MB) the first time.

    Raises:
        Unfit: Go is missing, or the module cannot be had.
    """
    machine.require_go()
    # Else only root could remove the module cache again.
    environment = {**os.environ, "GOWORK": "off", "GOFLAGS": "-modcacherw"}
    command = ["go", "mod", "download", "-json", _MODULE]
    source = GO_MODULES / "lws"
    done = program.run(command, cwd=source, env=environment)
    if done.returncode:
        raise Unfit(
            f"go mod download in {source} failed:\n{(done.stdout + done.stderr).strip()}\n"
            "Way out: the Go module proxy must be reachable once (GOPROXY)."
        )
    return Path(json.loads(done.stdout)["Dir"]) / _FILE
