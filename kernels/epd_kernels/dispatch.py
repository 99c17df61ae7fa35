"""Which implementation of the operations an engine runs: torch everywhere, Triton where its kernels can run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, get_args

import torch

from epd_kernels.attention import reference as attention
from epd_kernels.candidate_blocks import reference as candidate_blocks
from epd_kernels.compressor import reference as compressor
from epd_kernels.formats import reference as formats
from epd_kernels.index_scores import reference as index_scores
from epd_kernels.row_gather import reference as row_gather
from epd_kernels.selection import reference as selection
from epd_kernels.tail_layout import reference as tail_layout
from epd_kernels.top_entries import reference as top_entries
from epd_kernels.window_slots import reference as window_slots

if TYPE_CHECKING:
    from epd_kernels import signature

Name = Literal["torch", "triton"]
Wanted = Literal["auto", "torch", "triton"]
CHOICES: Final[tuple[str, ...]] = get_args(Wanted)

_log = logging.getLogger(__name__)


class Unavailable(RuntimeError):
    """The wanted implementation cannot run here; the message names the way out."""


@dataclass(frozen=True)
class Operations:
    """One implementation of every operation; the fields' names are the functions'.

    Attributes:
        name: Which implementation.
        widest: The widest type that it computes in: what an engine that wants exactness holds its weights in.
    """

    name: Name
    widest: torch.dtype
    tail_layout: signature.TailLayout
    window_slots: signature.WindowSlots
    entry_slots: signature.EntrySlots
    gather_rows: signature.GatherRows
    pack: signature.Pack
    unpack: signature.Unpack
    pool_pairs: signature.PoolPairs
    attend: signature.Attend
    index_scores: signature.IndexScores
    candidate_blocks: signature.CandidateBlocks
    top_entries: signature.TopEntries
    select_entries: signature.SelectEntries


TORCH: Final = Operations(
    name="torch",
    widest=torch.float64,
    tail_layout=tail_layout.tail_layout,
    window_slots=window_slots.window_slots,
    entry_slots=window_slots.entry_slots,
    gather_rows=row_gather.gather_rows,
    pack=formats.pack,
    unpack=formats.unpack,
    pool_pairs=compressor.pool_pairs,
    attend=attention.attend,
    index_scores=index_scores.index_scores,
    candidate_blocks=candidate_blocks.candidate_blocks,
    top_entries=top_entries.top_entries,
    select_entries=selection.select_entries,
)
"""The torch operations, which run anywhere."""


def load(wanted: str, device: torch.device) -> Operations:
    """Choose the operations for tensors on a device.

    Args:
        wanted: "torch"; "triton", or an error where it cannot run; "auto": Triton on a GPU that there are tiles for,
            else torch. Which one it became is logged once.
        device: Where the tensors are.

    Raises:
        Unavailable: Triton is wanted and cannot run on this device.
        ValueError: The choice is unknown.
    """
    if wanted not in CHOICES:
        raise ValueError(f"kernels are {wanted!r}: must be one of {', '.join(CHOICES)}")
    if wanted == "torch":
        return TORCH
    if wanted == "auto" and device.type == "cpu":
        _tell(logging.INFO, "torch", "the device is a CPU")
        return TORCH
    hindrance = _hindrance(device)
    if hindrance and wanted == "triton":
        raise Unavailable(hindrance)
    if hindrance:
        _tell(logging.WARNING, "torch", hindrance)
        return TORCH
    if wanted == "auto":
        _tell(logging.INFO, "triton", "there are tiles for this GPU")
    return _triton()


def _hindrance(device: torch.device) -> str:
    """Why Triton cannot run on a device, and what would help; empty if it can."""
    try:
        import triton  # noqa: PLC0415 a CPU server needs no Triton

        from epd_kernels.architecture import UnknownArchitecture, current  # noqa: PLC0415
    except ImportError:
        return "Triton is not installed: install triton, or use the torch operations"
    if triton.knobs.runtime.interpret:
        return ""
    if device.type == "cpu":
        return (
            "the device is a CPU, on which Triton's kernels run only in an interpreter: set TRITON_INTERPRET=1 in the "
            "environment (slow, for tests), or use the torch operations"
        )
    if device.type != "cuda":  # what torch calls a HIP device, too
        return f"the device is {device.type}: Triton's kernels run only on CUDA and HIP; use the torch operations"
    try:
        current()
    except UnknownArchitecture as error:
        return str(error)
    return ""


@cache
def _tell(level: int, name: Name, reason: str) -> None:
    _log.log(level, "kernels: %s, chosen automatically: %s", name, reason)


def _triton() -> Operations:
    """The Triton operations."""
    # Imported late: these modules compile, and a CPU server needs no Triton.
    from epd_kernels.attention import launch as attention  # noqa: PLC0415
    from epd_kernels.candidate_blocks import launch as candidate_blocks  # noqa: PLC0415
    from epd_kernels.compressor import launch as compressor  # noqa: PLC0415
    from epd_kernels.formats import launch as formats  # noqa: PLC0415
    from epd_kernels.index_scores import launch as index_scores  # noqa: PLC0415
    from epd_kernels.row_gather import launch as row_gather  # noqa: PLC0415
    from epd_kernels.selection import launch as selection  # noqa: PLC0415
    from epd_kernels.tail_layout import launch as tail_layout  # noqa: PLC0415
    from epd_kernels.top_entries import launch as top_entries  # noqa: PLC0415
    from epd_kernels.window_slots import launch as window_slots  # noqa: PLC0415

    return Operations(
        name="triton",
        widest=torch.float32,
        tail_layout=tail_layout.tail_layout,
        window_slots=window_slots.window_slots,
        entry_slots=window_slots.entry_slots,
        gather_rows=row_gather.gather_rows,
        pack=formats.pack,
        unpack=formats.unpack,
        pool_pairs=compressor.pool_pairs,
        attend=attention.attend,
        index_scores=index_scores.index_scores,
        candidate_blocks=candidate_blocks.candidate_blocks,
        top_entries=top_entries.top_entries,
        select_entries=selection.select_entries,
    )
