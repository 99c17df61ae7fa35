from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.model import oracle_formats as formats
from tests.reference.model.oracle import span, vision
from tests.reference.model.oracle_engram import engram, rows_of, table_primes
from tests.reference.model.oracle_parts import attend, frequencies, rotate, sinkhorn
from tests.support.reference.configs import random_weights, tiny

TINY = tiny()
WEIGHTS = random_weights(TINY, 0)


def row(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- formats


def test_e4m3_values() -> None:
    assert formats.E4M3[:3] == [0.0, 2**-9, 2**-8]
    assert formats.E4M3[8:10] == [2**-6, 1.125 * 2**-6]
    assert formats.E4M3[-3:] == [384.0, 416.0, 448.0]
    assert len(formats.E4M3) == 127
    assert sorted(formats.E4M3) == formats.E4M3


def test_ties_take_the_even_code_and_large_values_saturate() -> None:
    ties = row([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.75, -5.0, 7.0, -100.0])
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -1.0, -4.0, 6.0, -6.0]
    assert formats.nearest(ties, formats.E2M1).tolist() == expected
    assert formats.nearest(row([432.0, 400.0, 2**-10, 3 * 2**-10, 1e9]), formats.E4M3).tolist() == [
        448.0,
        384.0,
        0.0,
        2**-8,
        448.0,
    ]


def test_table_search_agrees_with_the_float8_of_torch() -> None:
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 2, 20_000)
    x = x.clamp(-448, 448)
    assert torch.equal(formats.nearest(x.double(), formats.E4M3).float(), x.to(torch.float8_e4m3fn).float())
    assert torch.equal(formats.bf16(x.double()).float(), x.to(torch.bfloat16).float())


def test_powers_of_two() -> None:
    assert formats.power_of_two_above(row([1.0, 1.0000001, 0.75, 0.5, 2**-126, 3.0])).tolist() == [
        1.0,
        2.0,
        1.0,
        0.5,
        2**-126,
        4.0,
    ]


def test_blocks_scale_apart() -> None:
    # 448 fills E4M3 at scale 1; 449 needs scale 2, where the steps near 449 are 64 wide.
    x = torch.zeros(64, dtype=torch.float64)
    x[0], x[1], x[32], x[33] = 448.0, 2**-9, 449.0, 2**-9
    assert formats.window_fp8(x)[[0, 1, 32, 33]].tolist() == [448.0, 2**-9, 448.0, 0.0]
    # amax 6.6: scale E4M3(1.1) = 1.125, so 6.6 -> 6 * 1.125; the next 16 values keep scale 1.
    y = torch.zeros(32, dtype=torch.float64)
    y[0], y[1], y[16], y[17] = 6.6, 1.0, 6.0, 1.0
    assert formats.main_fp4(y)[[0, 1, 16, 17]].tolist() == [6.75, 1.125, 6.0, 1.0]
    # amax 6.6: scale 2^ceil(log2(1.1)) = 2.
    z = torch.zeros(32, dtype=torch.float64)
    z[0], z[1], z[2] = 6.6, 1.1, -0.4
    assert formats.index_mxfp4(z)[:3].tolist() == [6.0, 1.0, 0.0]
    assert formats.main_fp4(torch.zeros(16, dtype=torch.float64)).tolist() == [0.0] * 16
    smallest = row([6 * 2**-9, *[0.0] * 15]) / 2
    assert formats.main_fp4(smallest)[0] == 3 * 2**-9


@given(st.lists(st.floats(-1e3, 1e3), min_size=32, max_size=32))
def test_formats_are_projections(values: list[float]) -> None:
    x = row(values)
    for rounding in (formats.window_fp8, formats.index_mxfp4, formats.bf16):
        once = rounding(x)
        assert torch.equal(rounding(once), once)


# --- pieces


def test_sinkhorn_is_doubly_stochastic() -> None:
    c = sinkhorn(torch.randn(50, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 20, 1e-6)
    assert float((c.sum(-2) - 1).abs().max()) < 1e-5
    assert float((c.sum(-1) - 1).abs().max()) < 1e-4
    assert float(c.min()) > 0
    uniform = sinkhorn(torch.zeros(1, 4, 4, dtype=torch.float64), 20, 0.0)
    assert torch.equal(uniform, torch.full((1, 4, 4), 0.25, dtype=torch.float64))


def test_yarn_of_the_released_sizes() -> None:
    text = {
        "qk_rope_head_dim": 64,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
    }
    scaled = frequencies(text, 2)
    plain = [160000 ** (-i / 32) for i in range(32)]
    assert scaled[:16] == pytest.approx(plain[:16])
    assert scaled[25:] == pytest.approx([f / 16 for f in plain[25:]])
    assert scaled[20] == pytest.approx(plain[20] * (0.5 + 0.5 / 16))
    assert frequencies(text, 0)[1] == pytest.approx(10000 ** (-1 / 32))


def test_rotation_depends_on_distance_and_inverts() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(1, 32, dtype=torch.float64, generator=generator) for _ in range(2))
    freqs = frequencies(TINY["text_config"], 1)
    dots = [float((rotate(q, [p + 7], freqs) * rotate(k, [p], freqs)).sum()) for p in (0, 3, 900)]
    assert dots == pytest.approx([dots[0]] * 3)
    assert torch.allclose(rotate(rotate(q, [31], freqs), [31], freqs, inverse=True), q, atol=1e-14)
    assert torch.equal(rotate(q, [31], freqs)[:, :24], q[:, :24])


def test_sink_only_adds_to_the_denominator() -> None:
    keys = torch.ones(1, 4, dtype=torch.float64)
    q = torch.zeros(1, 2, 4, dtype=torch.float64)
    out = attend(q, keys, torch.ones(1, 1, dtype=torch.bool), row([0.0, math.log(3)]))
    assert out[0, :, 0].tolist() == pytest.approx([1 / 2, 1 / 4])


def test_engram_primes_of_the_released_sizes() -> None:
    tables = table_primes(2, 3, 8, 16_000_000)
    assert tables[0][0][0] == 16_000_057
    assert [sum(map(sum, table)) for table in tables] == [384_006_168, 384_016_682]


def test_engram_rows_see_the_last_ids_and_nothing_past_an_image() -> None:
    text = TINY["text_config"]
    identity = list(range(96))

    def rows(ids: list[int], image: set[int]) -> list[list[int]]:
        return rows_of(text, 1, ids, [i in image for i in range(len(ids))], identity)

    base = rows([5, 6, 7, 8, 9, 10], set())
    assert rows([50, 6, 7, 8, 9, 10], set())[4:] == base[4:]
    assert rows([5, 60, 7, 8, 9, 10], set())[4] != base[4]
    heads = text["engram_n_heads"]
    assert rows([5, 60, 7, 8, 9, 10], set())[4][: 2 * heads] == base[4][: 2 * heads]
    # An image at 3 hides itself and all before it from the rows behind: as if the text began at 4.
    assert rows([5, 6, 7, 94, 9, 10], {3})[4:] == rows([9, 10], set())
    assert len({len(r) for r in base} | {3 * heads}) == 1
    assert max(max(r) for r in base) < text["engram_num_embeddings"][0]


def test_engram_leaves_image_positions_alone() -> None:
    streams = torch.randn(2, 4, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    out = engram(streams, [[0] * 6, [1] * 6], [True, False], TINY["text_config"], WEIGHTS, "layers.1.engram")
    assert torch.equal(out[0], streams[0])
    assert not torch.equal(out[1], streams[1])


# --- vision


def test_vision_is_bidirectional_and_its_span_is_laid_out() -> None:
    patches = torch.randn(7 * 10, 588, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    out = vision(TINY, WEIGHTS, patches, 7, 10)
    changed = patches.clone()
    changed[-1] += 1
    assert ((vision(TINY, WEIGHTS, changed, 7, 10) - out).abs().amax(1) > 1e-9).all()
    rows = span(TINY, WEIGHTS, patches, 7, 10)
    assert rows.shape == (3 * (4 + 1) + 2, 32)
    assert torch.equal(rows[0], WEIGHTS["image_start"])
    assert torch.equal(rows[-1], WEIGHTS["image_end"])
    newline = (rows == WEIGHTS["image_newline"]).all(1).nonzero().flatten().tolist()
    assert newline == [5, 10, 15]


def test_patches_know_their_place() -> None:
    patches = torch.ones(6, 588, dtype=torch.float64)
    patches[0] = -1
    upright, lying = vision(TINY, WEIGHTS, patches, 2, 3), vision(TINY, WEIGHTS, patches, 3, 2)
    assert not torch.allclose(upright[1], upright[3])  # one to the right is not one below
    assert not torch.allclose(upright[5], lying[5])
