"""The program ``epd-reference``: one server, and the commands around its checkpoint."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import logging
import signal
import sys
from typing import TYPE_CHECKING, Final

from epd_workers import extra
from epd_workers.reference.serving.options import COMMANDS, Options, UsageError, complain, parse_or_exit

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

# Imported late: a server needs no training code, and a wrong command line is answered without loading torch.
MODULES: Final = {
    "train": "epd_workers.reference.training.train",
    "evaluate": "epd_workers.reference.training.evaluate",
    "inspect": "epd_workers.reference.inspection",
}


@extra.needed_by("epd-reference", "workers")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or serve until SIGTERM or SIGINT, then drain; return the exit status."""
    rest = list(sys.argv[1:] if arguments is None else arguments)
    command = rest.pop(0) if rest and not rest[0].startswith("-") else "serve"
    if command in MODULES:
        status: int | None = importlib.import_module(MODULES[command]).main(rest)
        return status or 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"must be one of {', '.join(COMMANDS)}"
        complain([f"unknown command {command!r}: {hint}"])
        return 2
    options = parse_or_exit(rest)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_serve(options))


async def _serve(options: Options) -> int:
    # Imported late, as the commands.
    import torch  # noqa: PLC0415

    from epd_workers.reference.engine.request import EngineFailed  # noqa: PLC0415
    from epd_workers.reference.serving.probe import NoRoom, WrongAnswer  # noqa: PLC0415
    from epd_workers.reference.serving.server import Server  # noqa: PLC0415
    from epd_workers.reference.serving.setup import load  # noqa: PLC0415
    from epd_workers.reference.transfer.errors import TransferError  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    stopping = asyncio.Event()
    hurried = asyncio.Event()
    _on_signals(stopping, hurried)
    try:
        model = await asyncio.to_thread(load, options)
    except UsageError as error:
        complain(error.faults)
        return 2
    try:
        server = Server(options, model)
    except ValueError as error:
        complain([str(error)])
        return 2
    try:
        await server.start()
    except (EngineFailed, NoRoom, OSError, TransferError, WrongAnswer) as error:
        log.error("cannot start: %s", error)  # noqa: TRY400 - a taken port needs no traceback, the engine gave its own
        return 1
    await stopping.wait()
    log.info("draining for at most %g s", options.drain_timeout)
    drain = asyncio.create_task(server.stop(options.drain_timeout))
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        await server.stop(0)
    elif not drain.result():
        log.warning("requests were still running after %g s and were cut", options.drain_timeout)
    hurry.cancel()
    return 0


def _on_signals(stopping: asyncio.Event, hurried: asyncio.Event) -> None:
    """Let the first signal drain and a second one end the draining."""
    loop = asyncio.get_running_loop()

    def receive() -> None:
        (hurried if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, receive)


if __name__ == "__main__":
    raise SystemExit(main())
