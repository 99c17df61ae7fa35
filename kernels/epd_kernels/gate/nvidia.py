"""Read what NVIDIA's compiler made of a kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import triton.backends.nvidia
from triton.backends.nvidia.compiler import get_ptxas

from epd_kernels.gate.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOOLS: Final = Path(triton.backends.nvidia.__file__).parent / "bin"
# One multiprocessor's, compute capability 9.0 and 10.0 (CUDA C++ Programming Guide, technical specifications).
_REGISTERS: Final = 65536
_WARPS: Final = 64
_PROGRAMS: Final = 32
_SHARED: Final = 228 * 1024
_RESERVED: Final = 1024  # of shared memory, for every program
_TENSOR_COLUMNS: Final = 512


def occupancy(*, registers: int, shared: int, warps: int, columns: int = 0) -> int:
    """Programs that fit on a multiprocessor at once.

    Args:
        registers: Of a lane; a warp takes them in steps of 256.
        shared: Bytes of a program.
        warps: Of a program.
        columns: Of tensor memory of a program.
    """
    of_warp = -(-registers * 32 // 256) * 256
    fits = [_REGISTERS // (of_warp * warps), _SHARED // (shared + _RESERVED), _WARPS // warps, _PROGRAMS]
    return min([*fits, _TENSOR_COLUMNS // columns] if columns else fits)


def matrix(ptx: str) -> str:
    """The best matrix instruction in PTX."""
    for name, sign in (("tcgen05", "tcgen05.mma"), ("wgmma", "wgmma.mma_async"), ("mma.sync", "mma.sync")):
        if sign in ptx:
            return name
    return "none"


def barriers(ptx: str) -> int:
    """Barriers of the whole program in PTX."""
    return len(re.findall(r"^\s*(?:@!?%p\d+ )?(?:bar|barrier)(?:\.cta)?\.sync", ptx, re.MULTILINE))


def read(compiled: Any, access: Mapping[str, tuple[int, ...]]) -> Figures:
    """The figures of a compiled kernel.

    Args:
        compiled: Triton's compiled kernel.
        access: See `Figures`.
    """
    metadata = compiled.metadata
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _run(str(_TOOLS / "cuobjdump"), "-res-usage", str(cubin))
        match = re.search(rf"Function {re.escape(metadata.name)}:\s+REG:(\d+) STACK:(\d+) ", usage)
        assert match is not None, f"cuobjdump says nothing about {metadata.name}: {usage}"
        registers, stack = int(match[1]), int(match[2])
        # Without a stack nothing can be spilled, so most kernels are not assembled a second time.
        spills = _spills(compiled, Path(folder)) if stack else 0
    ptx = compiled.asm["ptx"]
    return Figures(
        kernel=metadata.name,
        registers=registers,
        spills=spills,
        stack=stack,
        shared=metadata.shared,
        barriers=barriers(ptx),
        occupancy=occupancy(
            registers=registers,
            shared=metadata.shared,
            warps=metadata.num_warps,
            columns=getattr(metadata, "tmem_size", 0),
        ),
        matrix=matrix(ptx),
        access=access,
    )


def _spills(compiled: Any, folder: Path) -> int:
    """Bytes of spill stores and loads, as the assembler reports them."""
    source = folder / "kernel.ptx"
    source.write_text(compiled.asm["ptx"])
    assembler = str(get_ptxas(compiled.metadata.target.arch).path)
    target = re.search(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)
    assert target is not None, "PTX without a target"
    output = _run(assembler, "-v", f"--gpu-name={target[1]}", str(source), "-o", str(folder / "again.cubin"))
    return sum(int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", output))


def _run(tool: str, *arguments: str) -> str:
    """What a tool in Triton's package says.

    Raises:
        RuntimeError: It failed.
    """
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 Triton's own
    if done.returncode:
        raise RuntimeError(f"{tool} failed: {done.stderr or done.stdout}")
    return done.stdout + done.stderr
