"""The process that lends its memory to a Mooncake Store.

It waits for the master as long as it takes, joins it, and signs off on SIGTERM. The library itself rejoins after the
master was away. It answers one question on its control socket: whether an object that it puts into the
pool now, in its own segment, comes back.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any, Final

from epd_workers.swapool.agent import CONNECT_SECONDS, LONGEST_MESSAGE, NO_LIBRARY

log = logging.getLogger("epd-swapool")
BUFFER: Final = 1 << 20
SAMPLE: Final = 4096
RETRY: Final = 0.5
# Codes of Mooncake's store (mooncake-store/include/types.h): no room; no answer of the master.
NO_ROOM: Final = -200
MASTER_AWAY: Final = range(-999, -899)


class Segment:
    """This process's part of the pool.

    Args:
        given: As in `epd_workers.swapool.server.options.StoreOptions`.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._store: Any = None
        self._config: Any = None
        self._waits = "it is starting"

    def join(self) -> bool:
        """Join the master once it is there; False if it is not."""
        if not self.master_answers():
            waits = f"no master at {self._given['master']}"
            if waits != self._waits:
                log.warning("%s: waiting for it", waits)
            self._waits = waits
            return False
        library = importlib.import_module("mooncake.store")
        store = library.MooncakeDistributedStore()
        code = store.setup(
            *(self._given["hostname"], "P2PHANDSHAKE", self._given["memory"], BUFFER),
            *(self._given["protocol"], self._given["devices"], self._given["master"]),
        )
        if code != 0:
            self._waits = f"the master at {self._given['master']} does not take this store (code {code})"
            log.warning("%s: trying again", self._waits)
            return False
        config = library.ReplicateConfig()
        config.replica_num = 1
        config.preferred_segment = store.get_hostname()
        self._config, self._store = config, store
        log.info("%d bytes of %s are in the pool", self._given["memory"], store.get_hostname())
        return True

    def leave(self) -> None:
        """Tell the master, so that nobody looks for anything here."""
        # Without a master to hear it, the library would go on trying for minutes.
        if self._store is not None and self.master_answers():
            self._store.close()

    def master_answers(self) -> bool:
        """Whether something takes a connection where the master should be."""
        host, _, port = self._given["master"].rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            return True
        return False

    def health(self) -> dict[str, Any]:
        """Put an object into the segment and read it back; return the fields of a `Health`."""
        if self._store is None:
            return {"fault": self._waits, "alive": True}
        # Without a master each call takes seconds to fail.
        if not self.master_answers():
            return {"fault": f"the master at {self._given['master']} does not answer", "alive": True}
        key, sent = f"health/{self._store.get_hostname()}", os.urandom(SAMPLE)
        code = self._store.upsert(key, sent, self._config)
        # A pool whose objects are all in use has no room for this one either, which is not the store's fault.
        if code == NO_ROOM or (code == 0 and self._store.get(key) == sent):
            return {"fault": "", "alive": True}
        if code in MASTER_AWAY or self._store.is_exist(key) in MASTER_AWAY:
            return {"fault": f"the master at {self._given['master']} does not answer", "alive": True}
        what = f"a put fails (code {code})" if code else "what was put does not come back"
        return {"fault": f"the store is in the pool, but {what}", "alive": False}


def main(arguments: list[str]) -> None:
    """Lend memory until SIGTERM, or until the parent process is gone.

    Args:
        arguments: One JSON object: the fields of `epd_workers.swapool.server.options.StoreOptions`, and `control`, the
            descriptor of a socket on which numbers come and answers go.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given = json.loads(arguments[0])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    segment = Segment(given)
    control = socket.socket(fileno=given["control"])
    threading.Thread(target=_answer, args=(segment, control, ended), daemon=True).start()
    try:
        while not ended.is_set() and not segment.join():
            ended.wait(RETRY)
    except (ImportError, OSError) as error:
        log.error("%s", NO_LIBRARY.format(error=error))  # noqa: TRY400 - the message says what to do
        os._exit(1)
    ended.wait()
    segment.leave()
    # The library's own way out ends in a segmentation fault while one of its calls is under way.
    os._exit(0)


def _answer(segment: Segment, control: socket.socket, ended: threading.Event) -> None:
    while question := control.recv(LONGEST_MESSAGE):
        control.sendall(json.dumps({"question": int(question), **segment.health()}).encode())
    ended.set()


if __name__ == "__main__":
    main(sys.argv[1:])
