"""The arithmetic of a pool of windows, against the engine's own sizes and against simpler ways of counting."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_operator.cli import pool_sizing
from epd_operator.cli.pool_pauses import LONGEST_PAUSES, RETURNING
from epd_operator.engines import lookup
from epd_workers.reference.model.config import RELEASED, Config
from epd_workers.reference.model.replay import PRESETS
from epd_workers.swapool.header import SIZE
from epd_workers.swapool.key import LONGEST_POSITION, Key, Namespace
from epd_workers.swapool.memory import OVERHEAD
from tests.support.checkpoint import geometry, packaged_config

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENT = (Path(__file__).parents[2] / "docs" / "swa-pool.md").read_text(encoding="utf-8")
RATES = st.floats(0.01, 10_000)
MODELS = [(pool_sizing.PACKAGED, packaged_config), (pool_sizing.RELEASED, lambda: RELEASED)]
TTLS = st.floats(1, 2000)
CAPACITIES = st.builds(pool_sizing.Capacity, st.integers(1, 10**6), st.sampled_from([1.0, 1.5, 2.984375, 5.96875]))


@pytest.mark.parametrize(("model", "config_of"), MODELS)
@pytest.mark.parametrize(
    ("replay", "preset", "cache"), list(product(("on", "off"), ("0.5.23", "dsv41-37ae292e"), ("fp4", "bf16")))
)
def test_a_window_has_the_engines_size(
    model: pool_sizing.Model, config_of: Callable[[], Config], replay: str, preset: str, cache: Any
) -> None:
    config = config_of()
    sizes = geometry(config, cache)
    args = {"decoder-replay": replay, "decoder-replay-preset": preset, "kv-cache-dtype": cache}
    layers = PRESETS[preset].first_late(config.text) if replay == "on" else sizes.layers
    assert pool_sizing.window(model, args) == pool_sizing.Window(layers, sizes.window, sizes.window_bytes)


def test_missing_flags_have_the_engines_defaults() -> None:
    flags = lookup("Reference", "0.1").args("prefill")
    defaults = {name: flags[name].default for name in ("decoder-replay", "decoder-replay-preset", "kv-cache-dtype")}
    assert (
        pool_sizing.window(pool_sizing.RELEASED, {})
        == pool_sizing.window(pool_sizing.RELEASED, defaults)
        == pool_sizing.Window(20, 128, 528)
    )
    assert pool_sizing.window(pool_sizing.RELEASED, {}).bytes == 1_351_680


def test_an_entry_in_process_costs_what_is_reckoned() -> None:
    space = Namespace("m", "", "", "", "", 0, 1, 128, 1, 64)
    assert SIZE + len(Key(space, bytes(32), LONGEST_POSITION).text) + OVERHEAD == pool_sizing.ENTRY_BYTES


def test_windows_held() -> None:
    tib, window = 2**40, pool_sizing.window(pool_sizing.RELEASED, {}).bytes
    # 10 % of a host of 1 TiB.
    assert pool_sizing.held("Mooncake", tib // 10, window) == 73_209
    assert pool_sizing.held("Mooncake", tib // 10, window, stores=3) == 3 * 73_209
    assert pool_sizing.held("Valkey", 8 << 30, window) == 5983
    assert pool_sizing.held("InProcess", 256 << 20, window) == 198
    assert pool_sizing.held("Disabled", 8 << 30, window) == 0


@given(st.sampled_from([1, 128]), st.sampled_from([16, 64, 256]), st.sampled_from([0, 1, 5]))
def test_windows_per_turn_is_the_mean_over_where_a_prompt_ends(rerun: int, page: int, pages: int) -> None:
    lengths = range(1024 + page * pages, 1024 + page * (pages + 1))
    ends = [len(range((length + 1 - rerun) // page, length // page + 1)) for length in lengths]
    assert pool_sizing.windows_per_turn(page, rerun) == pytest.approx(sum(ends) / len(ends))
    assert pool_sizing.windows_per_turn(page, rerun, ends=2) == 2 * pool_sizing.windows_per_turn(page, rerun)


@given(st.floats(0, 4000), st.floats(0, 4000))
def test_a_longer_life_hits_no_less(one: float, other: float) -> None:
    short, long = sorted((one, other))
    assert 0 <= pool_sizing.hit_share(short) <= pool_sizing.hit_share(long) <= 1


def test_shares_at_the_ends_and_at_quantiles() -> None:
    assert pool_sizing.hit_share(LONGEST_PAUSES[0] - 1e-9) == 0
    assert pool_sizing.hit_share(LONGEST_PAUSES[-1]) == pool_sizing.hit_share(math.inf) == 1
    assert pool_sizing.hit_share(LONGEST_PAUSES[100]) == 0.5
    assert pool_sizing.hit_share((LONGEST_PAUSES[100] + LONGEST_PAUSES[101]) / 2) == pytest.approx(0.5025)
    assert list(LONGEST_PAUSES) == sorted(LONGEST_PAUSES)
    assert 0 < RETURNING < 1


@given(CAPACITIES, TTLS, RATES)
def test_what_a_full_pool_replaces_in_a_life_is_what_it_holds(
    capacity: pool_sizing.Capacity, ttl: float, rate: float
) -> None:
    life = capacity.lifetime(ttl, rate)
    share = pool_sizing.publishing(min(ttl, life))
    assert life * rate * capacity.per_turn * share == pytest.approx(capacity.windows, rel=1e-6)


@given(CAPACITIES, TTLS, RATES)
def test_memory_decides_above_the_highest_rate_and_only_there(
    capacity: pool_sizing.Capacity, ttl: float, rate: float
) -> None:
    highest = capacity.highest_rate(ttl)
    assert pool_sizing.needed(ttl, highest, capacity.per_turn) == pytest.approx(capacity.windows)
    enough = rate <= highest
    assert (capacity.lifetime(ttl, rate) >= ttl * (1 - 1e-9)) if enough else (capacity.lifetime(ttl, rate) <= ttl)
    assert capacity.hit_share(ttl, rate) <= pool_sizing.hit_share(ttl)
    if enough:
        assert capacity.hit_share(ttl, rate) == pytest.approx(pool_sizing.hit_share(ttl), abs=1e-6)


@given(CAPACITIES, TTLS, RATES, st.integers(1, 1000))
def test_memory_never_hurts(capacity: pool_sizing.Capacity, ttl: float, rate: float, more: int) -> None:
    larger = pool_sizing.Capacity(capacity.windows + more, capacity.per_turn)
    assert larger.hit_share(ttl, rate) >= capacity.hit_share(ttl, rate) - 1e-9


def test_without_turns_nothing_is_replaced() -> None:
    assert pool_sizing.Capacity(10, 1).lifetime(300, 0) == math.inf
    assert pool_sizing.Capacity(10, 1).hit_share(300, 0) == pool_sizing.hit_share(300)


# The figures of docs/swa-pool.md.


def cells(row: str) -> list[str]:
    (line,) = [line for line in DOCUMENT.splitlines() if line.startswith(row)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix("%"))


@pytest.mark.parametrize(("host", "gib"), [("| 512 GiB", 512), ("| 1 TiB", 1024), ("| 2 TiB", 2048)])
def test_the_documented_tenth_of_a_hosts_memory(host: str, gib: int) -> None:
    _, store, windows, rate, all_layers = cells(host)
    memory = gib * 2**30 // 10
    assert store == f"{gib / 10:g} GiB"
    small, large = (
        pool_sizing.window(pool_sizing.RELEASED, {"decoder-replay": replay}).bytes for replay in ("on", "off")
    )
    assert number(windows) == pool_sizing.held("Mooncake", memory, small)
    assert number(all_layers) == pool_sizing.held("Mooncake", memory, large)
    capacity = pool_sizing.Capacity(int(number(windows)), pool_sizing.windows_per_turn(64, 128))
    assert number(rate) == pytest.approx(capacity.highest_rate(300), abs=0.05)


def test_the_documented_windows_and_shares() -> None:
    args: list[dict[str, str]] = [{}, {"decoder-replay-preset": "dsv41-37ae292e"}, {"decoder-replay": "off"}]
    rows = ["| released, decoder replay on", "| the same, preset", "| released, decoder replay off"]
    for row, given_args in zip(rows, args, strict=True):
        window = pool_sizing.window(pool_sizing.RELEASED, given_args)
        assert [number(cell) for cell in cells(row)[1:]] == [window.layers, window.row_bytes, window.bytes]
    shares = [number(cell) for cell in cells("| returning turns that hit")[1:]]
    lives = [float(cell.removesuffix("s")) for cell in cells("| `ttl` |")[1:]]
    assert shares == [pytest.approx(100 * pool_sizing.hit_share(life), abs=0.05) for life in lives]
