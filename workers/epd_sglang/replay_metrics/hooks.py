"""Where the engine's steps are counted."""

# ruff: noqa: PLC0415 - what needs torch or the engine is imported when a hook runs
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from epd_sglang.hook import Hook, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from epd_sglang.replay_metrics.recorder import Recorder


@dataclass
class Place:
    """Where a scheduler process keeps its recorder; other processes have none."""

    recorder: Recorder | None = None


class _RecorderHook(Hook):
    """A hook that changes nothing of what the engine does.

    Args:
        place: Shared by all hooks.
    """

    def __init__(self, place: Place) -> None:
        self.place = place


class Start(_RecorderHook):
    """The scheduler begins to serve."""

    target = Target("sglang.srt.managers.scheduler", "Scheduler.run_event_loop")
    signature = ("self",)
    reason = "counting begins when model and parallel groups are there"
    source = ("srt/managers/scheduler.py:1975", "srt/models/deepseek_v4.py:3880")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def run(scheduler: Any) -> Any:
            from epd_sglang.replay_metrics.start import recorder

            self.place.recorder = recorder(scheduler)
            return stock(scheduler)

        return run


class Step(_RecorderHook):
    """A step runs."""

    target = Target("sglang.srt.managers.tp_worker", "TpModelWorker.forward_batch_generation")
    reason = "the rows of a step are known on the host here, graphs or not"
    source = ("srt/managers/tp_worker.py:617", "srt/managers/schedule_batch.py:2495")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def forward(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = self.place.recorder
            mine = recorder is not None and batch is not None and not worker.is_draft_worker
            if recorder is None or not mine or not batch.forward_mode.is_extend_without_speculative():
                return stock(worker, batch, *args, **kwargs)
            recorder.begin()
            result = stock(worker, batch, *args, **kwargs)
            recorder.end(batch)
            return result

        return forward


class Fold(_RecorderHook):
    """Rows of prefix hits are put in front of a step."""

    target = Target("sglang.srt.model_executor.encoder_swa_replay", "fold_encoder_swa_replay")
    signature = ("worker", "batch")
    reason = "these rows were not scheduled, and so spare nothing"
    source = ("srt/model_executor/encoder_swa_replay.py:21", "srt/managers/tp_worker.py:646")

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def fold(worker: Any, batch: Any) -> Any:
            folded = stock(worker, batch)
            if folded is not None and self.place.recorder is not None:
                self.place.recorder.folded(folded.replay_lens)
            return folded

        return fold


class Tail(_RecorderHook):
    """The late layers' rows are laid out."""

    target = Target("sglang.kernels.ops.attention.dsv4.attn_metadata_kernels", "late_layer_tail_layout")
    signature = ("extend_lens_cpu", "seq_lens_cpu", "tail_len", "device", "whole_extend")
    reason = "their number is known on the host here, once a step"
    source = (
        "kernels/ops/attention/dsv4/attn_metadata_kernels.py:457", "srt/layers/attention/deepseek_v4_backend.py:1829",
    )  # fmt: skip

    @override
    def replacement(self, module: ModuleType, stock: Any) -> Callable[..., Any]:
        @functools.wraps(stock)
        def lay_out(**kwargs: Any) -> Any:
            layout = stock(**kwargs)
            if self.place.recorder is not None:
                self.place.recorder.laid_out(layout[1])
            return layout

        return lay_out


def hooks() -> tuple[Hook, ...]:
    """All of them, around one place."""
    place = Place()
    return (Start(place), Step(place), Fold(place), Tail(place))
