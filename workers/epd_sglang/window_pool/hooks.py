"""Where the engine meets the pool of windows."""

# ruff: noqa: PLC0415 - what needs torch or the engine is imported when a hook runs
from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from epd_sglang.hook import Hook, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from epd_sglang.window_pool.pool import EnginePool

SETTINGS: Final = "EPD_SWA_POOL"
"""Names the file of the pool's settings; where it is not set, nothing of the engine changes."""
_log = logging.getLogger(__name__)
_REPLAY: Final = "sglang.srt.model_executor.encoder_swa_replay"


@dataclass
class Place:
    """Where a scheduler process keeps its pool; other processes have none."""

    pool: EnginePool | None = None


class _PoolHook(Hook):
    """A hook that does nothing where there is no pool.

    Args:
        place: Shared by all hooks.
    """

    def __init__(self, place: Place) -> None:
        self.place = place


class Start(_PoolHook):
    """The scheduler begins to serve."""

    target = Target("sglang.srt.managers.scheduler", "Scheduler.run_event_loop")
    signature = ("self",)
    reason = "the pool needs the model, its caches and the parallel groups, all of which are made by now"
    source = (
        "srt/managers/scheduler.py:1975", "srt/managers/scheduler.py:1248", "srt/models/deepseek_v4.py:3880",
        "srt/model_executor/model_runner_components/ngram_embedding_manager.py:74",
    )  # fmt: skip

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def run(scheduler: Any) -> Any:
            self.place.pool = _pool(scheduler)
            return stock(scheduler)

        return run


def _pool(scheduler: Any) -> EnginePool | None:
    """The pool that the environment asks for; without the packages of its client, a log line says what is missing."""
    settings = os.environ.get(SETTINGS)
    if not settings:
        return None
    try:
        from epd_sglang.window_pool.start import engine_pool
    except ModuleNotFoundError as error:
        _log.error("no window pool: %s; install it for the engine's Python", error)
        return None
    return engine_pool(scheduler, Path(settings))


class Queue(_PoolHook):
    """A request is queued."""

    target = Target("sglang.srt.managers.scheduler", "Scheduler._add_request_to_queue")
    signature = ("self", "req", "is_retracted")
    reason = "its window is asked for while it waits"
    source = ("srt/managers/scheduler.py:3480", "srt/mem_cache/common.py:221")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        @functools.wraps(stock)
        def add(scheduler: Any, req: Any, is_retracted: bool = False) -> None:
            stock(scheduler, req, is_retracted)
            pool = self.place.pool
            if pool is not None and not req.finished() and req.to_finish is None:
                from sglang.srt.mem_cache.common import match_kv_cache

                # On every rank alike: a match touches the tree, and all ranks must evict the same.
                match_kv_cache(req, scheduler.tree_cache)
                pool.lookups.ask(req, req.prefix_len)

        return add


class Charge(_PoolHook):
    """A hit is charged the rows that it runs again."""

    target = Target("sglang.srt.managers.schedule_policy", "PrefillAdder._replay_len")
    signature = ("self", "req", "prefix_len")
    reason = "rows that do not run would move the ends of chunks, and with them the results of decoder replay"
    source = ("srt/managers/schedule_policy.py:954", "srt/managers/schedule_policy.py:1610")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., int]:
        @functools.wraps(stock)
        def charge(adder: Any, req: Any, prefix_len: int) -> int:
            rows: int = stock(adder, req, prefix_len)
            pool = self.place.pool
            return 0 if rows and pool is not None and pool.lookups.spares(req, prefix_len) else rows

        return charge


class Fill(_PoolHook):
    """The engine lists the hits that it replays."""

    target = Target(_REPLAY, "_reset_windows_and_collect_hits")
    signature = ("batch", "window")
    reason = "a hit whose window came from the pool is not replayed"
    source = ("srt/model_executor/encoder_swa_replay.py:128", "srt/mem_cache/dsv41_request_window.py:236")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def collect(*, batch: Any, window: Any) -> Any:
            replays = stock(batch=batch, window=window)
            pool = self.place.pool
            return replays if pool is None else pool.fill(batch, window, replays)

        return collect


class Step(_PoolHook):
    """A step begins."""

    target = Target(_REPLAY, "fold_encoder_swa_replay")
    signature = ("worker", "batch")
    reason = "what is captured belongs to one step, and this is called at the start of every step, decode included"
    source = ("srt/model_executor/encoder_swa_replay.py:21", "srt/managers/tp_worker.py:646")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def fold(worker: Any, batch: Any) -> Any:
            if self.place.pool is not None:
                self.place.pool.begin()
            return stock(worker, batch)

        return fold


class Commit(_PoolHook):
    """A layer keeps the last rows of its step, and gives the others up."""

    target = Target("sglang.srt.mem_cache.dsv41_request_window", "RequestWindow.commit")
    signature = ("self", "layer")
    reason = "here all rows of the step are still there, in every layer"
    source = (
        "srt/mem_cache/dsv41_request_window.py:386", "srt/layers/attention/deepseek_v4_backend.py:4141",
    )  # fmt: skip

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., None]:
        @functools.wraps(stock)
        def commit(window: Any, layer: int) -> None:
            if self.place.pool is not None:
                self.place.pool.committed(window, layer)
            stock(window, layer)

        return commit


def hooks() -> tuple[Hook, ...]:
    """All of them, around one place."""
    place = Place()
    return (Start(place), Queue(place), Charge(place), Fill(place), Step(place), Commit(place))
