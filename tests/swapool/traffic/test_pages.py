"""The other half of a returning turn: without its pages on disk a window is of no use, and does no harm."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.swapool.traffic.site import AGAIN

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.swapool.servers import ValkeyServer
    from tests.swapool.traffic.site import Traffic


def _lost(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path)


def _flipped(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)


def _torn(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])


async def test_pages_that_are_gone(traffic: Traffic, server: ValkeyServer) -> None:
    """The whole prompt runs, so that the answer is that of an uninterrupted run."""
    await traffic.say(server.url)
    talks, second = traffic.site.talks, traffic.site.prefills[1]
    for spoil, result in ((_lost, "miss"), (_flipped, "mismatch"), (_torn, "mismatch")):
        salt = await traffic.open()
        spoil(traffic.site.pages)
        before = await traffic.counts(second)
        for talk in talks:
            assert await traffic.ask(talk.turns[0].ids, salt, AGAIN, second) == talk.turns[0].exact
        counts = await traffic.counts(second) - before
        assert counts.lookups == 0
        assert counts.values["kv_disk_get_total hit"] == 0
        assert counts.values[f"kv_disk_get_total {result}"] == len(talks)
    # What came after was kept again.
    assert (await traffic.go_on(await traffic.open(), 4))[0] == 4
