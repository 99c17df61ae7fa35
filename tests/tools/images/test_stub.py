from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from images import stub

INFO, TABLE, FUNCTION = "_ZTIN4epd5ClassE", "_ZTVN4epd5ClassE", "_ZN4epd8functionEv"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the stub is x86-64 machine code")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libstub.so"
    path.write_bytes(stub.stub("libstub.so", [INFO, TABLE, FUNCTION, *stub.SLOTS, *(f"f{n}" for n in range(600))]))
    ctypes.CDLL("libstdc++.so.6", mode=ctypes.RTLD_GLOBAL)
    return path


def load(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)


def test_the_loader_takes_it_and_finds_every_symbol(library: Path) -> None:
    loaded = load(library)
    for name in (INFO, TABLE, FUNCTION, *(f"f{n}" for n in range(600))):
        assert ctypes.c_void_p.in_dll(loaded, name) is not None
    assert not hasattr(loaded, "g1")


def test_type_information_has_a_virtual_table_and_its_name(library: Path) -> None:
    words = (ctypes.c_uint64 * 2).in_dll(load(library), INFO)
    runtime = ctypes.CDLL("libstdc++.so.6")
    table = ctypes.addressof(ctypes.c_void_p.in_dll(runtime, "_ZTVN10__cxxabiv117__class_type_infoE"))
    assert words[0] == table + 16
    assert ctypes.string_at(words[1]) == b"N4epd5ClassE"


def test_virtual_tables_lead_to_the_trap(library: Path) -> None:
    loaded = load(library)
    table = (ctypes.c_uint64 * (2 + 64)).in_dll(loaded, TABLE)
    trap = ctypes.addressof(ctypes.c_char.in_dll(loaded, FUNCTION))
    assert list(table) == [0, 0, *[trap] * 64]


def test_slots_are_writable_and_zero(library: Path) -> None:
    function = getattr(load(library), stub.SLOTS[0])
    function.restype = ctypes.POINTER(ctypes.c_uint64)
    slot = function()
    assert slot[0] == 0
    slot[0] = 7
    assert function()[0] == 7


def test_a_function_says_why_the_process_ends(library: Path) -> None:
    code = f"import ctypes; ctypes.CDLL('libstdc++.so.6', 256); ctypes.CDLL({str(library)!r}).f1()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode < 0
    assert done.stderr == stub.MESSAGE


def test_read_sees_what_a_library_offers_and_asks_for() -> None:
    actual = stub.read(Path(ctypes.__file__).parent / _ctypes())
    assert "PyInit__ctypes" in actual.defined
    assert "PyErr_SetString" in actual.undefined
    assert any(name.startswith("libc.so") for name in actual.needed)


def _ctypes() -> Path:
    import _ctypes  # noqa: PLC0415

    return Path(_ctypes.__file__)


def test_read_refuses_other_files(tmp_path: Path) -> None:
    file = tmp_path / "x.so"
    file.write_bytes(b"#!/bin/sh\nexit\n")
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        stub.read(file)


def test_missing_is_what_neither_the_libraries_nor_the_system_define() -> None:
    one = stub.Library(("b.so",), frozenset({"a"}), frozenset({"b", "printf", "gone", "PyErr_SetString"}))
    other = stub.Library((), frozenset({"b"}), frozenset({"a"}))
    assert stub.missing([one, other], [ctypes.CDLL(None)]) == {"gone"}


def test_a_torch_without_cuda_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "include").mkdir()
    assert stub.lighten(tmp_path) == 0
    assert (tmp_path / "torch" / "include").is_dir()
