"""Makes one scheduler process's pool, or says in one log line why it has none."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from sglang.srt.runtime_context import get_disagg, get_exec, get_parallel, get_serving
from sglang.srt.utils import broadcast_pyobj

import epd_sglang
from epd_sglang import engine
from epd_sglang.window_pool import checkpoint
from epd_sglang.window_pool.conditions import Facts, obstacles
from epd_sglang.window_pool.exactness import ExactPages
from epd_sglang.window_pool.extent import WINDOW
from epd_sglang.window_pool.lookups import Lookups
from epd_sglang.window_pool.outbox import Outbox
from epd_sglang.window_pool.pool import EnginePool, Publishing
from epd_sglang.window_pool.request import Chains
from epd_workers.swapool.connection import Connection
from epd_workers.swapool.key import Namespace
from epd_workers.swapool.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_sglang.window_pool.lookups import Verdict

REMEMBERED: Final = 4
"""Times the pages that the engine has room for, in remembered names of pages."""
_log = logging.getLogger(__name__)


def engine_pool(scheduler: Any, settings: Path) -> EnginePool | None:
    """The pool of a scheduler that is about to serve; none, and a log line, where it can have none.

    Args:
        scheduler: The engine's `Scheduler`, made whole.
        settings: The file of `epd_workers.swapool.settings`, which may appear, change and go while the engine runs.
    """
    runner = scheduler.tp_worker.model_runner
    ring: Any = getattr(runner.token_to_kv_pool, "request_window", None)
    reasons = obstacles(_facts(runner, ring))
    if reasons:
        _log.warning("no window pool: %s", "; ".join(reasons))
        return None
    late = runner.model.model.late_layer_start
    layers = ring.tags.shape[0] if late is None else late
    chains = Chains(scheduler.page_size)
    connection = _connection(settings, scheduler, ring, layers) if get_parallel().attn_tp_rank == 0 else None
    # With fewer rows behind the hit, the late layers would look back on rows in front of it, which the pool lacks.
    lookups = Lookups(connection, chains, _share(scheduler), least=1 if late is None else WINDOW)
    publishing = None
    if connection is not None:
        capacity = REMEMBERED * scheduler.max_total_num_tokens // scheduler.page_size
        stream = torch.cuda.Stream(ring.tags.device) if ring.tags.is_cuda else None
        publishing = Publishing(connection, Outbox(connection), ExactPages(capacity), stream)
    return EnginePool(lookups, chains, layers=layers, page_size=scheduler.page_size, publishing=publishing)


def _facts(runner: Any, ring: Any) -> Facts:
    manager = getattr(runner, "ngram_embedding_manager", None)
    return Facts(
        replays=ring is not None and bool(get_exec().features.enable_encoder_swa_bounded_replay),
        folds=runner.attn_backend.folds_encoder_swa_replay,
        role=get_disagg().disaggregation_mode,
        attention_ranks=get_parallel().attn_dp_size,
        staged_engram=manager is not None and manager.engram_stager is not None,
    )


def _connection(path: Path, scheduler: Any, ring: Any, layers: int) -> Connection | None:
    model = Path(scheduler.model_config.model_path)
    try:
        weights = checkpoint.digest(model)
    except OSError as error:
        _log.error("no window pool: the checkpoint cannot be told from others: %s", error)
        return None
    layout = ring.state.kv_layout
    space = Namespace(
        model=get_serving().served_model_name,
        checkpoint=weights,
        engine=f"sglang/{engine.VERSION}/epd/{epd_sglang.__version__}/{scheduler.model_config.dtype}",
        layout=layout.encoding.value,
        row_format="fp8",
        first_layer=0,
        layers=layers,
        window=WINDOW,
        row_bytes=layout.bytes_per_token,
        page_size=scheduler.page_size,
    )
    return Connection(path, space, Metrics(), remote_only=False)


def _share(scheduler: Any) -> Callable[[Verdict], Verdict]:
    """Give the ranks of one attention group the verdict of the first."""
    group = scheduler.attn_tp_group
    if get_parallel().attn_tp_size == 1:
        return lambda verdict: verdict

    def share(verdict: Verdict) -> Verdict:
        (shared,) = broadcast_pyobj([verdict], group.rank, group.cpu_group, src=group.ranks[0])
        return shared  # type: ignore[no-any-return]

    return share
