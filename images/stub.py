"""Leaves the CUDA half out of a torch wheel, for images that compute on CPUs only.

The x86 wheel of the public index is the CUDA build: `import torch` loads some 3 GB of libraries that a CPU never calls.
The one tricky idea: no binary of torch is patched. The libraries go, and one tiny shared object takes their place; it
defines every symbol that the remaining libraries would miss. A function among them says so on stderr and stops the
process; type information and virtual tables are real enough for the bindings that torch registers at import. Only
`torch.distributed` is switched off, as in a torch built without it: its bindings build NCCL objects at import.

Run by path inside the build of the worker image: `stub.py SITE_PACKAGES`. Does nothing to a torch without CUDA. The
caller runs `smoke.py` afterwards, so a torch release that needs more than this fails the build, not a pod.
Format: System V ABI, chapter 4 and 5, and its AMD64 supplement; Itanium C++ ABI 2.9.5 (type information).
"""

# ruff: noqa: INP001, T201  (run by path, not imported as a package; what it prints ends in the build log)
from __future__ import annotations

import ctypes
import mmap
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DROPPED = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so")
"""Libraries of torch/lib that hold device code; libc10_cuda stays: it answers "there is no device" honestly."""
KEPT_NVIDIA = ("libcudart.so", "libcupti.so")
"""Small libraries that torch does call on a CPU: counting devices, and the profiler."""
MESSAGE = b"This image's torch computes on CPUs only: a CUDA function was called.\n"

WITHOUT_DISTRIBUTED = """for _name in ("_c10d_init", "_rpc_init", "_faulty_agent_init", "_dist_autograd_init"):
    if hasattr(torch._C, _name):
        delattr(torch._C, _name)
"""
SLOTS = ("_ZN4c10d15get_gil_checkerEv",)
"""Functions that torch calls at import to get at a variable it then sets: they return the address of a zeroed word."""

_IMPORT = "\nimport torch\n"
_X86_64 = 62
_DYNAMIC, _DYNSYM = 6, 11
_PAGE = 0x1000
_BUCKETS = 256
_DYNAMIC_ENTRIES = 10
_VTABLE_SLOTS = 64
_TABLE_SIZE = 8 * (2 + _VTABLE_SLOTS)
_CLASS_TYPE_INFO = "_ZTVN10__cxxabiv117__class_type_infoE"


@dataclass(frozen=True)
class Library:
    """What one shared object offers and asks for.

    Attributes:
        needed: File names it loads.
        defined: Names of the symbols it offers.
        undefined: Names of the symbols that must come from elsewhere; weak ones are left out.
    """

    needed: tuple[str, ...]
    defined: frozenset[str]
    undefined: frozenset[str]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def read(path: Path) -> Library:
    """Read the dynamic symbols of a 64-bit little-endian ELF file.

    Raises:
        ValueError: The file is something else.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        start = struct.unpack_from("<Q", data, 40)[0]
        size, count = struct.unpack_from("<HH", data, 58)
        sections = []
        for index in range(count):
            kind, offset, length, link = struct.unpack_from("<4xI16xQQI", data, start + index * size)
            sections.append(_Section(kind, offset, length, link))
        return _symbols(data, sections)


def _text(data: mmap.mmap, offset: int) -> str:
    return data[offset : data.find(b"\0", offset)].decode()


def _symbols(data: mmap.mmap, sections: list[_Section]) -> Library:
    by_kind = {section.kind: section for section in sections}
    needed: list[str] = []
    if dynamic := by_kind.get(_DYNAMIC):
        strings = sections[dynamic.link].offset
        for tag, value in struct.iter_unpack("<QQ", data[dynamic.offset : dynamic.offset + dynamic.size]):
            if tag == 1:
                needed.append(_text(data, strings + value))
    if not (table := by_kind.get(_DYNSYM)):
        return Library(tuple(needed), frozenset(), frozenset())
    defined, undefined, strings = set(), set(), sections[table.link].offset
    for name, info, section, _, _ in struct.iter_unpack("<IBxHQQ", data[table.offset : table.offset + table.size]):
        if section:
            defined.add(_text(data, strings + name))
        elif name and info >> 4 == 1:
            undefined.add(_text(data, strings + name))
    return Library(tuple(needed), frozenset(defined), frozenset(undefined))


def missing(libraries: Iterable[Library], system: Iterable[ctypes.CDLL]) -> frozenset[str]:
    """Name the symbols that `libraries` ask for and neither one of them nor `system` defines."""
    libraries, system = tuple(libraries), tuple(system)
    defined = frozenset[str]().union(*(library.defined for library in libraries))
    undefined = frozenset[str]().union(*(library.undefined for library in libraries))
    return frozenset(name for name in undefined - defined if not any(hasattr(handle, name) for handle in system))


def _trap(length: int) -> bytes:
    """Machine code, x86-64: write the `length` bytes behind it to stderr, then an invalid instruction."""
    code = b"\xb8\x01\0\0\0" + b"\xbf\x02\0\0\0"  # mov eax, 1 (write); mov edi, 2
    lea = b"\x48\x8d\x35"  # lea rsi, [rip + message]
    tail = b"\xba" + struct.pack("<I", length) + b"\x0f\x05" + b"\x0f\x0b"  # mov edx, length; syscall; ud2
    return code + lea + struct.pack("<i", len(tail)) + tail


def _getter(distance: int) -> bytes:
    """Machine code, x86-64: return the address `distance` bytes behind it."""
    return b"\x48\x8d\x05" + struct.pack("<i", distance + 1) + b"\xc3"  # lea rax, [rip + distance]; ret


def _hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value ^= (value & 0xF0000000) >> 24
        value &= 0x0FFFFFFF
    return value


class _Layout:
    """Where each part of the stub lies; file offset and address are the same number everywhere."""

    def __init__(self, names: list[str], strings: bytes) -> None:
        self.infos = [name for name in names if name.startswith("_ZTI")]
        self.tables = [name for name in names if name.startswith("_ZTV")]
        self.symbols = len(names) + 2  # and the null symbol, and the one the stub itself asks for
        self.symtab = 64 + 56 * 4
        self.strtab = self.symtab + 24 * self.symbols
        self.hash = self.strtab + len(strings) + -len(strings) % 8
        self.rela = self.hash + 4 * (2 + _BUCKETS + self.symbols) + -4 * (2 + _BUCKETS + self.symbols) % 8
        self.relocations = 2 * len(self.infos) + _VTABLE_SLOTS * len(self.tables)
        self.code = self.rela + 24 * self.relocations
        self.getter = self.code + len(_trap(0)) + len(MESSAGE)
        self.text_end = self.getter + len(_getter(0))
        self.data = self.text_end + -self.text_end % _PAGE
        self.info = self.data + 16 * _DYNAMIC_ENTRIES
        self.table = self.info + 16 * len(self.infos)
        self.slot = self.table + _TABLE_SIZE * len(self.tables)
        self.end = self.slot + 64

    def place(self, name: str) -> tuple[int, int, int]:
        """Address, size and symbol information (global, and object or function) of a symbol."""
        if name in self.infos:
            return self.info + 16 * self.infos.index(name), 16, 0x11
        if name in self.tables:
            return self.table + _TABLE_SIZE * self.tables.index(name), _TABLE_SIZE, 0x11
        if name in SLOTS:
            return self.getter, self.text_end - self.getter, 0x12
        return self.code, self.getter - self.code, 0x12

    def segments(self) -> bytes:
        return b"".join(
            struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)
            for kind, flags, at, size, align in (
                (1, 5, 0, self.text_end, _PAGE),
                (1, 6, self.data, self.end - self.data, _PAGE),
                (2, 6, self.data, 16 * _DYNAMIC_ENTRIES, 8),
                (0x6474E551, 6, 0, 0, 16),  # without this one the loader asks for an executable stack
            )
        )


def stub(soname: str, symbols: Iterable[str]) -> bytes:
    """Assemble an x86-64 shared object that defines `symbols`.

    `_ZTI` names become type information (a class without bases), `_ZTV` names tables full of the trap, all others the
    trap, but for `SLOTS`.
    Layout: one read-execute segment (headers, symbols, strings, hash, relocations, code), one read-write segment.
    """
    names = sorted(set(symbols))
    texts = [*names, _CLASS_TYPE_INFO, soname]
    strings = b"\0" + b"".join(text.encode() + b"\0" for text in texts)
    offsets = [1 + sum(len(text.encode()) + 1 for text in texts[:index]) for index in range(len(texts))]
    layout = _Layout(names, strings)
    symtab = bytes(24)
    for name, offset in zip(names, offsets, strict=False):
        at, size, info = layout.place(name)
        symtab += struct.pack("<IBBHQQ", offset, info, 0, 1, at, size)
    symtab += struct.pack("<IBBHQQ", offsets[-2], 0x11, 0, 0, 0, 0)
    dynamic = (
        (14, offsets[-1]), (4, layout.hash), (5, layout.strtab), (6, layout.symtab), (10, len(strings)), (11, 24),
        (7, layout.rela), (8, 24 * layout.relocations), (9, 24), (0, 0),
    )  # fmt: skip
    head = (b"\x7fELF\x02\x01\x01", 3, _X86_64, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
    image = bytearray(layout.end)
    for at, part in (
        (0, struct.pack("<16sHHIQQQIHHHHHH", *head)),
        (64, layout.segments()),
        (layout.symtab, symtab),
        (layout.strtab, strings),
        (layout.hash, _hash_table([*texts[:-1]])),
        (layout.rela, _relocations(layout, dict(zip(names, offsets, strict=False)))),
        (layout.code, _trap(len(MESSAGE)) + MESSAGE + _getter(layout.slot - layout.text_end)),
        (layout.data, b"".join(struct.pack("<QQ", *entry) for entry in dynamic)),
    ):
        image[at : at + len(part)] = part
    return bytes(image)


def _relocations(layout: _Layout, offsets: dict[str, int]) -> bytes:
    entries = []
    for name in layout.infos:
        at = layout.place(name)[0]
        entries.append((at, (layout.symbols - 1) << 32 | 1, 16))  # R_X86_64_64: its virtual table, behind the prefix
        entries.append((at + 8, 8, layout.strtab + offsets[name] + len("_ZTI")))  # R_X86_64_RELATIVE: its name
    for name in layout.tables:
        first = layout.place(name)[0] + 16
        entries += [(first + 8 * slot, 8, layout.code) for slot in range(_VTABLE_SLOTS)]
    return b"".join(struct.pack("<QQq", *entry) for entry in entries)


def _hash_table(names: list[str]) -> bytes:
    """The System V hash table over the symbols 1..n, `names` in their order."""
    buckets, chains = [0] * _BUCKETS, [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        bucket = _hash(name.encode()) % _BUCKETS
        chains[index], buckets[bucket] = buckets[bucket], index
    return struct.pack(f"<{2 + _BUCKETS + len(chains)}I", _BUCKETS, len(chains), *buckets, *chains)


def lighten(packages: Path) -> int:
    """Drop what only a GPU needs from torch and the nvidia packages below `packages`, and put the stub in its place.

    Returns:
        The number of symbols the stub defines; 0 when this torch has no CUDA half.

    Raises:
        ValueError: Not an x86-64 torch, or its layout is not the one of the public wheels.
    """
    libraries = packages / "torch" / "lib"
    if not (libraries / DROPPED[0]).exists():
        return 0
    for name in DROPPED:
        (libraries / name).unlink(missing_ok=True)
    shutil.rmtree(packages / "torch" / "include", ignore_errors=True)
    shutil.rmtree(packages / "torch" / "share", ignore_errors=True)
    vendor = [path for path in (packages / "nvidia").rglob("*") if path.is_file() or path.is_symlink()]
    for path in vendor:
        if (".so" in path.name and not path.name.startswith(KEPT_NVIDIA)) or path.suffix in {".a", ".h", ".hpp"}:
            path.unlink()
    distributed = packages / "torch" / "distributed" / "__init__.py"
    text = distributed.read_text()
    if text.count(_IMPORT) != 1:
        raise ValueError(
            f"{distributed}: expected one line {_IMPORT.strip()!r}; this torch needs another way to lighten it"
        )
    distributed.write_text(text.replace(_IMPORT, _IMPORT + WITHOUT_DISTRIBUTED))
    files = [path for path in libraries.iterdir() if ".so" in path.name]
    files += (packages / "nvidia").rglob("*.so*")
    kept = [read(path) for path in files]
    outside = {name for library in kept for name in library.needed} - {path.name for path in files}
    system = {name: handle for name in outside if (handle := _load(name))}
    symbols = missing(kept, (ctypes.CDLL(None), *system.values()))
    (libraries / DROPPED[0]).write_bytes(stub(DROPPED[0], symbols))
    for name in (
        outside - system.keys() - {DROPPED[0]}
    ):  # empty, and a file each: the loader insists on versions in the file it names
        (libraries / name).write_bytes(stub(name, ()))
    return len(symbols)


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def main() -> None:
    """Lighten the torch below the site-packages folder of the command line."""
    packages = Path(sys.argv[1])
    print(f"stub: {lighten(packages)} symbols stand in for CUDA")


if __name__ == "__main__":
    main()
