"""The bootstrap table of a prefill server: where its ranks listen and what their pages look like.

Protocol as SGLang's: ``PUT /route`` per rank; ``GET /route`` with all of ``prefill_dp_rank``, ``prefill_cp_rank``,
``target_tp_rank`` and ``target_pp_rank`` -1 returns the server's shape (503 until every rank has registered), with real
ranks one rank's address (404 when unknown). ``GET /health`` says only that the listener is up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from epd_workers.reference.transfer.body import read_json

QUERY = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
MAX_BODY_BYTES = 64 << 10
MAX_RANKS = 1024
MAX_BYTES = 1 << 31


@dataclass(frozen=True)
class Shape:
    """What all ranks of one prefill server share.

    Attributes:
        sizes: Ranks per dimension: data (or attention data), context, tensor, pipeline.
        page_size: Tokens in a page.
        kv_cache_dtype: Format of the pages.
        kv_layout: Digest of everything else the bytes depend on.
        page_bytes: Bytes of a page's global entries, 0 when the rank does not say; likewise the next two.
        window_page_bytes: Bytes of a page's window rows.
        state_bytes: Bytes of what an odd length leaves pending.
        load_balance_method: How the server spreads rooms over data ranks.
        prefill_http_port: The server's own HTTP port.
    """

    sizes: tuple[int, int, int, int]
    page_size: int
    kv_cache_dtype: str
    kv_layout: str
    page_bytes: int
    window_page_bytes: int
    state_bytes: int
    load_balance_method: str
    prefill_http_port: int

    def state(self) -> dict[str, Any]:
        """Return the shape as ``GET /route`` reports it."""
        dp, cp, tp, pp = self.sizes
        return {
            "dp_size": dp,
            "attn_cp_size": cp,
            "attn_tp_size": tp,
            "pp_size": pp,
            "page_size": self.page_size,
            "page_bytes": self.page_bytes,
            "window_page_bytes": self.window_page_bytes,
            "state_bytes": self.state_bytes,
            "kv_cache_dtype": self.kv_cache_dtype,
            "kv_layout": self.kv_layout,
            "follow_bootstrap_room": self.load_balance_method == "follow_bootstrap_room",
            "prefill_http_port": self.prefill_http_port,
        }


@dataclass(frozen=True)
class Rank:
    """One rank's registration."""

    position: tuple[int, int, int, int]
    ip: str
    port: int
    shape: Shape

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Read the body of ``PUT /route``.

        Raises:
            ValueError: Names every field that is missing or wrong.
        """
        if not isinstance(data, Mapping):
            raise ValueError("the body must be a JSON object")  # noqa: TRY004 - one error type
        fields = _Fields(data)
        dp = "system_dp" if fields.number("system_dp_size", 1, MAX_RANKS, default=1) > 1 else "attn_dp"
        dimensions = (dp, "attn_cp", "attn_tp", "pp")
        sizes = tuple(fields.number(f"{name}_size", 1, MAX_RANKS, default=1) for name in dimensions)
        position = tuple(
            fields.number(f"{name}_rank", 0, size - 1, default=0) for name, size in zip(dimensions, sizes, strict=True)
        )
        shape = Shape(
            sizes=(sizes[0], sizes[1], sizes[2], sizes[3]),
            page_size=fields.number("page_size", 1, 1 << 20),
            kv_cache_dtype=fields.text("kv_cache_dtype"),
            kv_layout=fields.text("kv_layout"),
            page_bytes=fields.number("page_bytes", 0, MAX_BYTES, default=0),
            window_page_bytes=fields.number("window_page_bytes", 0, MAX_BYTES, default=0),
            state_bytes=fields.number("state_bytes", 0, MAX_BYTES, default=0),
            load_balance_method=fields.text("load_balance_method", default="follow_bootstrap_room"),
            prefill_http_port=fields.number("prefill_http_port", 0, 65535, default=0),
        )
        rank = cls(
            (position[0], position[1], position[2], position[3]),
            fields.text("rank_ip"),
            fields.number("rank_port", 1, 65535),
            shape,
        )
        fields.check()
        return rank

    def state(self) -> dict[str, Any]:
        """Return the registration as the body of ``PUT /route``."""
        dp, cp, tp, pp = self.position
        shape = self.shape.state()
        return {
            "attn_dp_size": shape["dp_size"],
            "attn_dp_rank": dp,
            "attn_cp_size": shape["attn_cp_size"],
            "attn_cp_rank": cp,
            "attn_tp_size": shape["attn_tp_size"],
            "attn_tp_rank": tp,
            "pp_size": shape["pp_size"],
            "pp_rank": pp,
            "system_dp_size": 1,
            "system_dp_rank": 0,
            "rank_ip": self.ip,
            "rank_port": self.port,
            "page_size": self.shape.page_size,
            "page_bytes": self.shape.page_bytes,
            "window_page_bytes": self.shape.window_page_bytes,
            "state_bytes": self.shape.state_bytes,
            "kv_cache_dtype": self.shape.kv_cache_dtype,
            "kv_layout": self.shape.kv_layout,
            "load_balance_method": self.shape.load_balance_method,
            "prefill_http_port": self.shape.prefill_http_port,
        }


class _Fields:
    """Reads fields of a JSON object and gathers what is wrong with them."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._faults: list[str] = []

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._faults.append(f"{name} is {value!r}: must be an integer from {low} to {high}")
            return low
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._data.get(name, default)
        if not isinstance(value, str) or not 0 < len(value) <= 256:
            self._faults.append(f"{name} must be a string of 1 to 256 characters")
            return ""
        return value

    def check(self) -> None:
        if self._faults:
            raise ValueError("; ".join(self._faults))


def _from_here(request: web.Request) -> bool:
    """Whether the caller is on this machine: then its address is a loopback one, or the one that it called."""
    name = request.transport.get_extra_info("sockname") if request.transport else None
    caller = request.remote or ""
    return (name is not None and bool(name[0] == caller)) or caller.startswith("127.") or caller == "::1"


class BootstrapTable:
    """The registered ranks of one prefill server, and the HTTP routes that fill and report them."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int, int, int, int], Rank] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank of the server has registered."""
        shape = self._shape()
        if shape is None:
            return False
        dp, cp, tp, pp = shape.sizes
        return len(self._ranks) == dp * cp * tp * pp

    def application(self) -> web.Application:
        """Return the routes of the bootstrap port."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_put("/route", self._put)
        app.router.add_get("/route", self._get)
        return app

    def _shape(self) -> Shape | None:
        return next(iter(self._ranks.values())).shape if self._ranks else None

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _put(self, request: web.Request) -> web.Response:
        try:
            rank = Rank.parse(await read_json(request))
        except ValueError as error:
            return web.Response(status=400, text=f"cannot register this rank: {error}")
        refusal = "" if _from_here(request) else self._refusal(rank, request.remote or "")
        if refusal:
            return web.Response(status=403, text=f"cannot register this rank: {refusal}")
        shape = self._shape()
        if shape is not None and shape != rank.shape and set(self._ranks) != {rank.position}:
            return web.Response(status=400, text="cannot register this rank: it differs from the ranks before it")
        self._ranks[rank.position] = rank
        return web.Response(text="OK")

    def _refusal(self, rank: Rank, caller: str) -> str:
        """Why ``caller`` may not register ``rank``; empty when it may.

        Nothing else on this port distinguishes a rank from a stranger that would draw all decode servers to itself: a
        rank registers its own address, and its place is then taken.
        """
        if caller != rank.ip:
            return f"its address is {rank.ip}, the call comes from {caller}"
        holder = self._ranks.get(rank.position)
        return f"{holder.ip} has its place" if holder is not None and holder.ip != caller else ""

    async def _get(self, request: web.Request) -> web.Response:
        try:
            dp, cp, tp, pp = (int(request.query[name]) for name in QUERY)
        except (KeyError, ValueError):
            return web.Response(status=400, text=f"give integers for {', '.join(QUERY)}")
        if (dp, cp, tp, pp) == (-1, -1, -1, -1):
            shape = self._shape()
            if shape is None or not self.complete:
                return web.Response(status=503, text=f"{len(self._ranks)} ranks have registered, not all")
            return web.json_response(shape.state())
        rank = self._ranks.get((dp, cp, tp, pp))
        if rank is None:
            return web.Response(status=404, text="no such rank has registered")
        return web.json_response({"rank_ip": rank.ip, "rank_port": rank.port})
