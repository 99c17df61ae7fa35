"""What the gate reads from compilers' output, against cases worked out by hand."""

from __future__ import annotations

import pytest

from epd_kernels.gate import amd, nvidia
from epd_kernels.gate.access import parameters, widths

TTIR = """\
#loc = loc("somewhere.py":4:0)
  tt.func public @copy(%src: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("src"(#loc)), \
%rows: !tt.ptr<i64> loc("rows"(#loc)), %stride: i32 loc("stride"(#loc)), \
%out: !tt.ptr<bf16> loc("out"(#loc))) attributes {noinline = false} {
"""
ENTRY = (
    "define ptx_kernel void @copy(ptr addrspace(1) %0, ptr addrspace(1) inreg readonly captures(none) %1, i32 %2, "
    "ptr addrspace(1) %3, ptr addrspace(1) readnone captures(none) %4) local_unnamed_addr #0 {\n"
)
NAMES = ("src", "rows", "stride", "out")


def accesses(*lines: str) -> dict[str, tuple[int, ...]]:
    return widths(ENTRY + "\n".join(f"  {line}" for line in lines) + "\n}\n", NAMES)


def test_the_parameters_are_those_of_the_entry() -> None:
    assert parameters(TTIR) == NAMES


@pytest.mark.parametrize(
    ("line", "width"),
    [
        (r'%9 = call i32 asm sideeffect "mov.u32 $0, 0x0;\0A\09@$2 ld.global.b32 { $0 }, [ $1 + 0 ];", "=r,l,b"', 4),
        (r'%9 = call { i32, i32 } asm "@$5 ld.global.L1::evict_last.v2.b32 { $0, $1 }, [ $4 + 0 ];", "=r,=r,l,b"', 8),
        (r'%9 = call { i32 } asm "ld.relaxed.gpu.global.v4.b32 { $0, $1, $2, $3 }, [ $4 + 0 ];", "=r,l"', 16),
        (r'%9 = call i16 asm "ld.volatile.global.b16 { $0 }, [ $1 + 0 ];", "=c,l"', 2),
        (r'call void asm sideeffect "st.global.v4.b32 [ $4 + 0 ], { $0, $1, $2, $3 };", "r,r,r,r,l"', 16),
        (r'call void asm sideeffect "cp.async.cg.shared.global [ $0 + 0 ], [ $1 + 0 ], 0x10, $2;", "r,l,r"', 16),
    ],
)
def test_nvidia_assembly(line: str, width: int) -> None:
    assert accesses(
        "%8 = getelementptr bfloat, ptr addrspace(1) %0, i64 5", f"{line}(ptr addrspace(1) %8, i1 true)"
    ) == {"src": (width,)}


@pytest.mark.parametrize(
    ("line", "width"),
    [
        ("%9 = load <8 x i16>, ptr addrspace(1) %8, align 16", 16),
        ("%9 = load i8, ptr addrspace(1) %8, align 1", 1),
        ("%9 = load <2 x float>, ptr addrspace(1) %8, align 8", 8),
        ("store <4 x i32> %7, ptr addrspace(1) %8, align 16", 16),
        ("store bfloat %7, ptr addrspace(1) %8, align 2", 2),
        (
            "%9 = tail call <4 x i32> @llvm.amdgcn.raw.ptr.buffer.load.v4i32(ptr addrspace(8) %8, i32 7, i32 0)",
            16,
        ),
        ("tail call void @llvm.amdgcn.raw.ptr.buffer.store.i16(i16 %7, ptr addrspace(8) %8, i32 %7, i32 0, i32 0)", 2),
        (
            "tail call void @llvm.amdgcn.raw.ptr.buffer.load.lds(ptr addrspace(8) %8, ptr addrspace(3) %7, i32 16)",
            16,
        ),
        ("tail call void @llvm.amdgcn.global.load.lds(ptr addrspace(1) %8, ptr addrspace(3) %7, i32 4, i32 0)", 4),
    ],
)
def test_amd_intrinsics_and_plain_accesses(line: str, width: int) -> None:
    made = "%8 = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %0, i16 0, i64 9, i32 1)"
    assert accesses(made, line) == {"src": (width,)}


def test_shared_memory_and_other_words_are_not_accesses() -> None:
    assert accesses("%8 = load <8 x i16>, ptr addrspace(3) %7, align 16", "store i32 %7, ptr addrspace(3) %6") == {}


def test_an_index_read_from_one_buffer_leads_into_another() -> None:
    assert accesses(
        "%7 = getelementptr i64, ptr addrspace(1) %1, i64 3",
        "%8 = load i64, ptr addrspace(1) %7, align 8",
        "%9 = mul i64 %8, 4096",
        "%10 = getelementptr bfloat, ptr addrspace(1) %0, i64 %9",
        "%11 = load <8 x i16>, ptr addrspace(1) %10, align 16",
        "store <4 x i16> %11, ptr addrspace(1) %3, align 8",
    ) == {"src": (16,), "rows": (8,), "out": (8,)}


def test_a_pointer_that_a_loop_moves_is_still_its_buffer() -> None:
    assert accesses(
        "%7 = phi ptr addrspace(1) [ %9, %6 ], [ %0, %5 ]",
        "%8 = load i8, ptr addrspace(1) %7, align 1",
        "%9 = getelementptr i8, ptr addrspace(1) %7, i64 16",
        "%10 = load <16 x i8>, ptr addrspace(1) %9, align 16",
    ) == {"src": (1, 16)}


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "columns", "programs"),
    [
        (255, 115 * 1024, 8, 0, 1),  # 8 warps of 8,192 registers fill the file; shared memory would hold one, too
        (248, 83 * 1024, 4, 0, 2),  # 7,936 registers a warp: two programs by registers, two by shared memory
        (32, 0, 4, 0, 16),  # 64 warps
        (16, 0, 1, 0, 32),  # most programs
        (33, 0, 4, 0, 12),  # registers in steps of 8 a lane: 65,536 / (1,280 * 4)
        (32, 227 * 1024, 4, 0, 1),
        (32, 0, 4, 256, 2),  # tensor memory has 512 columns
    ],
)
def test_programs_on_an_nvidia_multiprocessor(
    registers: int, shared: int, warps: int, columns: int, programs: int
) -> None:
    assert nvidia.occupancy(registers=registers, shared=shared, warps=warps, columns=columns) == programs


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "local", "programs"),
    [
        (256, 0, 4, 65536, 2),  # 512 registers a lane: two waves on each of four SIMDs
        (64, 0, 4, 65536, 8),
        (8, 0, 4, 65536, 8),  # at most 8 waves
        (65, 0, 4, 65536, 7),  # in steps of 8: 512 // 72
        (512, 65536, 4, 65536, 1),
        (64, 40 * 1024, 4, 65536, 1),
        (64, 40 * 1024, 4, 160 * 1024, 4),
        (512, 0, 8, 65536, 0),  # does not fit at all
    ],
)
def test_workgroups_on_an_amd_compute_unit(registers: int, shared: int, warps: int, local: int, programs: int) -> None:
    assert amd.occupancy(registers=registers, shared=shared, warps=warps, local=local) == programs


def test_matrix_instructions_and_barriers_of_ptx() -> None:
    assert nvidia.matrix("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16") == "wgmma"
    assert nvidia.matrix("tcgen05.mma.cta_group::1.kind::f16; mma.sync.aligned") == "tcgen05"
    assert nvidia.matrix("mma.sync.aligned.m16n8k16") == "mma.sync"
    assert nvidia.matrix("wgmma.fence.sync.aligned; fma.rn.f32") == "none"
    assert (
        nvidia.barriers("\tbar.sync \t0;\n\t@%p3 bar.sync 1, 128;\n\tbarrier.cta.sync 0;\n\tbar.warp.sync -1;\n") == 3
    )
