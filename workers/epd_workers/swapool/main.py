"""The program ``epd-swapool``: one server of a pool of windows."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from epd_workers import extra
from epd_workers.swapool.server.options import MasterOptions, UsageError, ValkeyOptions, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.swapool.server.options import Options
    from epd_workers.swapool.server.program import Program

EXIT_USAGE = 2


@extra.needed_by("epd-swapool", "workers")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a server until it ends; return the exit status."""
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
    except UsageError as error:
        for fault in error.faults:
            sys.stderr.write(f"epd-swapool: {fault}\n")
        sys.stderr.write("epd-swapool: see epd-swapool --help\n")
        return EXIT_USAGE
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Imported late: a wrong command line is answered without loading any of it.
    from epd_workers.swapool.server.program import MissingProgram  # noqa: PLC0415
    from epd_workers.swapool.server.supervisor import supervise  # noqa: PLC0415

    try:
        return asyncio.run(supervise(_program(options), options.health_port))
    except (MissingProgram, OSError) as error:
        sys.stderr.write(f"epd-swapool: {error}\n")
        return 1


def _program(options: Options) -> Program:
    from epd_workers.swapool.server.master import MasterProgram  # noqa: PLC0415 - as above
    from epd_workers.swapool.server.store import StoreProgram  # noqa: PLC0415
    from epd_workers.swapool.server.valkey import ValkeyProgram  # noqa: PLC0415

    if isinstance(options, ValkeyOptions):
        return ValkeyProgram(options)
    return MasterProgram(options) if isinstance(options, MasterOptions) else StoreProgram(options)


if __name__ == "__main__":
    sys.exit(main())
