from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.cache.geometry import Geometry, Owner
from epd_workers.reference.model.config import RELEASED, SHIPPED
from tests.support.reference.rows import config, geometry


def test_released_sizes_have_the_released_bytes() -> None:
    sizes = Geometry.of(RELEASED, 256)
    assert sizes.owners == (Owner(2, 2), Owner(8, 2), Owner(14, 2), Owner(20, 1))
    assert (sizes.main_bytes, sizes.index_bytes, sizes.window_bytes) == (288, 68, 528)
    assert sizes.bytes_per_token == 890
    assert sizes.bytes_per_token * RELEASED.text.max_position_embeddings == 890 << 20
    assert sizes.page_bytes == 890 * 256
    assert sizes.window_bytes_per_request == 2_703_360
    assert sizes.draft_bytes_per_request == 202_752
    assert sizes.pending_bytes == 12_288
    assert sizes.window_page_bytes == 40 * 256 * 528


def test_bfloat16_caches_are_what_is_compared_against() -> None:
    sizes = Geometry.of(RELEASED, 256, "bf16")
    assert (sizes.main_bytes, sizes.index_bytes) == (1024, 256)
    assert sizes.bytes_per_token == 3200
    assert sizes.window_bytes * sizes.layers == 40_960
    assert sizes.pending_bytes == 12_288


def test_the_smallest_page_has_whole_bytes() -> None:
    sizes = Geometry.of(SHIPPED, 2)
    assert sizes.bytes_per_token == Fraction(3, 2) * (64 // 2 + 64 // 16 + 32 // 2 + 32 // 32)
    assert sizes.page_bytes == sizes.bytes_per_token * 2


@pytest.mark.parametrize(("length", "size"), [(0, 0), (1, 256), (2, 0), (7, 256)])
def test_only_an_odd_length_has_a_state(length: int, size: int) -> None:
    assert geometry().state_bytes(length) == size


@pytest.mark.parametrize("page_size", [-2, 0, 1, 3, 255])
def test_a_page_holds_whole_groups(page_size: int) -> None:
    with pytest.raises(ValueError, match=rf"page_size is {page_size}: .*\(1, 2\); choose one such as \d+$") as caught:
        Geometry.of(RELEASED, page_size)
    assert Geometry.of(RELEASED, int(str(caught.value).rsplit(maxsplit=1)[1])).page_bytes > 0


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ValueError, match=r"page_size is 3.*; cache_type is 'fp8': must be one of fp4, bf16"):
        Geometry.of(RELEASED, 3, "fp8")  # type: ignore[arg-type] # wrong on purpose


def test_the_layout_tells_everything_apart() -> None:
    text = config().text
    sizes = [
        geometry(),
        geometry(page_size=8),
        geometry(cache_type="fp4"),
        geometry(window=16),
        Geometry.of(config(), 4, "bf16", "other weights"),
        *(
            Geometry.of(replace(config(), text=replace(text, **change)), 4, "bf16", "weights")
            for change in (
                {"head_dim": 64},
                {"index_head_dim": 64},
                {"num_nextn_predict_layers": 2},
                {"num_hidden_layers": 4, "compress_ratios": (0, 2, 1, 1, 0)},
                {"compress_ratios": (2, 2, 1, 0), "kv_source_layer_ids": (0, 2)},
                {"compress_ratios": (0, 1, 1, 0)},
            )
        ),
    ]
    assert len({each.layout for each in sizes}) == len(sizes)
    assert geometry().layout == geometry().layout


def test_the_table_adds_up() -> None:
    sizes = Geometry.of(RELEASED, 256)
    lines = sizes.table(pages=10, window_pages=3)
    token = [line for line in lines if line.scope == "token"]
    assert sum(line.bytes for line in token[:-1]) == token[-1].bytes == 890
    assert [(line.item, int(line.bytes)) for line in lines if line.scope == "request"] == [
        ("windows", 2_703_360),
        ("draft rings", 202_752),
        ("pending pairs", 12_288),
    ]
    assert [line.bytes for line in lines if line.scope == "page"] == [227_840, 5_406_720]
    assert [line.bytes for line in lines if line.scope == "pool"] == [2_278_400, 16_220_160]


@given(st.sampled_from([2, 4, 6, 16, 64]), st.integers(1, 40), st.integers(0, 300))
def test_no_step_touches_more_window_pages_than_stated(page_size: int, chunk: int, length: int) -> None:
    sizes = geometry(page_size)
    kept = max(0, length - sizes.window) // page_size
    touched = -(-(length + chunk) // page_size) - kept
    assert touched <= sizes.window_pages_per_request(chunk)
