"""Loads the packaged checkpoint inside the worker image; the build fails if a pod could not serve it. Run by path."""

# ruff: noqa: INP001, T201  (run by path, not imported as a package; what it prints ends in the build log)
from __future__ import annotations

import time
from typing import TYPE_CHECKING

from epd_workers.reference.serving.options import UsageError, parse
from epd_workers.reference.serving.setup import load

if TYPE_CHECKING:
    from collections.abc import Sequence


def check(flags: Sequence[str] = ()) -> str:
    """Load what a server with these flags would serve, and describe it.

    Raises:
        SystemExit: It cannot be served; the message lists every fault.
    """
    started = time.monotonic()
    try:
        model = load(parse(["--role", "aggregated", *flags]))
    except UsageError as error:
        raise SystemExit("\n".join(error.faults)) from error
    layers, ids, digest = model.config.layers, model.config.vocab_size, model.config.digest[:12]
    return f"checkpoint: {layers} layers, {ids} ids, {digest}; loaded in {time.monotonic() - started:.1f} s"


if __name__ == "__main__":
    print(check())
