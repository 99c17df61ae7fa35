from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_operator.kube import Conflict, NotFound, Transport
from epd_operator.runtime.lease import Election, Sight, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epd_operator.kube.kind import Kind
    from tests.support.virtual_time import Virtual

TIMING = Timing()


def lease(holder: str, renewed: str = "t0", seconds: int = 8) -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": seconds}}


def test_a_candidate_counts_from_when_it_saw_the_record_change() -> None:
    seen = Sight(None, float("-inf")).refreshed(lease("other"), 100.0)
    assert not seen.free("me", 107.9)
    same = seen.refreshed(lease("other"), 105.0)
    assert same.free("me", 108.0)
    renewed = seen.refreshed(lease("other", renewed="t1"), 107.0)
    assert not renewed.free("me", 114.9)


def test_an_ancient_timestamp_in_the_record_means_nothing() -> None:
    seen = Sight(None, float("-inf")).refreshed(lease("other", renewed="1999-01-01T00:00:00Z"), 100.0)
    assert not seen.free("me", 100.0)


def test_nobodys_and_our_own_records_are_free() -> None:
    assert Sight(None, 0.0).free("me", 0.0)
    assert Sight(lease(""), 0.0).free("me", 0.0)
    assert Sight(lease("me"), 0.0).free("me", 0.0)


class Store:
    """One Lease with optimistic locking, on a network that may be cut per candidate."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] | None = None
        self.version = 0
        self.holders: list[tuple[float, str]] = []

    def put(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.obj = {**obj, "metadata": metadata}
        self.holders.append((asyncio.get_running_loop().time(), obj["spec"]["holderIdentity"]))
        return self.obj


class Wire:
    """A candidate's view of the store: `cut` loses requests, `deaf` loses answers to requests that took effect."""

    def __init__(self, store: Store, delay: float = 0.01) -> None:
        self.store = store
        self.delay = delay
        self.cut = False
        self.deaf = False

    async def _travel(self, seconds: float) -> None:
        if self.cut:
            await asyncio.sleep(seconds)
            raise Transport("lease", "timed out")
        await asyncio.sleep(self.delay)

    async def _answer(self, obj: dict[str, Any], seconds: float) -> dict[str, Any]:
        if self.deaf:
            await asyncio.sleep(seconds)
            raise Transport("lease", "timed out")
        return obj

    async def get(self, kind: Kind, namespace: str | None, name: str, seconds: float) -> dict[str, Any]:
        await self._travel(seconds)
        if self.store.obj is None:
            raise NotFound("lease", "none", status=404)
        return await self._answer(self.store.obj, seconds)

    async def create(self, kind: Kind, obj: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        await self._travel(seconds)
        if self.store.obj is not None:
            raise Conflict("lease", "exists", status=409)
        return await self._answer(self.store.put(obj), seconds)

    async def replace(self, kind: Kind, obj: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        await self._travel(seconds)
        assert self.store.obj is not None
        if self.store.obj["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict("lease", "changed", status=409)
        return await self._answer(self.store.put(obj), seconds)


def candidate(wire: Wire, name: str, changed: Callable[[bool], None] = lambda _: None) -> Election:
    return Election(
        wire,
        namespace="ns",
        name="lease",
        identity=name,
        timing=TIMING,
        clock=asyncio.get_running_loop().time,
        changed=changed,
    )


def test_the_first_wins_and_the_second_waits_until_it_is_released(virtual: Virtual) -> None:
    async def main() -> None:
        loop, store = asyncio.get_running_loop(), Store()
        first, second = candidate(Wire(store), "one"), candidate(Wire(store), "two")
        await first.acquire()
        assert first.holds()
        hold = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(60)
        assert first.holds()
        assert not waiting.done()
        hold.cancel()
        await first.release()
        released = loop.time()
        assert not first.holds()
        await waiting
        assert loop.time() - released <= 2.5
        assert store.obj is not None
        assert store.obj["spec"]["leaseTransitions"] == 1

    virtual(main())


def test_a_dead_leader_is_followed_within_the_lease_and_two_tries(virtual: Virtual) -> None:
    async def main() -> None:
        loop, store = asyncio.get_running_loop(), Store()
        first, second = candidate(Wire(store), "one"), candidate(Wire(store), "two")
        await first.acquire()
        hold = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(20)
        hold.cancel()
        died = loop.time()
        await waiting
        assert loop.time() - died <= TIMING.duration + 2 * TIMING.retry + 0.1

    virtual(main())


def test_a_cut_off_leader_stops_before_the_other_starts(virtual: Virtual) -> None:
    async def main() -> None:
        loop, store = asyncio.get_running_loop(), Store()
        wire = Wire(store)
        first, second = candidate(wire, "one"), candidate(Wire(store), "two")
        await first.acquire()
        hold = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(20)
        wire.cut = True
        cut = loop.time()
        await hold
        assert not first.holds()
        assert loop.time() - cut <= TIMING.deadline + 0.1
        assert not waiting.done()
        await waiting

    virtual(main())


def test_a_leader_that_sees_another_holder_stops_at_once(virtual: Virtual) -> None:
    async def main() -> None:
        store = Store()
        first = candidate(Wire(store), "one")
        await first.acquire()
        hold = asyncio.create_task(first.hold())
        await asyncio.sleep(5.5)
        assert store.obj is not None
        store.put({**store.obj, "spec": {**store.obj["spec"], "holderIdentity": "intruder"}})
        await asyncio.wait_for(hold, 3 * TIMING.retry)
        assert not first.holds()
        await first.release()
        assert store.obj["spec"]["holderIdentity"] == "intruder"

    virtual(main())


def test_the_metric_follows(virtual: Virtual) -> None:
    async def main() -> None:
        reported: list[bool] = []
        first = candidate(Wire(Store()), "one", reported.append)
        await first.acquire()
        await first.release()
        assert reported == [True, False]

    virtual(main())


TROUBLE = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from(["cut", "deaf", "heal"]), st.floats(0.1, 9)), max_size=25
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])  # busy machines
@given(TROUBLE)
def test_never_two_holders_whatever_the_network_does(virtual: Virtual, trouble: list[tuple[int, str, float]]) -> None:
    async def main() -> None:
        store = Store()
        wires = [Wire(store), Wire(store, delay=0.4)]
        elections = [candidate(wire, str(index)) for index, wire in enumerate(wires)]

        async def live(election: Election) -> None:
            while True:
                await election.acquire()
                await election.hold()

        async def judge() -> None:
            while True:
                assert sum(election.holds() for election in elections) <= 1
                await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(live(election)) for election in elections]
        judging = asyncio.create_task(judge())
        for index, what, seconds in trouble:
            wires[index].cut = what == "cut"
            wires[index].deaf = what == "deaf"
            await asyncio.sleep(seconds)
        for wire in wires:
            wire.cut = wire.deaf = False
        await asyncio.sleep(15)
        assert sum(election.holds() for election in elections) == 1
        for task in (*tasks, judging):
            task.cancel()
        results = await asyncio.gather(*tasks, judging, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results

    virtual(main())


def test_an_unreachable_server_is_no_reason_to_fail(virtual: Virtual) -> None:
    async def main() -> None:
        wire = Wire(Store())
        wire.cut = True
        election = candidate(wire, "one")
        waiting = asyncio.create_task(election.acquire())
        await asyncio.sleep(60)
        assert not waiting.done()
        before = election.polled
        wire.cut = False
        await waiting
        assert election.polled > before

    virtual(main())


@pytest.mark.parametrize(("duration", "deadline"), [(TIMING.duration, TIMING.deadline)])
def test_the_holder_gives_up_well_before_the_lease_ends(duration: float, deadline: float) -> None:
    assert deadline + 2 * TIMING.retry < duration
