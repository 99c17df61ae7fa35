"""Row gathers: bit for bit, whatever the type, the width and the alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from epd_kernels.architecture import Architecture
from epd_kernels.row_gather import launch, reference
from epd_kernels.row_gather.tiles import TILES

if TYPE_CHECKING:
    from types import ModuleType

TYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
)
OPERATIONS = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])


def noise(*shape: int, dtype: torch.dtype) -> Tensor:
    """Every bit random: NaNs with payloads, infinities, subnormals."""
    generator = torch.Generator().manual_seed(0)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).view(dtype).view(shape)


def raw(tensor: Tensor) -> Tensor:
    """The bytes of every row, [rows, bytes]."""
    width = torch.Size(tensor.shape[1:]).numel() * tensor.element_size()
    dense = tensor.clone(memory_format=torch.contiguous_format)
    return dense.view(-1).view(torch.uint8).view(len(tensor), width)


def assert_gathered(result: Tensor, source: Tensor, rows: list[int]) -> None:
    assert result.dtype == source.dtype
    assert result.shape == (len(rows), *source.shape[1:])
    lines, read = raw(result), raw(source)
    for line, row in zip(lines, rows, strict=True):
        assert torch.equal(line, read[row]) if row >= 0 else not line.any()


def check(sources: list[Tensor], rows: Tensor) -> None:
    for operation in (reference.gather_rows, launch.gather_rows):
        actual = operation(sources, rows)
        assert len(actual) == len(sources)
        for source, output in zip(sources, actual, strict=True):
            assert_gathered(output, source, rows.tolist())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (33,), (2, 5), (4, 16), (0,)], ids=str)
def test_every_type_and_width(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check([noise(9, *shape, dtype=dtype)], torch.tensor([8, -1, 0, 3, 3, -1, 7]))


def test_streams_and_hidden_rows_at_released_sizes() -> None:
    sources = [
        noise(20, 5120, dtype=torch.bfloat16),
        noise(20, 4, 5120, dtype=torch.bfloat16),
        noise(20, 4, 5120, dtype=torch.float32),
    ]
    check(sources, torch.tensor([19, 0, 7, 8, 9, -1, 3, 12]))


@settings(max_examples=50)
@given(data=st.data())
def test_ragged_rows_of_many_sources(data: st.DataObject) -> None:
    height = data.draw(st.integers(1, 40))
    shapes = st.lists(st.integers(1, 6), max_size=2)
    kinds = data.draw(st.lists(st.tuples(st.sampled_from(TYPES), shapes), min_size=1, max_size=3))
    rows = data.draw(st.lists(st.integers(-1, height - 1), max_size=50))
    check([noise(height, *shape, dtype=dtype) for dtype, shape in kinds], torch.tensor(rows, dtype=torch.int64))


@pytest.mark.parametrize(
    "rows", [[], [0], [4], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 4], [-1], [-1, 0, 1]]
)
def test_runs_and_near_runs(rows: list[int]) -> None:
    check([noise(9, 6, dtype=torch.float32), noise(9, dtype=torch.bool)], torch.tensor(rows, dtype=torch.int64))


def test_a_run_is_a_view_in_torch() -> None:
    source = noise(9, 6, dtype=torch.float32)
    (actual,) = reference.gather_rows([source], torch.arange(3, 7))
    assert actual.data_ptr() == source[3].data_ptr()


@OPERATIONS
def test_no_row_of_no_source_is_needed_for_zeros(operation: ModuleType) -> None:
    source = torch.zeros(0, 3, dtype=torch.float32)
    assert operation.gather_rows([source], torch.tensor([-1, -1]))[0].tolist() == [[0.0] * 3] * 2
    assert operation.gather_rows([source], torch.zeros(0, dtype=torch.int64))[0].shape == (0, 3)
    assert operation.gather_rows([], torch.tensor([0])) == []


def test_rows_may_lie_apart_and_begin_anywhere() -> None:
    wide = noise(9, 4, 12, dtype=torch.bfloat16)
    flat = noise(1 + 9 * 10, dtype=torch.bfloat16)
    for source in (wide[:, 1], wide[:, :2], wide[2:], flat[1:].view(9, 10), flat[3:5].as_strided((9, 2), (10, 1), 3)):
        check([source], torch.tensor([5, 1, -1, 0]))


def test_rows_are_copied_in_the_widest_words_that_fit() -> None:
    base = torch.zeros(64, dtype=torch.bfloat16)
    sources = [base.view(4, 16), base.view(32, 2), base.view(64, 1), base[1:61].view(6, 10), base.view(torch.uint8)]
    _, launches = launch.launches_gather_rows(sources, torch.tensor([0]))
    actual = [one.arguments[0].dtype for one in launches]
    assert actual == [torch.int32, torch.int32, torch.int16, torch.int16, torch.uint8]


def test_takes_strided_row_numbers() -> None:
    check([noise(9, 3, dtype=torch.float32)], torch.tensor([[5, 0], [2, 0], [-1, 0]])[:, 0])


@OPERATIONS
def test_offsets_into_a_source_are_64_bit(operation: ModuleType) -> None:
    # Rows 2^30 + 1 bytes apart, so odd that they are copied byte by byte; memory never touched is never taken.
    stride = 2**30 + 1
    source = torch.empty(2 * stride + 3, dtype=torch.uint8).as_strided((3, 3), (stride, 1))
    source[2] = torch.tensor([7, 8, 9])
    assert operation.gather_rows([source], torch.tensor([2, -1]))[0].tolist() == [[7, 8, 9], [0, 0, 0]]


def test_refuses_rows_that_are_not_dense() -> None:
    with pytest.raises(ValueError, match="a source has strides"):
        launch.gather_rows([torch.zeros(4, 4).t()], torch.tensor([0]))


@pytest.mark.parametrize("architecture", Architecture)
@pytest.mark.parametrize("width", [0, 1, 3, 2560, 10240, 20480])
def test_programs_cover_rows(architecture: Architecture, width: int) -> None:
    tile = TILES[architecture]
    rows, words = tile.shape(width)
    assert rows * words == tile.words
    assert words >= min(width, tile.words)
