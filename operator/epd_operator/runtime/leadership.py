"""The election in a thread of its own.

The tricky idea: renewing must not wait in line. When hundreds of objects go at once on a busy machine, the main event
loop can be seconds behind, and a leader that renews from there loses its lease for being diligent. This thread has its
own event loop and connection; the main loop only asks whether the lease is held. A main loop that is stuck for good is
found by the liveness probe, which it has to answer itself.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from epd_operator.kube import Connection, Credential, HttpCluster
from epd_operator.runtime.lease import Election

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from epd_operator.runtime.config import Config

CLOSE_SECONDS = 2.0


class Leadership:
    """Takes, keeps and gives back the Lease.

    Args:
        config: Names, identity and timing.
        load: Reads the cluster configuration.
        observe: Told about every request, see `Connection`.
        changed: Told True on winning and False on losing or releasing; called in the thread.
        lost: Called in the thread at once when the lease is lost.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Any],
        *,
        observe: Callable[[str, str, int, float], None],
        changed: Callable[[bool], None],
        lost: Callable[[], None],
    ) -> None:
        self._lost = lost
        self._connection = Connection(Credential(load), user_agent=config.user_agent, observe=observe)
        self._election = Election(
            HttpCluster(self._connection),
            namespace=config.namespace,
            name=config.lease,
            identity=config.identity,
            timing=config.timing,
            changed=changed,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._kept: asyncio.Task[None] | None = None

    def holds(self) -> bool:
        """Whether we may write right now."""
        return self._election.holds()

    @property
    def polled(self) -> float:
        """Monotonic time at which the API server last answered us about the Lease."""
        return self._election.polled

    async def acquire(self) -> None:
        """Return when the lease is ours; from then on it is kept.

        Raises:
            CredentialError: Nothing usable is configured.
        """
        self._thread.start()
        await self._there(self._acquire())

    async def release(self) -> None:
        """Stop renewing and give the lease up, if we hold it."""
        await self._there(self._release())

    async def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            await self._there(self._connection.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _there(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _acquire(self) -> None:
        await self._election.acquire()
        self._kept = asyncio.create_task(self._keep(), name="lease")

    async def _keep(self) -> None:
        await self._election.hold()
        self._lost()

    async def _release(self) -> None:
        if self._kept is not None:
            self._kept.cancel()
            await asyncio.wait({self._kept})
        await self._election.release()
