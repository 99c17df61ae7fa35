"""A loop whose clock jumps: hours of back-off pass in no time, and always in the same order."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

T = TypeVar("T")


class JumpingSelector(selectors.BaseSelector):
    """Never waits: where a real selector would sleep, the clock is put forward."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    @override
    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    @override
    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    @override
    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    @override
    def close(self) -> None:
        self._real.close()

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits and no timer is set")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    @override
    def time(self) -> float:
        return self.jumping.now


class Virtual(Protocol):
    """Runs a coroutine to its end in virtual time."""

    def __call__(self, main: Coroutine[Any, Any, T]) -> T: ...


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
