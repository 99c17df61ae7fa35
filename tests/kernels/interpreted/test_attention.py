"""Windowed attention: kernels and torch against a float64 softmax over decoded latents."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from epd_kernels.architecture import Architecture
from epd_kernels.attention import launch, reference
from epd_kernels.attention.tiles import MOST_SPLITS, TILES
from epd_kernels.formats.reference import BFLOAT16, MAIN, WINDOW, Codec
from epd_kernels.paged import Paged
from epd_kernels.sizes import RELEASED
from epd_kernels.window_slots.reference import Slots
from tests.kernels import oracle_attention as oracle

if TYPE_CHECKING:
    from epd_kernels.attention.reference import Attended

POISON = 0xFF
"""NaN as E4M3, as UE8M0 and as bfloat16: a program that reads it shows it."""


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    query: Tensor
    window: Paged
    slots: Slots
    entries: Paged | None
    selected: Tensor | None
    sink: Tensor
    scale: float

    @property
    def given(self) -> tuple[Any, ...]:
        return self.query, self.window, self.slots, self.entries, self.selected, self.sink

    def torch(self) -> Attended:
        return reference.attend(*self.given, scale=self.scale)

    def triton(self) -> Attended:
        return launch.attend(*self.given, scale=self.scale)

    def tiled(self, *, keys: int, heads: int = 64, splits: int = 1) -> Attended:
        """With other tiles."""
        attended, launches = launch.launches_attend(*self.given, scale=self.scale, splits=splits)
        grid = (launches[0].grid[0], triton.cdiv(self.query.shape[1], heads), splits)
        options = {**launches[0].options, "BLOCK_KEYS": keys, "BLOCK_HEADS": heads}
        for one in (replace(launches[0], grid=grid, options=options), *launches[1:]):
            one.run()
        return attended

    def oracle(self) -> oracle.Seen:
        keys = [(self.window, self.slots.slots)]
        if self.entries is not None and self.selected is not None:
            keys.append((self.entries, self.selected))
        return oracle.attend(self.query, keys, self.sink, scale=self.scale)

    def with_(self, **changes: Any) -> Call:
        return replace(self, **changes)


def pool(codec: Codec, values: Tensor, slots: Tensor, *, pages: int, page_size: int, planar: bool) -> Paged:
    """Rows [n, dim] at slots [n] of a pool whose every other byte is poison; pages lie apart."""
    rows, dim = codec.pack(values), values.shape[1]
    size, width = codec.code_bytes(dim), rows.shape[1]
    data = torch.full((pages, page_size * width + 32), POISON, dtype=torch.uint8)
    for row, slot in zip(rows, slots.tolist(), strict=True):
        page, place = divmod(slot, page_size)
        if planar:
            data[page, place * size :][:size] = row[:size]
            data[page, page_size * size + place * (width - size) :][: width - size] = row[size:]
        else:
            data[page, place * width :][:width] = row
    return Paged(data[:, : page_size * width + 16], page_size, dim, codec, planar)


def packed(codec: Codec, slots: Tensor, dim: int, generator: torch.Generator, *, planar: bool, page_size: int) -> Paged:
    """A pool with random rows at the slots [R, n] that are asked for, and nowhere else."""
    used = slots[slots >= 0].unique()
    values = torch.randn(len(used), dim, generator=generator) * torch.rand(len(used), 1, generator=generator) * 3
    pages = 1 + int(used.max()) // page_size if len(used) else 1
    return pool(codec, values, used, pages=pages, page_size=page_size, planar=planar)


def slots_of(slots: Tensor) -> Slots:
    return Slots(slots, (slots >= 0).sum(1).int())


def call(
    slots: Tensor,
    selected: Tensor | None,
    *,
    heads: int = 4,
    dim: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    planar: bool = False,
    page_size: int = 16,
) -> Call:
    """Random queries and latents."""
    generator = torch.Generator().manual_seed(seed)
    layout = {"planar": planar, "page_size": page_size}
    query = (torch.randn(len(slots), heads, dim, generator=generator) * 2).to(dtype)
    return Call(
        query=query,
        window=packed(WINDOW, slots, dim, generator, **layout),  # type: ignore[arg-type]
        slots=slots_of(slots),
        entries=None if selected is None else packed(MAIN, selected, dim, generator, **layout),  # type: ignore[arg-type]
        selected=selected,
        sink=torch.randn(heads, generator=generator),
        scale=dim**-0.5,
    )


def random_slots(rows: int, columns: int, end: int, seed: int, *, holes: bool) -> Tensor:
    """Of rows with any number of slots; packed to the left, or with holes."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randint(0, end, (rows, columns), generator=generator, dtype=torch.int32)
    if holes:
        return slots.masked_fill(torch.rand(rows, columns, generator=generator) < 0.3, -1)
    counts = torch.randint(0, columns + 1, (rows, 1), generator=generator)
    return slots.masked_fill(torch.arange(columns) >= counts, -1)


def check(actual: Attended, wanted: oracle.Seen, *, dtype: torch.dtype) -> None:
    """Errors as rounding allows: bfloat16 rounds weights and outputs once each, by 2^-8 of themselves."""
    assert actual.output.dtype == dtype
    assert actual.lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    share = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2.0**-7 + 2e-5}[dtype]
    error = (actual.output.double() - wanted.output).abs()
    assert actual.output.isfinite().all()
    assert (error <= share * wanted.weighed + 1e-30).all(), (error / wanted.weighed).max()
    torch.testing.assert_close(
        actual.lse.double(), wanted.lse, rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=1e-5
    )


def check_all(one: Call) -> None:
    """Torch in both precisions and Triton in float32."""
    wanted = one.oracle()
    check(one.with_(query=one.query.double()).torch(), wanted, dtype=torch.float64)
    check(one.torch(), wanted, dtype=torch.float32)
    check(one.triton(), wanted, dtype=torch.float32)


@pytest.mark.parametrize("planar", [False, True], ids=["row by row", "planar"])
@pytest.mark.parametrize("entries", [False, True], ids=["window", "entries"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_equals_the_oracle(dtype: torch.dtype, entries: bool, planar: bool) -> None:
    slots = random_slots(5, 12, 60, 1, holes=False)
    selected = random_slots(5, 20, 90, 2, holes=True) if entries else None
    one = call(slots, selected, dtype=dtype, planar=planar)
    wanted = one.oracle()
    check(one.torch(), wanted, dtype=dtype)
    check(one.triton(), wanted, dtype=dtype)


@pytest.mark.parametrize("splits", [1, 3, MOST_SPLITS])
@pytest.mark.parametrize(("keys", "heads"), [(4, 4), (16, 8)])
def test_any_tiles_give_one_softmax_over_the_union(keys: int, heads: int, splits: int) -> None:
    # 3 rows: one with all keys, one with a window that ends inside a tile and few entries, one without any key.
    slots = torch.tensor([[*range(12)], [*range(20, 25), *[-1] * 7], [-1] * 12], dtype=torch.int32)
    selected = torch.tensor([[*range(20)], [*[-1] * 9, 5, *[-1] * 10], [-1] * 20], dtype=torch.int32)
    one = call(slots, selected, heads=5)
    actual = one.tiled(keys=keys, heads=heads, splits=splits)
    check(actual, one.oracle(), dtype=torch.float32)
    assert actual.output[2].eq(0).all()
    assert actual.lse[2].eq(-math.inf).all()


@settings(max_examples=20)
@given(
    rows=st.integers(0, 5),
    columns=st.integers(1, 9),
    chosen=st.none() | st.integers(1, 20),
    end=st.integers(1, 80),
    heads=st.integers(1, 5),
    page_size=st.sampled_from([1, 5, 16]),
    planar=st.booleans(),
    holes=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_ragged_rows(
    rows: int,
    columns: int,
    chosen: int | None,
    end: int,
    heads: int,
    page_size: int,
    planar: bool,
    holes: bool,
    seed: int,
) -> None:
    slots = random_slots(rows, columns, end, seed, holes=holes)
    selected = None if chosen is None else random_slots(rows, chosen, end, seed + 1, holes=holes)
    check_all(call(slots, selected, heads=heads, seed=seed, planar=planar, page_size=page_size))


def test_rows_that_share_latents_and_rows_that_do_not() -> None:
    # More rows than torch takes at a time; windows of neighbours overlap, every row has entries of its own.
    slots = torch.arange(150)[:, None].clamp(max=130) + torch.arange(128)
    selected = (torch.arange(150)[:, None] * 3 + torch.arange(3)) * 2
    one = call(slots.int(), selected.int(), heads=1, page_size=64)
    wanted = one.oracle()
    check(one.torch(), wanted, dtype=torch.float32)
    few = slice(62, 66)
    part = one.with_(query=one.query[few], slots=slots_of(slots[few].int()), selected=selected[few].int())
    actual, whole = part.torch(), one.torch()
    torch.testing.assert_close(actual.output, whole.output[few], rtol=1e-5, atol=1e-6)
    check(part.triton(), part.oracle(), dtype=torch.float32)


def test_the_window_full_and_one_short_of_it() -> None:
    full = torch.arange(8, dtype=torch.int32)
    check_all(call(torch.stack((full, full.masked_fill(full == 7, -1))), None))


def test_one_key() -> None:
    none = torch.full((2, 4), -1, dtype=torch.int32)
    slots, selected = none.clone(), none.clone()
    slots[0, 0], selected[1, 3] = 9, 4
    one = call(slots, selected)
    check_all(one)
    assert one.window.data[0].ne(POISON).any()
    logit = one.query[0].double() @ torch.tensor(oracle.latent(one.window, 9)).double() * one.scale
    torch.testing.assert_close(one.triton().lse[0].double(), logit, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operation", ["torch", "triton"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_no_key_is_zero_and_not_nan(rows: int, operation: str) -> None:
    none = torch.full((rows, 8), -1, dtype=torch.int32)
    actual: Attended = getattr(call(none, none), operation)()
    assert actual.output.shape == (rows, 4, 32)
    assert actual.output.eq(0).all()
    assert actual.lse.shape == (rows, 4)
    assert actual.lse.eq(-math.inf).all()


@pytest.mark.parametrize("splits", [1, 2])
def test_great_sinks(splits: int) -> None:
    slots = torch.arange(8, dtype=torch.int32).expand(2, -1).clone()
    slots[1] = -1
    one = call(slots, slots.clone()).with_(sink=torch.tensor([1e4, -1e4, 1e4, -1e4]))
    check_all(one)
    actual = one.tiled(keys=4, splits=splits)
    check(actual, one.oracle(), dtype=torch.float32)
    assert actual.output[0, ::2].eq(0).all()  # the sink takes all
    assert actual.output[0, 1::2].abs().sum() > 1
    assert actual.lse[0].isfinite().all()


@pytest.mark.parametrize("splits", [1, 2])
def test_sinks_that_stand_for_none(splits: int) -> None:
    """The lowest number is how an engine without sinks says so, and a row may have no key besides."""
    slots = torch.arange(8, dtype=torch.int32).expand(2, -1).clone()
    slots[1] = -1
    lowest = torch.finfo(torch.float32).min
    one = call(slots, slots.clone()).with_(sink=torch.tensor([lowest, -3e38, -2.4e38, 0.0]))
    for item in (one.torch(), one.tiled(keys=4, splits=splits)):
        assert item.output[1].eq(0).all()
        check(item, one.oracle(), dtype=torch.float32)


def test_a_key_in_window_and_entries_counts_twice() -> None:
    signs = torch.randn(1, 32, generator=torch.Generator().manual_seed(3)).sign() * 1.5  # exact in both formats
    place, layout = torch.tensor([3]), {"pages": 1, "page_size": 8, "planar": False}
    window, entries = (pool(codec, signs, place, **layout) for codec in (WINDOW, MAIN))  # type: ignore[arg-type]
    assert oracle.latent(window, 3) == oracle.latent(entries, 3) == signs[0].tolist()
    slots = torch.tensor([[3]], dtype=torch.int32)
    once = call(slots, None).with_(window=window)
    twice = once.with_(entries=entries, selected=slots)
    thrice = once.with_(entries=entries, selected=torch.tensor([[3, 3]], dtype=torch.int32))
    for count, one in ((1, once), (2, twice), (3, thrice)):
        check_all(one)
        for item in (one.torch(), one.triton()):
            torch.testing.assert_close(item.lse, once.torch().lse + math.log(count), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("exponent", "code", "size"), [(0, 0x7E, 2.0**100), (254, 0x38, 2.0**-124)])
def test_extreme_exponents(exponent: int, code: int, size: float, dtype: torch.dtype) -> None:
    slots = torch.tensor([[0, 1]], dtype=torch.int32)
    one = call(slots, None)
    one.window.data[0, :32] = code | (torch.arange(32) % 3 == 0).to(torch.uint8) * 0x80
    one.window.data[0, 32] = exponent
    one.window.data[0, 33:66] = 0  # a second key, of zeros
    one = one.with_(query=(one.query.sign() * size).to(dtype))
    wanted = one.oracle()
    assert wanted.output.abs().max() > (0.4 if exponent else 0) * 2.0 ** (exponent - 127)
    check(one.torch(), wanted, dtype=dtype)
    check(one.triton(), wanted, dtype=dtype)
    torch.testing.assert_close(one.triton().output, one.torch().output, rtol=2.0**-7, atol=0)


def test_tensors_with_gaps() -> None:
    one = call(random_slots(3, 8, 30, 5, holes=False), random_slots(3, 8, 30, 6, holes=True))
    assert one.selected is not None
    apart = one.with_(
        query=one.query.transpose(0, 1).contiguous().transpose(0, 1),
        slots=Slots(one.slots.slots.repeat(1, 2)[:, :8], one.slots.counts),
        selected=one.selected.T.contiguous().T,
        sink=one.sink.repeat_interleave(2)[::2],
    )
    for actual, wanted in ((apart.torch(), one.torch()), (apart.triton(), one.triton())):
        assert actual.output.equal(wanted.output)
        assert actual.lse.equal(wanted.lse)


def test_pages_beyond_2_gib() -> None:
    one = call(torch.tensor([[1, 17, 33]], dtype=torch.int32), torch.tensor([[33, 0]], dtype=torch.int32))
    assert one.entries is not None
    far = []
    for near in (one.window, one.entries):
        pages, size = near.data.shape
        stride = 2**30 + 2**20
        data = torch.empty((pages - 1) * stride + size, dtype=torch.uint8).as_strided((pages, size), (stride, 1))
        data.copy_(near.data)
        far.append(Paged(data, near.page_size, near.dim, near.codec, near.planar))
    assert far[0].page_stride * 2 > 2**31
    moved = one.with_(window=far[0], entries=far[1])
    for actual, wanted in ((moved.torch(), one.torch()), (moved.triton(), one.triton())):
        assert actual.output.equal(wanted.output)


@pytest.mark.parametrize("rows", [1, pytest.param(8, marks=pytest.mark.nightly)])
def test_released_sizes(rows: int) -> None:
    window, topk = RELEASED.window, RELEASED.topk
    slots = torch.arange(rows)[:, None] + torch.arange(window)
    generator = torch.Generator().manual_seed(4)
    selected = torch.stack([torch.randperm(700, generator=generator)[:topk].sort()[0] for _ in range(rows)])
    one = call(
        slots.int(), selected.int(), heads=RELEASED.heads, dim=RELEASED.head_dim, dtype=torch.bfloat16, page_size=256
    )
    wanted = one.oracle()
    for item in (one.torch(), one.triton()):
        check(item, wanted, dtype=torch.bfloat16)
        cosine = torch.cosine_similarity(item.output.double().flatten(), wanted.output.flatten(), dim=0)
        assert cosine > 1 - 1e-5


def test_few_rows_are_split() -> None:
    for tile in TILES.values():
        most = [rows for rows, _ in tile.splits]
        assert most == sorted(most)
        splits = [tile.split(rows) for rows in range(1, most[-1] + 2)]
        assert splits == sorted(splits, reverse=True)
        assert 1 < splits[0] <= MOST_SPLITS
        assert splits[-1] == 1
    one = call(torch.zeros(2, 4, dtype=torch.int32), None)
    assert TILES[Architecture.INTERPRETER].split(2) == 3
    _, launches = launch.launches_attend(*one.given, scale=1.0)
    assert [entry.name for entry in launches] == ["attend_kernel", "merge_kernel"]
    assert launches[0].grid == (2, 1, 3)


def test_bfloat16_pools_are_for_torch() -> None:
    one = call(torch.tensor([[2, 0, 5]], dtype=torch.int32), None)
    latents = torch.tensor([oracle.latent(one.window, slot) for slot in (2, 0, 5)])
    wide = one.with_(window=pool(BFLOAT16, latents, torch.tensor([2, 0, 5]), pages=1, page_size=8, planar=False))
    torch.testing.assert_close(wide.torch().output, one.torch().output, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"window rows are bf16.*use the torch operations"):
        wide.triton()


def test_what_the_kernel_cannot_take_is_named() -> None:
    slots = torch.tensor([[0]], dtype=torch.int32)
    odd = call(slots, slots, dim=96, dtype=torch.float64)
    odd = odd.with_(entries=odd.window)
    with pytest.raises(ValueError, match=r"float64.*96 values.*entries are window.*use the torch operations"):
        odd.triton()


@pytest.mark.parametrize("operation", ["torch", "triton"])
def test_shapes_that_do_not_fit_are_named(operation: str) -> None:
    slots = torch.tensor([[0], [0]], dtype=torch.int32)
    one = call(slots, slots)
    wrong = one.with_(query=torch.zeros(3, 5, 64), selected=None)
    with pytest.raises(ValueError, match=r"both or neither.*there are 3 queries.*there are 5 heads.*queries have 64"):
        getattr(wrong, operation)()
    with pytest.raises(ValueError, match="selected is"):
        getattr(one.with_(selected=slots[:1]), operation)()
    with pytest.raises(ValueError, match=r"must be \[rows, heads, dim\]"):
        getattr(one.with_(query=one.query[0]), operation)()
