"""The two kinds of calls that a thread makes to the server."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epd_workers.swapool.engine import Full, Oversize, Taken, Unavailable
from epd_workers.swapool.header import judge, seal
from epd_workers.swapool.lookup import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.swapool.engine import Session
    from epd_workers.swapool.key import Key
    from epd_workers.swapool.lookup import Lookup
    from epd_workers.swapool.metrics import Put

log = logging.getLogger(__name__)
# Nobody waits for a put; this bounds how long it keeps others from being stored.
PUT_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Reading:
    """Answers a lookup.

    Attributes:
        key: What is asked for.
        lookup: Who asks.
        clock: Unix seconds.
        late: Called with the answer that nobody takes any more.
    """

    key: Key
    lookup: Lookup
    clock: Callable[[], float]
    late: Callable[[Verdict], None]

    def run(self, session: Session) -> None:
        """Ask the server, unless the caller left while this waited for its turn."""
        if self.lookup.ready:
            return
        verdict = self._verdict(session)
        if not self.lookup.answer(verdict):
            self.late(verdict)

    def _verdict(self, session: Session) -> Verdict:
        try:
            result = session.read(self.key.text, self.lookup.deadline)
            judged = "miss" if result is None else judge(self.key, *result, self.clock())
        except Oversize:
            return Verdict("mismatch")
        except Unavailable as error:
            return Verdict("error", fault=str(error))
        except Exception as error:
            log.exception("lookup of %s", self.key.text)
            return Verdict("error", fault=repr(error))
        return Verdict(judged) if isinstance(judged, str) else Verdict("hit", judged)


@dataclass(frozen=True)
class Writing:
    """Stores a window.

    Attributes:
        key: Its name.
        data: Its rows.
        ttl: Seconds it may be used for.
        created: Unix seconds.
        replayed: Whether the rows came from a bounded replay.
        done: Called with the result and with what is wrong with the server, if something is.
    """

    key: Key
    data: bytes
    ttl: float
    created: float
    replayed: bool
    done: Callable[[Put, str], None]

    def run(self, session: Session) -> None:
        """Send it to the server."""
        self.done(*self._result(session))

    def _result(self, session: Session) -> tuple[Put, str]:
        deadline = time.monotonic() + PUT_SECONDS
        try:
            head = seal(self.key, self.data, ttl=self.ttl, created=self.created, replayed=self.replayed)
            session.write(self.key.text, head, self.data, self.ttl, deadline)
        except Full:
            return "full", ""
        except Taken:
            return "taken", ""
        except Unavailable as error:
            return "timeout" if time.monotonic() >= deadline else "error", str(error)
        except Exception as error:
            log.exception("storing of %s", self.key.text)
            return "error", repr(error)
        return "stored", ""
