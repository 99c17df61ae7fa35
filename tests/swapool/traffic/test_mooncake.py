"""A Mooncake Store that is unwell under traffic: its own calls may hang for half a minute, no request does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.swapool.servers import MooncakeMaster, MooncakeStore
from tests.swapool.traffic.site import PATIENT, stays_out_of_the_way, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.swapool.traffic.site import Traffic


class Cluster:
    """A master and two stores, in the order in which they come up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.master = MooncakeMaster(folder / "master.log")
        self.stores = [MooncakeStore(folder / f"store-{number}.log", self.master.address) for number in range(2)]

    def lose_master(self) -> None:
        self.master.kill()

    def freeze_master(self) -> None:
        self.master.freeze()

    def freeze_stores(self) -> None:
        for store in self.stores:
            store.freeze()

    def kill_stores(self) -> None:
        for store in self.stores:
            store.kill()

    def restart_master(self) -> None:
        """The stores come back to it by themselves."""
        self.master = MooncakeMaster(self._folder / "new.log", port=self.master.port)

    def end(self) -> None:
        for server in (*self.stores, self.master):
            server.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


async def joined(traffic: Traffic) -> str:
    """A salt whose windows are there: joining takes a while, and what is put before is lost."""
    salts: list[str] = []

    async def reached() -> bool:
        salts.append(await traffic.open(windows=False))
        return (await traffic.go_on(salts[-1], 4))[0] == 4

    await traffic.hurry(PATIENT)
    await traffic.until(reached, 60)
    return salts[-1]


@pytest.mark.parametrize(
    "what",
    [
        "lose_master",
        "freeze_stores",
        pytest.param("freeze_master", marks=pytest.mark.nightly),
        pytest.param("kill_stores", marks=pytest.mark.nightly),
    ],
)
async def test_unwell(traffic: Traffic, cluster: Cluster, what: str) -> None:
    await traffic.say(f"mooncake://{cluster.master.address}")
    salt = await joined(traffic)
    await traffic.hurry()
    getattr(cluster, what)()
    exact, counts, seconds = await timed(traffic.go_on(salt, 40))
    assert not exact
    stays_out_of_the_way(counts, 40, seconds)
    if what == "lose_master":
        cluster.restart_master()
        await joined(traffic)
