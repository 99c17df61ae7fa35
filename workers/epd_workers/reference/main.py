"""The program ``epd-reference``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epd_workers.reference.serving.options import Options, parse_or_exit

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the exit status."""
    options = parse_or_exit(sys.argv[1:] if arguments is None else arguments)
    if options.model_path is not None and not Path(options.model_path).is_dir():
        sys.stderr.write(f"epd-reference: --model-path is {options.model_path!r}: there is no such directory\n")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_serve(options))


async def _serve(options: Options) -> int:
    # Imported late: a wrong command line is answered at once, without loading torch.
    import torch  # noqa: PLC0415

    from epd_workers.reference.model.seeded import SeededModel  # noqa: PLC0415
    from epd_workers.reference.serving.server import Server  # noqa: PLC0415
    from epd_workers.reference.transfer.errors import TransferError  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    if options.model_path is not None:
        log.warning("--model-path only names the model: this engine draws its weights from --seed")
    stopping = asyncio.Event()
    hurried = asyncio.Event()
    _on_signals(stopping, hurried)
    model = await asyncio.to_thread(SeededModel, options.seed, options.context_length)
    server = Server(options, model)
    try:
        await server.start()
    except (OSError, TransferError) as error:
        log.error("cannot start: %s", error)  # noqa: TRY400 - a taken port needs no traceback
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
