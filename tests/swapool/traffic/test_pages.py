"""The other half of a returning turn: without its pages on disk a window is of no use, and does no harm."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.swapool.servers import ValkeyServer
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


@pytest.mark.parametrize("spoil", [_lost, _flipped, _torn])
async def test_pages_that_are_no_more(traffic: Traffic, server: ValkeyServer, spoil: Callable[[Path], None]) -> None:
    """The whole prompt runs, so that the answer is that of an uninterrupted run."""
    await traffic.say(server.url)
    salt, second = await traffic.open(), traffic.site.prefills[1]
    spoil(traffic.site.pages)
    before = await traffic.counts(second)
    for talk in traffic.site.talks:
        assert await traffic.ask(talk.turns[0].ids, salt, 4, second) == talk.turns[0].exact
    counts = await traffic.counts(second) - before
    assert counts.lookups == 0
    assert counts.values["kv_disk_get_total hit"] == 0
    assert counts.values["kv_disk_get_total " + ("miss" if spoil is _lost else "mismatch")] == len(traffic.site.talks)
    # What was computed again is there for the next one.
    assert (await traffic.go_on(await traffic.open(), 6))[0] == 6
