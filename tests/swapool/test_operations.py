"""A Mooncake pool's servers come and go, as its operator and its nodes make them; whoever uses it goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port
from tests.swapool.conftest import supervisors
from tests.swapool.servers import until
from tests.swapool.test_mooncake import JOIN, Gaps
from tests.swapool.test_valkey import are_held, recovered
from tests.swapool.windows import PATIENT, SLACK, fill, keeps_to_the_deadline, key, lookups, rows, stays_out_of_the_way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.swapool.conftest import Opening, Running
    from tests.swapool.servers import Supervised

LIMIT = str(64 << 20)
# An address to which nothing can be sent, on any machine: what reaches the master from there is all that ever does.
NOWHERE = "255.255.255.255"


class Cluster:
    """A master and its stores."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._port, self._metrics_port = free_port(), free_port()
        self.address = f"mooncake://127.0.0.1:{self._port}"
        self.master = self.start_master()
        self.stores = [self.start_store() for _ in range(3)]
        for store in self.stores:
            store.until(store.healthy)

    def start_master(self) -> Supervised:
        self.master = self._running("master", "--port", str(self._port), "--metrics-port", str(self._metrics_port))
        return self.master

    def start_store(self, hostname: str = "127.0.0.1") -> Supervised:
        master = f"127.0.0.1:{self._port}"
        return self._running("store", "--master", master, "--memory", LIMIT, "--hostname", hostname)

    def known(self) -> float | None:
        """How many stores the master knows of."""
        return self.master.figure("stores")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three stores; each test leaves three that serve."""
    with supervisors(tmp_path_factory.mktemp("cluster")) as running:
        yield Cluster(running)


def test_d4_the_master_restarts(cluster: Cluster, opened: Opening) -> None:
    """It forgets everything. Nobody else restarts: stores join it anew, users go on, and a new one joins as well."""
    before = [store.child for store in cluster.stores]
    pool = opened(cluster.address)
    until(lambda: recovered(pool), JOIN)
    names = fill(pool, 8)
    assert all(are_held(pool, names))
    gaps = Gaps()
    cluster.master.kill()
    assert stays_out_of_the_way(pool, names) == 0
    assert gaps.longest() < SLACK, "a thread of the engine waited, too"
    for store in cluster.stores:
        # Restarting them would help nobody. A call that was under way when the master went takes its time.
        store.until(store.alive)
        assert store.ask("/health")[0] == 503
    cluster.start_master()
    for store in cluster.stores:
        store.until(store.healthy)
    until(lambda: cluster.known() == 3)
    assert [store.child for store in cluster.stores] == before
    until(lambda: recovered(pool), JOIN)
    until(lambda: all(are_held(pool, fill(pool, 8))), JOIN)
    newcomer = opened(cluster.address)
    until(lambda: all(are_held(newcomer, names)), JOIN)


def test_d9_one_bad_store(cluster: Cluster, opened: Opening) -> None:
    """It answers the master's heartbeats and fails every transfer: its own probes say so, others' do not."""
    bad = cluster.start_store(NOWHERE)
    bad.until(lambda: cluster.known() == 4)
    bad.until(lambda: bad.ask("/live")[0] == 503, 5.0)
    status, message = bad.ask("/health")
    assert status == 503
    assert "the store is in the pool, but a put fails" in message or "no answer" in message
    pool = opened(cluster.address)
    until(lambda: recovered(pool), JOIN)
    for number in range(12):
        pool.put(key(number), rows(key(number)), 300)
        assert pool.drain(PATIENT)
    seconds, _ = lookups(pool, [key(number) for number in range(12)], 400, pause=0.0015)
    keeps_to_the_deadline(seconds)
    assert cluster.known() == 4, "the master has not noticed"
    assert all(store.healthy() for store in cluster.stores)
    assert cluster.master.healthy()
    assert bad.terminate() == 0
    until(lambda: cluster.known() == 3)
    until(lambda: recovered(pool), JOIN)
    until(lambda: all(are_held(pool, fill(pool, 8))), JOIN)


def test_d11_a_planned_restart_of_one_store_of_three(cluster: Cluster, opened: Opening) -> None:
    """It takes leave first, so that nobody waits for it; what the others hold is found all the time."""
    pool = opened(cluster.address)
    until(lambda: recovered(pool), JOIN)
    names = fill(pool, 30)
    assert all(are_held(pool, names))
    restarted: list[int] = []

    def restart() -> None:
        restarted.append(cluster.stores.pop(0).terminate())
        restarted.append(int(cluster.known() or 0))
        cluster.stores.append(again := cluster.start_store())
        again.until(again.healthy)

    thread = threading.Thread(target=restart)
    thread.start()
    seconds: list[float] = []
    while thread.is_alive():
        more, _ = lookups(pool, names, 40, pause=0.0025)
        seconds += more
    thread.join()
    assert restarted == [0, 2], "its exit status, and how many stores the master knew of right after"
    assert len(seconds) > 200
    keeps_to_the_deadline(sorted(seconds))
    # Ten of thirty are gone with their store, more or less: the master spreads them at random.
    until(lambda: sum(are_held(pool, names)) >= 12, JOIN)
    assert cluster.known() == 3
    until(lambda: all(are_held(pool, fill(pool, 30))), JOIN)
