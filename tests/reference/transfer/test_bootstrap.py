from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epd_workers.reference.transfer.bootstrap import QUERY, BootstrapTable, Rank, Shape
from epd_workers.reference.transfer.errors import TransferError
from epd_workers.reference.transfer.layout import Layout
from epd_workers.reference.transfer.route import Route, base_url, find, register

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LAYOUT = Layout(64, 1024, 2048, 12, kv_cache_dtype="fp4", kv_layout="k")
SHAPE = Shape((1, 1, 1, 1), 64, "fp4", "k", 1024, 2048, 12, "follow_bootstrap_room", 30000)
RANK = Rank((0, 0, 0, 0), "10.0.0.1", 4000, SHAPE)
ALL = dict.fromkeys(QUERY, "-1")


@dataclasses.dataclass
class Bootstrap:
    session: aiohttp.ClientSession
    base: str
    table: BootstrapTable

    async def get(self, query: dict[str, str]) -> tuple[int, str]:
        async with self.session.get(f"{self.base}/route", params=query) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def boot() -> AsyncIterator[Bootstrap]:
    table = BootstrapTable()
    async with TestServer(table.application()) as server, aiohttp.ClientSession() as session:
        yield Bootstrap(session, str(server.make_url("")).rstrip("/"), table)


async def test_health_says_ok_before_any_rank_is_there(boot: Bootstrap) -> None:
    async with boot.session.get(f"{boot.base}/health") as answer:
        assert (answer.status, await answer.text()) == (200, "OK")


async def test_the_table_is_503_until_its_rank_registers(boot: Bootstrap) -> None:
    assert (await boot.get(ALL))[0] == 503
    assert not boot.table.complete
    await register(boot.session, boot.base, RANK)
    assert boot.table.complete
    status, text = await boot.get(ALL)
    assert status == 200
    for field in ("attn_tp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype", "kv_layout"):
        assert field in text


async def test_a_table_of_two_ranks_waits_for_both(boot: Bootstrap) -> None:
    shape = dataclasses.replace(SHAPE, sizes=(1, 1, 2, 1))
    await register(boot.session, boot.base, Rank((0, 0, 0, 0), "10.0.0.1", 4000, shape))
    assert (await boot.get(ALL))[0] == 503
    await register(boot.session, boot.base, Rank((0, 0, 1, 0), "10.0.0.2", 4001, shape))
    assert (await boot.get(ALL))[0] == 200
    status, text = await boot.get(dict(zip(QUERY, "0010", strict=True)))
    assert (status, text) == (200, '{"rank_ip": "10.0.0.2", "rank_port": 4001}')


async def test_an_unknown_rank_is_404_and_nonsense_400(boot: Bootstrap) -> None:
    await register(boot.session, boot.base, RANK)
    assert (await boot.get(dict(ALL, target_tp_rank="7")))[0] == 404
    assert (await boot.get({}))[0] == 400
    assert (await boot.get(dict(ALL, target_tp_rank="x")))[0] == 400


async def test_a_rank_that_differs_from_an_earlier_one_is_refused(boot: Bootstrap) -> None:
    shape = dataclasses.replace(SHAPE, sizes=(1, 1, 2, 1))
    await register(boot.session, boot.base, Rank((0, 0, 0, 0), "10.0.0.1", 4000, shape))
    other = dataclasses.replace(shape, page_size=128)
    with pytest.raises(TransferError, match="differs from the ranks before it"):
        await register(boot.session, boot.base, Rank((0, 0, 1, 0), "10.0.0.2", 4000, other))


async def test_a_rank_may_register_anew(boot: Bootstrap) -> None:
    await register(boot.session, boot.base, RANK)
    await register(boot.session, boot.base, dataclasses.replace(RANK, port=4002))
    assert await find(boot.session, boot.base, LAYOUT, 1) == Route("10.0.0.1", 4002)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "JSON object"),
        ({}, "rank_ip"),
        (RANK.state() | {"rank_port": 0}, "rank_port"),
        (RANK.state() | {"page_size": "64"}, "page_size"),
        (RANK.state() | {"attn_tp_rank": 3}, "attn_tp_rank"),
        (RANK.state() | {"kv_layout": "x" * 300}, "kv_layout"),
    ],
)
async def test_a_bad_registration_is_400_and_names_the_field(boot: Bootstrap, body: Any, field: str) -> None:
    async with boot.session.put(f"{boot.base}/route", json=body) as answer:
        assert answer.status == 400
        assert field in await answer.text()
    assert not boot.table.complete


async def test_sglang_field_names_are_understood() -> None:
    rank = Rank.parse(
        {
            "attn_tp_size": 8, "attn_tp_rank": 3, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1,
            "attn_dp_rank": 0, "pp_size": 1, "pp_rank": 0, "system_dp_size": 4, "system_dp_rank": 2,
            "rank_ip": "10.0.0.1", "rank_port": 5, "page_size": 256, "kv_cache_dtype": "fp8_e4m3", "kv_layout": "auto",
            "load_balance_method": "follow_bootstrap_room", "dsv41_spec_layout": None, "prefill_http_port": 30000,
        }
    )  # fmt: skip
    assert rank.position == (2, 0, 3, 0)
    assert rank.shape.sizes == (4, 1, 8, 1)


async def test_find_waits_for_a_table_that_fills_late(boot: Bootstrap) -> None:
    async def later() -> None:
        await asyncio.sleep(0.2)
        await register(boot.session, boot.base, RANK)

    route, _ = await asyncio.gather(find(boot.session, boot.base, LAYOUT, 2), later())
    assert route == Route("10.0.0.1", 4000)


async def test_find_gives_up_in_time(boot: Bootstrap) -> None:
    with pytest.raises(TransferError, match="answered 503"):
        await find(boot.session, boot.base, LAYOUT, 0.2)
    with pytest.raises(TransferError, match="cannot be asked"):
        await find(boot.session, "http://127.0.0.1:1", LAYOUT, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"page_size": 32},
        {"kv_cache_dtype": "fp8"},
        {"kv_layout": "z"},
        {"page_bytes": 8},
        {"window_page_bytes": 8},
        {"state_bytes": 8},
        {"sizes": (1, 1, 2, 1)},
    ],
)
async def test_find_names_what_does_not_fit(boot: Bootstrap, change: dict[str, Any]) -> None:
    shape = dataclasses.replace(SHAPE, **change)
    await register(boot.session, boot.base, Rank((0, 0, 0, 0), "10.0.0.1", 4000, shape))
    if "sizes" in change:
        await register(boot.session, boot.base, Rank((0, 0, 1, 0), "10.0.0.1", 4001, shape))
    with pytest.raises(TransferError, match="does not match") as caught:
        await find(boot.session, boot.base, LAYOUT, 1)
    assert not caught.value.retryable
    assert next(iter(change)).replace("sizes", "attn_tp_size") in str(caught.value)


@pytest.mark.parametrize("body", ["[]", "no json", '{"page_size": 64}', '{"rank_ip": 3}'])
async def test_find_survives_any_answer(body: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=body)

    app = web.Application()
    app.router.add_get("/route", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with pytest.raises(TransferError):
            await find(session, str(server.make_url("")).rstrip("/"), LAYOUT, 0.1)


def test_base_url_takes_names_and_both_kinds_of_addresses() -> None:
    assert base_url("10.0.0.1", 1) == "http://10.0.0.1:1"
    assert base_url("prefill-0.svc", 1) == "http://prefill-0.svc:1"
    assert base_url("fd00::1", 1) == base_url("[fd00::1]", 1) == "http://[fd00::1]:1"


@pytest.mark.parametrize(
    ("caller", "ip", "taken", "why"),
    [
        ("10.9.9.9", "10.0.0.1", False, "the call comes from 10.9.9.9"),
        ("10.9.9.9", "10.9.9.9", True, "10.0.0.1 has its place"),
        ("10.9.9.9", "10.9.9.9", False, None),
        ("10.0.0.1", "10.0.0.1", True, None),
    ],
)
async def test_a_rank_registers_itself_and_keeps_its_place(caller: str, ip: str, taken: bool, why: str | None) -> None:
    """Or one request of a stranger takes every decode server away from this prefill until it restarts."""

    @web.middleware
    async def from_caller(request: web.Request, handler: Any) -> web.StreamResponse:
        answer: web.StreamResponse = await handler(request.clone(remote=caller))
        return answer

    table = BootstrapTable()
    async with TestServer(table.application()) as server, aiohttp.ClientSession() as session:
        base = str(server.make_url("")).rstrip("/")
        if taken:
            await register(session, base, RANK)
        strange = dataclasses.replace(RANK, ip=ip, port=9)
        app_of_caller = table.application()
        app_of_caller.middlewares.append(from_caller)
        async with TestServer(app_of_caller) as outside:
            there = str(outside.make_url("")).rstrip("/")
            if why is None:
                await register(session, there, strange)
            else:
                with pytest.raises(TransferError, match=why):
                    await register(session, there, strange)
        if taken or why is None:
            expected = Route(ip, 9) if why is None else Route("10.0.0.1", 4000)
            assert await find(session, base, LAYOUT, 1) == expected
