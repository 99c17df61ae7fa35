"""Read what AMD's compiler made of a kernel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from epd_kernels.gate.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Mapping

# One compute unit's, CDNA 3 and CDNA 4 ISA: four SIMDs, each with 512 registers a lane and at most 8 waves.
_SIMDS: Final = 4
_REGISTERS: Final = 512
_WAVES: Final = 8


def occupancy(*, registers: int, shared: int, warps: int, local: int) -> int:
    """Workgroups that fit on a compute unit at once.

    Args:
        registers: Of a lane, vector and accumulation registers together; a wave takes them in steps of 8.
        shared: Bytes of LDS of a workgroup.
        warps: Waves of a workgroup.
        local: Bytes of LDS of a compute unit.
    """
    waves = min(_REGISTERS // (-(-max(registers, 1) // 8) * 8), _WAVES)
    fits = waves * _SIMDS // warps
    return min(fits, local // shared) if shared else fits


def read(compiled: Any, access: Mapping[str, tuple[int, ...]], local: int) -> Figures:
    """The figures of a compiled kernel.

    Args:
        compiled: Triton's compiled kernel.
        access: See `Figures`.
        local: Bytes of LDS of a compute unit.
    """
    metadata, code = compiled.metadata, compiled.asm["amdgcn"]
    registers = _number(r"^; TotalNumVgprs: (\d+)", code)
    return Figures(
        kernel=metadata.name,
        registers=registers,
        spills=_number(r"\.vgpr_spill_count: +(\d+)", code),
        stack=_number(r"\.private_segment_fixed_size: (\d+)", code),
        shared=metadata.shared,  # the code reads 0: LDS is given at launch
        barriers=len(re.findall(r"^\s+s_barrier", code, re.MULTILINE)),
        occupancy=occupancy(registers=registers, shared=metadata.shared, warps=metadata.num_warps, local=local),
        matrix="mfma" if re.search(r"^\s+v_s?mfma", code, re.MULTILINE) else "none",
        access=access,
    )


def _number(pattern: str, code: str) -> int:
    match = re.search(pattern, code, re.MULTILINE)
    assert match is not None, f"no {pattern} in the code"
    return int(match[1])
