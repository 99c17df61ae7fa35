"""How long a window takes to and from each kind of pool, beside what this machine takes to move as many bytes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from bench.spread import Spread
from bench.swapool import peer, servers
from bench.swapool.route import Place, Way, route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from bench.swapool.servers import EngineName

Operation = Literal["get", "put"]
ENGINES: Final[tuple[EngineName, ...]] = ("memory", "valkey", "mooncake")
WAYS: Final[dict[EngineName, tuple[Way, ...]]] = {
    "memory": ("client", "copy"),
    "valkey": ("client", "bare", "tcp", "copy"),
    "mooncake": ("client", "bare", "tcp", "copy"),
}
OPERATIONS: Final[tuple[Operation, ...]] = ("put", "get")
# The last two are the windows of the released model: with decoder replay, and without.
SIZES: Final = (64 << 10, 256 << 10, 1_351_680, 2_703_360)
CLIENTS: Final = (1, 8)
OBJECTS: Final = 6
MEMORY: Final = 1 << 30
START_SECONDS: Final = 60.0
_Times = dict[tuple[Way, Operation], list[list[float]]]


@dataclass(frozen=True)
class Effort:
    """How much is measured at each point.

    Attributes:
        rounds: In each of them all ways take their turns.
        seconds: That each way and operation has in a round.
        sizes: Bytes of an object.
        clients: Processes at the same time.
    """

    rounds: int = 5
    seconds: float = 0.2
    sizes: tuple[int, ...] = SIZES
    clients: tuple[int, ...] = CLIENTS


@dataclass(frozen=True)
class Point:
    """One way of moving objects of one size, to or from.

    Attributes:
        engine: Kind of the pool; the floors `tcp` and `copy` were measured in the same run.
        clients: Processes at the same time.
        milliseconds: A call's, the medians of the rounds.
        slowest: The same for the 99th of a hundred calls, all rounds together.
        megabytes: That all clients moved in a second, by round.
        ratio: Of a call's median to that of the least way there is in this process (`copy` in process, else `bare`),
            by round; None for ways other than `client`.
    """

    engine: EngineName
    way: Way
    operation: Operation
    size: int
    clients: int
    milliseconds: Spread
    slowest: float
    megabytes: Spread
    ratio: Spread | None

    def to_json(self) -> dict[str, Any]:
        """All of it, rounded."""
        spreads = {"milliseconds": self.milliseconds, "megabytes": self.megabytes, "ratio": self.ratio}
        return {
            **asdict(self),
            **{name: spread and spread.to_json() for name, spread in spreads.items()},
            "slowest": round(self.slowest, 4),
        }


def measure(engine: EngineName, effort: Effort, folder: Path, tell: Callable[[str], None]) -> Iterator[Point]:
    """Start a pool and use it in every way, with objects of every size.

    Args:
        engine: Kind of the pool.
        effort: How much.
        folder: For the servers' logs.
        tell: Progress.

    Raises:
        NotStarted: The servers did not start.
        RuntimeError: An object was lost.
    """
    for size in effort.sizes:
        for count in effort.clients:
            tell(f"{engine}, {size:,} bytes, {count} client{'s' * (count > 1)}")
            # New servers for each: what other sizes left behind must not have to be evicted.
            with servers.running(engine, MEMORY, folder) as pool, peer.running(size) as port:
                place = Place(engine, pool.address, pool.port, port, size)
                with (folder / "clients.log").open("ab") as log:
                    times = crew(place, count, effort, log.fileno())
            yield from points(engine, size, count, times)


def points(engine: EngineName, size: int, clients: int, times: Sequence[_Times]) -> Iterator[Point]:
    """What the clients' times add up to.

    Args:
        engine: Kind of the pool.
        size: Bytes of an object.
        clients: How many there were.
        times: Of each client: for each way and operation the seconds of every call, by round.
    """
    least: Way = "copy" if engine == "memory" else "bare"
    for way in WAYS[engine]:
        for operation in OPERATIONS:
            rounds = [_together(times, way, operation, number) for number in range(len(times[0][way, operation]))]
            floors = [_together(times, least, operation, number) for number in range(len(rounds))]
            medians = [statistics.median(calls) for calls in rounds]
            paces = [
                sum(size * len(each[way, operation][number]) / sum(each[way, operation][number]) for each in times)
                for number in range(len(rounds))
            ]
            ratios = [mine / statistics.median(floor) for mine, floor in zip(medians, floors, strict=True)]
            calls = sorted(call for each in rounds for call in each)
            yield Point(
                engine=engine,
                way=way,
                operation=operation,
                size=size,
                clients=clients,
                milliseconds=Spread.of([1000 * value for value in medians]),
                slowest=1000 * calls[int(0.99 * (len(calls) - 1))],
                megabytes=Spread.of([value / 1e6 for value in paces]),
                ratio=Spread.of(ratios) if way == "client" else None,
            )


def _together(times: Sequence[_Times], way: Way, operation: Operation, number: int) -> list[float]:
    return [call for each in times for call in each[way, operation][number]]


def crew(place: Place, count: int, effort: Effort, log: int) -> list[_Times]:
    """Let `count` processes go through all ways in step.

    Args:
        place: Where their objects go.
        count: How many.
        effort: How much each does.
        log: Descriptor of a file for what libraries print.

    Raises:
        RuntimeError: One of them failed; the message says why.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    members = [
        context.Process(target=_work, args=(replace(place, owner=owner), effort, barrier, answers))
        for owner, (_, answers) in enumerate(pipes)
    ]
    with _printing_to(log):
        for member in members:
            member.start()
    for _, theirs in pipes:
        theirs.close()
    answers = []
    for ours, _ in pipes:
        with contextlib.suppress(EOFError):
            answers.append(ours.recv())
        ours.close()
    for member in members:
        member.join()
    # One fault makes the others give up waiting for it.
    faults = sorted((answer for answer in answers if isinstance(answer, str)), key=lambda text: "Barrier" in text)
    if faults or len(answers) < count:
        raise RuntimeError(faults[0] if faults else "a client ended")
    return answers


@contextlib.contextmanager
def _printing_to(log: int) -> Iterator[None]:
    """What processes that are started here print goes to a file: Mooncake's library says much."""
    kept = os.dup(2)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _work(place: Place, effort: Effort, barrier: Barrier, answers: Connection) -> None:
    try:
        answers.send(_times(place, effort, barrier))
    except Exception as error:  # noqa: BLE001 - it is raised where the others are waited for
        barrier.abort()
        answers.send(f"{place.engine}, client {place.owner}: {error!r}")
    answers.close()
    # Mooncake's client does not end well by itself.
    os._exit(0)


def _times(place: Place, effort: Effort, barrier: Barrier) -> _Times:
    routes = {way: route(way, place) for way in WAYS[place.engine]}
    for each in routes.values():
        for number in range(OBJECTS):
            each.put(number)
            each.get(number)
    times: _Times = {(way, operation): [] for way in routes for operation in OPERATIONS}
    for _ in range(effort.rounds):
        for way, each in routes.items():
            for operation in OPERATIONS:
                barrier.wait(START_SECONDS)
                times[way, operation].append(_calls(each.get if operation == "get" else each.put, effort.seconds))
    return times


def _calls(call: Callable[[int], None], seconds: float) -> list[float]:
    """The seconds of each of as many calls as fit, at least one."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        begun = time.perf_counter()
        call(len(taken) % OBJECTS)
        taken.append(time.perf_counter() - begun)
    return taken
