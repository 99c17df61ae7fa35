"""How many bytes a lane moves at once from and to each of a kernel's buffers, read from its LLVM IR.

The address of every access to global memory is followed back to the kernel parameters that it was computed from. What
is loaded starts over: an index that was read from one buffer and added to the address of another belongs to the latter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SCALAR: Final = r"(?:<(\d+) x )?(i\d+|double|float|half|bfloat|ptr)>?"
_VALUE: Final = re.compile(r"%[-\w.]+")
_ENTRY: Final = re.compile(r"^define \w+ void @\w+\((.*?)\) local_unnamed_addr", re.MULTILINE)
_NAMES: Final = re.compile(r"tt\.func public @\w+\((.*)\) attributes")
_ADDRESS: Final = re.compile(r"ptr addrspace\([18]\) (%[-\w.]+)")
# What NVIDIA's instructions look like inside inline assembly.
_PTX: Final = re.compile(
    r"(?<![a-z])(?:ld|st|red|atom)\.(?:[a-z]\w*\.)*?global(?:\.(?!v\d|[bfsu]\d)[a-zA-Z_:\d]+)*(?:\.v(\d))?\.[bfsu](\d+)"
)
_PTX_COPY: Final = re.compile(r"cp\.async\.c[ag]\.shared\.global[^;]*?0x([0-9a-f]+)")
# AMD's are intrinsics, or plain loads and stores.
_BUFFER: Final = re.compile(r"raw\.ptr\.buffer\.(?:load|store|atomic\.\w+)\.(?:v(\d+))?(?:bf|[if])(\d+)\(")
_TO_SHARED: Final = re.compile(r"load\.(?:async\.)?(?:to\.)?lds[.\w]*\(.*?ptr addrspace\(3\) [^,]*, i32 (\d+)")
_PLAIN: Final = re.compile(rf"(?:= load|\bstore) (?:volatile |atomic )*{_SCALAR}[, ].*?addrspace\(1\)")
_ATOMIC: Final = re.compile(rf"\batomicrmw (?:volatile )?\w+ ptr addrspace\(1\) [^,]*, {_SCALAR} ")
_BITS: Final = {"double": 64, "float": 32, "half": 16, "bfloat": 16, "ptr": 64}


def parameters(ttir: str) -> tuple[str, ...]:
    """The names of what a compiled kernel is called with, constants left out, in order.

    Args:
        ttir: The kernel in Triton's own IR.
    """
    header = _NAMES.search(ttir)
    assert header is not None, "no entry function in the TTIR"
    return tuple(re.findall(r"%([\w.]+): ", header[1]))


def widths(llir: str, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Bytes a lane moves with each access, by the parameter that points at the buffer; rising, without repeats.

    Args:
        llir: The optimised LLVM IR of one kernel.
        names: Of its parameters; those behind them (scratch memory) are left out.
    """
    entry = _ENTRY.search(llir)
    assert entry is not None, "no entry function in the LLVM IR"
    body = llir[entry.end() : llir.index("\n}", entry.end())].splitlines()
    pointers = {
        value: frozenset([name])
        for part, name in zip(_arguments(entry[1]), names, strict=False)
        if part.startswith("ptr")
        for value in _VALUE.findall(part)
    }
    moved: dict[str, set[int]] = defaultdict(set)
    origins = _origins(body, pointers)
    for line in body:
        for width in _accesses(line):
            for address in _ADDRESS.findall(line):
                for name in origins.get(address, ()):
                    moved[name].add(width)
    return {name: tuple(sorted(moved[name])) for name in names if name in moved}


def _arguments(text: str) -> list[str]:
    """Split an argument list; attributes may hold commas."""
    return re.split(r", (?=(?:ptr|i\d+|float|double|half|bfloat|<)\b)", text)


def _origins(body: Sequence[str], known: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The parameters that each value's address was computed from; loops make a second look necessary."""
    steps = []
    for line in body:
        value, equals, expression = line.strip().partition(" = ")
        if equals and not any(_accesses(line)):
            steps.append((value, _VALUE.findall(expression)))
    origins = dict(known)
    changed = True
    while changed:
        changed = False
        for value, operands in steps:
            merged = frozenset[str]().union(*(origins[operand] for operand in operands if operand in origins))
            if merged - origins.get(value, frozenset()):
                origins[value] = merged | origins.get(value, frozenset())
                changed = True
    return origins


def _accesses(line: str) -> Iterator[int]:
    """Bytes a lane of the accesses to global memory in a line of LLVM IR."""
    if "asm " in line:
        for count, bits in _PTX.findall(line):
            yield int(count or 1) * int(bits) // 8
        yield from (int(size, 16) for size in _PTX_COPY.findall(line))
        return
    for count, bits in _BUFFER.findall(line):
        yield int(count or 1) * int(bits) // 8
    yield from (int(size) for size in _TO_SHARED.findall(line))
    for count, kind in (*_PLAIN.findall(line), *_ATOMIC.findall(line)):
        yield int(count or 1) * (_BITS.get(kind) or int(kind[1:])) // 8
