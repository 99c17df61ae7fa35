"""Makes one scheduler process's recorder."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_disagg, get_exec, get_memory, get_parallel, get_schedule

from epd_sglang.replay_metrics.metrics import Metrics
from epd_sglang.replay_metrics.recorder import Recorder
from epd_sglang.replay_metrics.tally import Limits, Tally


def recorder(scheduler: Any) -> Recorder | None:
    """The recorder of a scheduler that is about to serve; none where others count, or where no prompt runs.

    Args:
        scheduler: The engine's `Scheduler`, made whole.
    """
    model = scheduler.tp_worker.model_runner.model.model
    late = getattr(model, "late_layer_start", None)
    if get_parallel().attn_tp_rank or get_disagg().disaggregation_mode == "decode" or not hasattr(model, "layers"):
        return None
    sources = getattr(model.config, "kv_source_layer_ids", None) or [0]
    split, layers, features = max(sources), model.config.num_hidden_layers, get_exec().features
    limits = Limits(
        encoder_layers=split,
        decoder_layers=layers - split,
        encoder_replay=bool(features.enable_encoder_swa_bounded_replay),
        decoder_replay=late is not None,
        prefix_cache=not get_memory().disable_radix_cache,
        chunk=get_schedule().chunked_prefill_size,
    )
    return Recorder(Tally(limits), Metrics())
