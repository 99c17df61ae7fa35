"""The CPU's leaf operations against the Reference engine's, which were written from the model's formulas."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.formats.reference import INDEX, MAIN, WINDOW, Codec, unpack
from epd_kernels.paged import Paged
from epd_sglang.cpu.leaves import attention, stores, streams
from epd_sglang.packed_rows import Rows
from epd_workers.reference.model.config import TextConfig
from epd_workers.reference.model.hyper import HyperConnection, collapse
from epd_workers.reference.model.rope import layer_frequencies, rotation

PAGE = 4
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Layout:
    """The engine's block-split layouts of V4.1, from its table."""

    is_fp4: bool = False
    is_interleaved: bool = False

    @property
    def data_bytes(self) -> int:
        return 256 if self.is_fp4 else 512

    @property
    def scale_bytes(self) -> int:
        return 32 if self.is_fp4 else 16

    @property
    def bytes_per_token(self) -> int:
        return self.data_bytes + self.scale_bytes

    def row_addressing(self, page_size: int) -> tuple[int, int, int]:
        return self.data_bytes, page_size * self.data_bytes, self.scale_bytes


def cache(layout: Layout, pages: int = 3) -> torch.Tensor:
    """Pages with padding behind, as the engine aligns them."""
    return torch.zeros(pages, PAGE * layout.bytes_per_token + 64, dtype=torch.uint8)


def read(data: torch.Tensor, codec: Codec, slots: list[int], dim: int = 512) -> torch.Tensor:
    return unpack(Paged(data, PAGE, dim, codec, planar=True), torch.tensor(slots), torch.float64)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=20)
@given(seeds, st.booleans(), st.lists(st.integers(0, 11), min_size=1, max_size=12))
def test_of_rows_for_one_slot_the_last_stays(seed: int, is_fp4: bool, slots: list[int]) -> None:
    layout = Layout(is_fp4)
    data, x = cache(layout), normal(seed, len(slots), 512).bfloat16()
    stores.fused_store_cache(
        lambda same: same, x, data, torch.tensor(slots), page_size=PAGE, layout=layout, freqs_cis=None
    )
    codec = MAIN if is_fp4 else WINDOW
    last = {slot: row for row, slot in enumerate(slots)}
    assert torch.equal(read(data, codec, list(last)), codec.round(x[list(last.values())].double()))


@settings(max_examples=20)
@given(seeds, st.sampled_from([0, 1, 2]))
def test_norm_rotation_and_store_are_the_models(seed: int, ratio: int) -> None:
    text, positions = TextConfig(), torch.tensor([0, 1, 129, 5000])
    frequencies = layer_frequencies(text, ratio)
    angles = positions.double()[:, None] * frequencies
    table = torch.polar(torch.ones_like(angles), angles)
    kv, weight = normal(seed, 4, 512).bfloat16(), 1 + 0.1 * normal(seed + 1, 512)
    normed = kv.double() * torch.rsqrt(kv.double().square().mean(-1, keepdim=True) + 1e-6) * weight
    expected = rotation(positions, frequencies, torch.float64).apply(normed)
    data, layout = cache(Layout()), Layout()
    stores.norm_rope_store(
        lambda same: same, kv, weight, 1e-6, table.to(torch.complex64), torch.arange(4), torch.tensor([3, 4, 8, 11]),
        data, PAGE, layout,
    )  # fmt: skip
    actual = read(data, WINDOW, [3, 4, 8, 11])
    # A float32 sum may fall on the other side of a rounding step of the format.
    assert ((actual - WINDOW.round(expected)).abs() <= expected.abs() / 8 + 1e-6).all()
    assert ((actual == WINDOW.round(expected)).double().mean()) > 0.99
    inplace = kv.clone()
    stores.norm_rope_inplace(inplace, weight, 1e-6, table.to(torch.complex64), torch.arange(4))
    assert torch.allclose(inplace.double(), expected, rtol=1e-2, atol=1e-5)


@settings(max_examples=20)
@given(seeds)
def test_a_rotation_is_undone_by_its_inverse(seed: int) -> None:
    angles = normal(seed, 9, 32)
    table = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    q, k, positions = normal(seed + 1, 5, 3, 64).float(), normal(seed + 2, 5, 1, 64).float(), torch.arange(5) + 2
    q_before, k_before = q.clone(), k.clone()
    stores.rope_inplace(q, k, table, positions, inverse=False)
    pairs = torch.view_as_complex(q_before.unflatten(-1, (-1, 2)))
    assert torch.allclose(q, torch.view_as_real(pairs * table[2:7, None]).flatten(-2), atol=1e-5)
    stores.rope_inplace(q, None, table, positions, inverse=True)
    assert torch.allclose(q, q_before, atol=1e-5)
    assert not torch.allclose(k, k_before, atol=1e-3)


@settings(max_examples=20)
@given(seeds, st.integers(1, 4))
def test_mixing_weights_are_the_models(seed: int, streams_count: int) -> None:
    text = TextConfig(hidden_size=8, hc_mult=streams_count)
    site = HyperConnection(text).double()
    k = streams_count
    torch.manual_seed(seed)
    for parameter in site.parameters():
        torch.nn.init.normal_(parameter)
    x = normal(seed, 5, k, 8)
    with torch.no_grad():
        expected = site(x)
    z = x.flatten(-2)
    mixes = (z @ site.fn.T) * torch.rsqrt(z.square().mean(-1, keepdim=True) + text.rms_norm_eps)
    actual = streams.hc_split_sinkhorn(mixes[None], site.scale, site.base, k)
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.allclose(ours[0], theirs, atol=1e-9)
    combined = streams.mhc_combine(z, expected.pre, k, torch.float32)
    assert torch.allclose(combined.double(), collapse(x, expected.pre), atol=1e-5)


def test_the_activation_is_clamped() -> None:
    gate, up = torch.tensor([[-20.0, 1.0, 20.0]]), torch.tensor([[-20.0, 2.0, 20.0]])
    output = torch.empty(1, 3)
    streams.silu_and_mul_clamp(torch.cat((gate, up), 1), output, 10.0)
    silu = torch.nn.functional.silu(torch.tensor([-20.0, 1.0, 10.0]))
    assert torch.allclose(output[0], silu * torch.tensor([-10.0, 2.0, 10.0]))


@settings(max_examples=20)
@given(seeds, st.booleans(), st.integers(1, 3))
def test_attention_sees_what_counts_and_nothing_else(seed: int, with_entries: bool, heads: int) -> None:
    window, entries = cache(Layout()), cache(Layout(is_fp4=True))
    every = torch.arange(12)
    stores.fused_store_cache(
        lambda x: x, normal(seed, 12, 512), window, every, page_size=PAGE, layout=Layout(), freqs_cis=None
    )
    stores.fused_store_cache(
        lambda x: x, normal(seed + 1, 12, 512), entries, every, page_size=PAGE, layout=Layout(is_fp4=True),
        freqs_cis=None,
    )  # fmt: skip
    q, sink = normal(seed + 2, 2, 1, heads, 512), normal(seed + 3, 64)
    indices, lengths = torch.tensor([[[3, 7, 1, 9]], [[5, 0, 0, 0]]], dtype=torch.int32), torch.tensor([3, 1])
    chosen, counts = torch.tensor([[[2, 11]], [[4, 4]]], dtype=torch.int32), torch.tensor([2, 0])

    def view(data: torch.Tensor, width: int) -> torch.Tensor:
        return data.as_strided((3, PAGE, 1, width), (data.stride(0), width, width, 1))

    extra = {
        "extra_k_cache": view(entries, 288), "extra_indices_in_kvcache": chosen, "extra_topk_length": counts,
    } if with_entries else {}  # fmt: skip
    actual, _ = attention.flash_mla_with_kvcache(
        q, view(window, 528), softmax_scale=0.05, indices=indices, topk_length=lengths, attn_sink=sink, **extra,
        head_dim_v=512, is_fp8_kvcache=True,
    )  # fmt: skip
    for row, (slots, numbers) in enumerate((([3, 7, 1], [2, 11]), ([5], []))):
        keys = read(window, WINDOW, slots)
        if with_entries and numbers:
            keys = torch.cat((keys, read(entries, MAIN, numbers)))
        logits = torch.cat((q[row, 0] @ keys.T * 0.05, sink[:heads, None]), 1)
        expected = logits.softmax(-1)[:, :-1] @ keys
        assert torch.allclose(actual[row, 0], expected, atol=1e-6)


@settings(max_examples=20)
@given(seeds)
def test_index_scores_are_the_sum_over_heads(seed: int) -> None:
    table = torch.zeros(3, PAGE * 68, dtype=torch.uint8)
    stores.store_index_keys(normal(seed, 12, 1, 128), table, torch.arange(12), page_size=PAGE)
    q, weights = normal(seed + 1, 2, 4, 128).bfloat16(), normal(seed + 2, 2, 4)
    slots, lengths = torch.tensor([[0, 5, 9], [11, 3, 3]]), torch.tensor([3, 1])
    actual = attention.fp4_index_logits_decode(q, weights, slots, lengths, table, PAGE)
    for row in range(2):
        keys = read(table, INDEX, slots[row].tolist(), 128)
        expected = ((q[row].double() @ keys.T).relu() * weights[row, :, None]).sum(0)
        count = int(lengths[row])
        assert torch.allclose(actual[row, :count].double(), expected[:count], rtol=0.05, atol=0.5)
        assert torch.isneginf(actual[row, count:]).all()


@settings(max_examples=20)
@given(seeds, st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_ring_keeps_the_rows_that_are_committed(seed: int, kept: list[bool]) -> None:
    source, ring, layout = cache(Layout()), cache(Layout()), Layout()
    written = torch.tensor([1, 2, 5, 6, 8, 9])
    source.copy_(torch.randint(0, 256, source.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8))
    before, tags = ring.clone(), torch.full((12,), -1)
    positions, owner = torch.tensor([4, 5, 6, 7, 9, 10]), torch.tensor([0, 0, 0, 0, 1, 1])
    window = SimpleNamespace(commit_mask=torch.tensor(kept), pos=positions, req=owner, write_loc=written)
    stores.commit_packed_rows(source, ring, tags, window, page_size=PAGE, capacity=6, layout=layout)
    expected, marks = before, torch.full((12,), -1)
    for row, keep in enumerate(kept):
        if keep:
            target = int(owner[row]) * 6 + int(positions[row]) % 6
            taken = Rows.at(written[row : row + 1], PAGE, layout).read(source)
            Rows.at(torch.tensor([target]), PAGE, layout).write(expected, taken)
            marks[target] = positions[row]
    assert torch.equal(ring, expected)
    assert torch.equal(tags, marks)
