"""No window is ever adopted that another model, layout, deployment, user or place left, nor a damaged or an old one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.reference.engine.prefix_key import pictures, prefix_key
from epd_workers.reference.engine.request import Prompt
from epd_workers.reference.engine.space import namespace
from epd_workers.reference.engine.store import Stores
from epd_workers.swapool.chain import chain
from epd_workers.swapool.key import Key
from epd_workers.swapool.memory import Memory
from tests.reference.returning.deployment import Reference, Windows, folder, grown, returning, same, served, space_of
from tests.support.reference.engines import picture, text, tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.reference.model.loaded import LoadedModel

BOUNDS: dict[str, Any] = {"replay": "0.5.23", "chunked_prefill_size": 16}
TALK = Prompt([*text(9), *[258] * 5, *text(21, 1)], [picture(9, 5, 3)])
TURN = grown(TALK, [], 9, seed=4)
AT = 32
ENTRY = tuple[bytes, bytes]


def chain_of(prompt: Prompt, page_size: int = 4) -> list[bytes]:
    return chain(prefix_key(prompt.token_ids, pictures(prompt), 258), page_size, prompt.salt)


def entry(windows: Windows, prompt: Prompt, at: int, page_size: int = 4) -> ENTRY:
    """What a pool holds under the name that its own deployment gives to this window."""
    assert isinstance(windows.holder, Memory)
    held = windows.holder.read(Key(windows.space, chain_of(prompt, page_size)[at // page_size - 1], at).text, 0.0)
    assert held is not None
    return held


@pytest.fixture(scope="module")
def genuine(model: LoadedModel) -> ENTRY:
    return asyncio.run(left(model))


async def left(
    model: LoadedModel, prompt: Prompt = TALK, at: int = AT, tenant: str = "", served_as: str = "tiny", **given: Any
) -> ENTRY:
    """A window as a server of these settings leaves it."""
    bounds = BOUNDS | given
    windows = Windows(namespace(model, returning(**bounds), tenant, served_as))
    async with served(model, Stores(windows), **bounds) as server:
        await server.prefill(prompt)
    return entry(windows, prompt, at, bounds.get("page_size", 4))


async def adopts(model: LoadedModel, held: ENTRY, **given: Any) -> bool:
    """Whether a server adopts this where it looks for its window; whatever it does, it computes what it must."""
    windows = Windows(space_of(model, **BOUNDS), **given)
    async with served(model, Stores(windows), **BOUNDS) as server:
        await server.prefill(TALK)
        name = Key(windows.space, chain_of(TURN)[AT // 4 - 1], AT).text
        windows.holder.sessions(1, 1)[0].write(name, *held, 300.0, time.monotonic() + 1)
        assert (await server.generate(TURN))[0].cached_tokens == AT
        assert [key.text for key in windows.asked] == [name]
        reference = Reference(model, **BOUNDS)
        expected = reference.uninterrupted(TURN, 3, AT) if server.adopted else reference.replayed(TURN, 3, AT)
        assert same(server.seen, expected)
        state = server.engine.replay()
        assert (state.encoder_active, state.encoder_reason) == (True, "")
        assert (state.avoided, state.work.replayed) == ((8, 0) if server.adopted else (0, 8))
        assert (windows.spared, windows.ran_again) == (state.avoided, state.work.replayed)
        assert state.spared == AT - state.work.replayed
        return server.adopted == 1


async def test_the_very_window_is_adopted(model: LoadedModel, genuine: ENTRY) -> None:
    assert await adopts(model, genuine)


@pytest.mark.parametrize(
    "given",
    [
        {"cache_type": "bf16"},
        {"page_size": 2},
        {"replay": None},
        {"replay": "dsv41-37ae292e"},
        {"tenant": "somebody/else"},
        {"served_as": "huge"},
        {"prompt": replace(TALK, salt="somebody")},
        {"prompt": replace(TALK, images=[picture(9, 5, 4)])},
        {"prompt": replace(TALK, token_ids=[7, *TALK.token_ids[1:]])},
        {"at": 28},
    ],
    ids="-".join,
)
async def test_others_windows_are_not(model: LoadedModel, given: dict[str, Any]) -> None:
    assert not await adopts(model, await left(model, **given))


async def test_other_weights_windows_are_not(model: LoadedModel) -> None:
    assert not await adopts(model, await left(tiny_model(6)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda head, data: (head, data[:-1]),
        lambda head, data: (head, data + b"\0"),
        lambda head, _: (head, b""),
        lambda head, data: (head[:-1], data),
        lambda head, data: (head, bytes([data[0] ^ 1]) + data[1:]),
        lambda head, data: (head[:5] + bytes([head[5] ^ 1]) + head[6:], data),
        lambda head, data: (head, data[:-1] + bytes([data[-1] ^ 0x80])),
    ],
    ids=["short", "long", "empty", "headless", "first bit", "mark", "last bit"],
)
async def test_damaged_ones_are_not(
    model: LoadedModel, genuine: ENTRY, damage: Callable[[bytes, bytes], ENTRY]
) -> None:
    assert not await adopts(model, damage(*genuine))


@pytest.mark.parametrize("shift", [3600.0, -3600.0])
async def test_old_ones_and_those_from_the_future_are_not(model: LoadedModel, genuine: ENTRY, shift: float) -> None:
    assert not await adopts(model, genuine, clock=lambda: time.time() + shift)


def test_a_namespace_tells_apart_whatever_the_bytes_depend_on(model: LoadedModel) -> None:
    spaces = [
        space_of(model),
        space_of(tiny_model(6)),
        *(space_of(model, **given) for given in ({"cache_type": "bf16"}, {"page_size": 2}, {"replay": "0.5.23"})),
        space_of(model, replay="dsv41-37ae292e"),
        space_of(model, tenant="somebody/else"),
        namespace(model, returning(), "", "huge"),
    ]
    assert len({space.digest for space in spaces}) == len(spaces)
    assert [space_of(model, replay=replay).layers for replay in (None, "0.5.23", "dsv41-37ae292e")] == [4, 2, 3]
    assert space_of(model).digest == space_of(tiny_model(5), chunked_prefill_size=5, max_running_requests=3).digest


async def test_salts_share_neither_tree_nor_folder_nor_pool(model: LoadedModel) -> None:
    windows = Windows(space_of(model, **BOUNDS))
    with folder(model, **BOUNDS) as pages:
        stores = Stores(windows, pages)
        async with served(model, stores, **BOUNDS) as server, served(model, stores, **BOUNDS) as other:
            for salt in ("one", "another", ""):
                for asked, actual in ((TALK, 0), (TURN, AT)):
                    handover, _ = await server.prefill(replace(asked, salt=salt))
                    assert handover.first.cached_tokens == actual
                    assert pages.drain(10)
            assert server.adopted == 3
            assert (await other.prefill(replace(TURN, salt="a third")))[0].first.cached_tokens == 0
            assert (await other.prefill(replace(grown(TURN, [], 9), salt="one")))[0].first.cached_tokens == 44
            assert other.adopted == 1
