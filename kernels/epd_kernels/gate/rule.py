"""Rules for every shipped kernel, whatever was measured: `--write` cannot loosen these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epd_kernels.gate.figures import Figures
    from epd_kernels.gate.target import Target

STREAMS: Final[tuple[tuple[str, str, Mapping[str, int]], ...]] = (
    ("tail_layout_kernel", "", {}),
    ("window_slots_kernel", "", {}),
    ("entry_slots_kernel", "", {}),
    ("gather_rows_kernel", "flags", {}),
    ("gather_rows_kernel", "weights", {}),
    ("gather_rows_kernel", "", {"source": 16, "output": 16}),
    # A key of the index and its scale are 68 bytes: row by row, every other one begins in the middle of 8 bytes.
    ("pack_kernel", "index by row", {"values": 16, "data": 4}),
    ("pack_kernel", "index query", {"values": 16, "data": 4}),
    ("pack_kernel", "", {"values": 16, "data": 16}),
    ("unpack_kernel", "index by row", {"data": 4, "output": 16}),
    ("unpack_kernel", "index query", {"data": 4, "output": 16}),
    ("unpack_kernel", "", {"data": 16, "output": 16}),
    ("pool_pairs_kernel", "", {"projected": 16, "pending": 16, "latents": 16, "left": 16}),
    # CDNA 3's matrix instruction leaves four values of a row in a lane: 8 bytes of output.
    ("attend_kernel", "entries", {"query": 16, "window": 16, "entries": 16, "output": 8}),
    ("attend_kernel", "", {"query": 16, "window": 16, "output": 8}),
    ("merge_kernel", "", {"parts": 16}),
    # Each row gathers the keys of its own blocks: the compiler spreads them over lanes, 4 bytes each.
    ("index_scores_kernel", "candidates", {"keys": 4, "values": 4}),
    ("index_scores_kernel", "", {"keys": 16, "values": 4}),
    ("candidate_blocks_kernel", "", {"maxima": 16}),
    ("top_entries_kernel", "", {"values": 16}),
)
"""The buffers that most bytes move through, and how many of them a lane must move at once: by kernel and a part of the
launch's name, the first that fits counts. A pool's codes are meant: its scales are few. A launch without streams moves
so little that its width does not matter."""

MATRIX: Final = ("attend_kernel", "index_scores_kernel")
"""Kernels that must use a matrix instruction."""


def streams(launch: str, kernel: str) -> Mapping[str, int] | None:
    """The streams of a launch; None if `STREAMS` does not list them."""
    return next((widths for name, part, widths in STREAMS if name == kernel and part in launch), None)


def breaches(launch: str, figures: Figures, target: Target) -> Iterator[str]:
    """One line for each rule that a kernel breaks: figure and limit."""
    if figures.spills > target.spills:
        yield f"spills {figures.spills}, limit {target.spills}"
    if figures.shared > target.shared:
        yield f"shared memory {figures.shared} bytes, limit {target.shared}"
    if figures.occupancy < 1:
        yield "occupancy 0, limit 1"
    if figures.kernel in MATRIX and figures.matrix == "none":
        yield "no matrix instruction, limit any"
    named = streams(launch, figures.kernel)
    if named is None:
        yield "streams unknown, limit an entry in gate/rule.py"
    for name, least in (named or {}).items():
        widest = max(figures.access.get(name, (0,)))
        if widest < least:
            yield f"access to {name} {widest} bytes a lane, limit {least}"
