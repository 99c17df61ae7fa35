from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.kernels import table, work
from bench.kernels.__main__ import main, parse
from bench.kernels.calls import CALLS
from bench.kernels.case import CASES, Case, kept
from bench.kernels.cost import Cost, Stream, cost
from bench.kernels.inputs import Inputs
from bench.kernels.machine import MACHINES, Machine
from bench.kernels.machine import find as find_machine
from bench.kernels.point import Disagreement, Measured, Point, compare, points, timed
from bench.kernels.registry import OPERATIONS, find
from bench.kernels.timing import WARM_UPS, measure
from bench.spread import Spread
from epd_kernels.dispatch import TORCH
from epd_kernels.formats.reference import INDEX, MAIN, WINDOW
from epd_kernels.sizes import RELEASED, Sizes
from epd_kernels.tail_layout.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

TAILS, ONE, WHOLE, LONG, DECODE = CASES
H200 = MACHINES[0]
SMALL = Sizes(
    hidden=32,
    streams=2,
    heads=2,
    head_dim=32,
    window=8,
    index_heads=2,
    index_dim=32,
    topk=6,
    block=4,
    blocks=3,
    page_size=16,
)
SMALL_CASES = (
    Case("tails", extends=(20, 7, 9), lengths=(40, 7, 10)),
    Case("floors at the tail", extends=(3,), lengths=(30,), policy=Policy.TAIL),
    Case("whole, pairs", extends=(12, 5), lengths=(12, 30), whole=True, ratio=2),
    Case("decode", extends=(1, 1, 1), lengths=(33, 2, 16), whole=True),
)


def megabytes(case: Case, name: str) -> float:
    return find(name).least(case, RELEASED).bytes / 1e6


# Hand-counted: the arithmetic stands in the test, in decimal, never as a call of what is tested.


def test_tail_layout_of_8_requests_by_hand() -> None:
    actual = work.tail_layout(requests=8, rows=1024)
    assert actual.read == 8 * 4 + 8 * 4 + 8 * 4 + 8 * 1 == 104
    assert actual.written == 1024 * (8 + 4 + 4 + 4) + 9 * 4 == 20516
    assert actual.bytes == 20620
    assert actual.flops == 0


def test_window_slots_by_hand() -> None:
    actual = work.window_slots(rows=1024, window=128, pages=8)
    assert actual.written == 1024 * 128 * 4 + 1024 * 4 == 528384
    assert actual.read == 3 * 1024 * 4 + 8 * 4 == 12320


def test_entry_slots_by_hand() -> None:
    actual = work.entry_slots(rows=2, count=3, pages=5)
    assert (actual.read, actual.written) == (2 * 3 * 4 + 2 * 4 + 5 * 4, 2 * 3 * 4)


def test_gather_by_hand() -> None:
    actual = work.gather_rows(rows=1024, width=5120 * 2)
    assert actual["source"] == actual["gathered"] == 10485760
    assert actual.bytes == 2 * 10485760 + 1024 * 8


def test_attention_over_one_window_by_hand() -> None:
    # 3 rows, 2 heads, 32 values; 5 keys in all, of 4 different window rows.
    actual = work.attend(rows=3, heads=2, dim=32, window_pairs=5, window_rows=4)
    assert actual["query"] == actual["output"] == 3 * 2 * 32 * 2 == 384
    assert actual["window"] == 4 * (32 + 1) == 132
    assert actual["slots"] == 5 * 4
    assert actual.read == 384 + 20 + 132 + 2 * 4
    assert actual.written == 384 + 3 * 2 * 4
    # Each of 5 keys: 32 products and sums for the score of 2 heads, as many for the value.
    assert actual.flops == 5 * 2 * (2 * 32 + 2 * 32) == 1280


def test_attention_with_entries_by_hand() -> None:
    # 2 rows that have selected 3 and 4 of up to 8 entries; every one is read apart.
    window = work.attend(rows=2, heads=4, dim=64, window_pairs=6, window_rows=6)
    actual = work.attend(rows=2, heads=4, dim=64, window_pairs=6, window_rows=6, topk=8, entry_pairs=7, entry_rows=7)
    # An entry: 64 codes of 4 bits and 4 scales of a byte.
    assert actual["entries"] == 7 * (32 + 4) == 252
    assert actual.bytes - window.bytes == 252 + 2 * 8 * 4
    assert actual.flops - window.flops == 7 * 4 * 4 * 64


@pytest.mark.parametrize(
    ("codec", "dim", "width"),
    [(MAIN, 512, 256 + 32), (WINDOW, 512, 512 + 16), (INDEX, 128, 64 + 4)],
    ids=["main", "window", "index"],
)
def test_packing_by_hand(codec: Any, dim: int, width: int) -> None:
    packed, unpacked = work.pack(rows=10, dim=dim, codec=codec), work.unpack(rows=10, dim=dim, codec=codec)
    assert (packed.read, packed.written) == (10 * dim * 2 + 10 * 4, 10 * width)
    assert (unpacked.read, unpacked.written) == (10 * width + 10 * 4, 10 * dim * 2)
    assert work.unpack(rows=10, dim=dim, codec=codec, pool_rows=4)["pool"] == 4 * width


def test_index_scores_by_hand() -> None:
    # 3 rows, 2 heads of 32 values (16 + 1 bytes), 20 columns of which the rows see 5, 6 and 7: 7 keys, one page.
    actual = work.index_scores(rows=3, heads=2, dim=32, pairs=18, key_rows=7, columns=20, block=8, pages=1)
    assert actual.read == 3 * 2 * 17 + 3 * 2 * 4 + 7 * 17 + 4 + 3 * 4 + 3 * 4
    assert actual.written == 3 * 20 * 4 + 3 * 3 * 4
    assert actual.flops == 18 * 2 * 2 * 32


def test_selection_by_hand() -> None:
    blocks = work.candidate_blocks(rows=4, blocks=10, count=3)
    assert (blocks.read, blocks.written) == (4 * 10 * 4 + 4 * 4, 4 * 3 * 4)
    top = work.top_entries(rows=4, columns=24, count=5, candidates=3)
    assert (top.read, top.written) == (4 * 24 * 4 + 4 * 3 * 4, 4 * 5 * 4)
    assert work.top_entries(rows=4, columns=24, count=5).read == 4 * 24 * 4


def test_pooling_by_hand() -> None:
    # 2 requests, 7 tokens, one waits from before: 4 pairs. A token is 2 x 8 float32 = 64 bytes, a latent 32.
    actual = work.pool_pairs(tokens=7, entries=4, requests=2, waiting=1, dim=8)
    assert actual.read == 7 * 64 + 3 * 4 + 2 * 4 + 1 * 64 + 2 * 1 + 8 * 4
    assert actual.written == 4 * 32 + 4 * 4 + 4 * 4 + 2 * 64 + 2 * 1


# Published figures for 8 requests of 8,192 tokens at released sizes, per layer: S = 65,536, R = 1,024.


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("tail_layout", 0.021),
        ("window_slots", 0.54),  # 0.53 written; positions, floors and requests come to 0.012
        ("gather_rows, hidden", 21.0),
        ("gather_rows, streams", 83.9),
        ("pack, main", 86.2),  # 86.0 of rows and entries; slots come to 0.26
        ("unpack, main selected", 690.0),  # 687.9 likewise
        ("index_scores", 44.6),  # 4.5 + 2.2 + 33.6, block maxima 4.2
    ],
)
def test_least_bytes_of_the_released_batch(name: str, published: float) -> None:
    assert megabytes(TAILS, name) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("name", "streams", "published"),
    [
        ("window_slots", ["slots", "counts"], 0.53),
        ("attend, window", ["query", "output"], 134),
        ("attend, window", ["window"], 0.5),
        ("attend, window and entries", ["entries"], 151),
        ("pack, main", ["values", "pool"], 86),
        ("unpack, main selected", ["values", "pool"], 688),
        ("index_scores", ["keys"], 4.5),
        ("index_scores", ["query"], 2.2),
        ("index_scores", ["values"], 33.6),
        ("index_scores", ["maxima"], 4.2),
        ("candidate_blocks", ["maxima"], 4.2),
        ("top_entries, candidates", ["values", "entries"], 69),
        ("pool_pairs", ["projected"], 268),
    ],
)
def test_streams_of_the_released_batch(name: str, streams: list[str], published: float) -> None:
    least = find(name).least(TAILS, RELEASED)
    digits = len(str(published).partition(".")[2])
    actual = sum(least[stream] for stream in streams) / 1e6
    assert round(actual, digits) == pytest.approx(published, abs=0.51 * 10**-digits)


def test_entries_read_once_are_the_whole_prompt() -> None:
    operation = find("attend, window and entries")
    assert operation.reused is not None
    assert operation.reused(TAILS, RELEASED)["entries"] == 65536 * 288
    assert round(65536 * 288 / 1e6, 1) == 18.9


def test_full_windows_and_a_full_selection_are_86_gigaflop() -> None:
    def flops(entries: int) -> float:
        actual = work.attend(
            rows=1024,
            heads=64,
            dim=512,
            window_pairs=1024 * 128,
            window_rows=1024,
            topk=entries,
            entry_pairs=1024 * entries,
            entry_rows=1024 * entries,
        )
        return actual.flops / 1e9

    assert round(flops(0), 1) == 17.2
    assert round(flops(512), 1) == 85.9
    # The floor cuts the windows of the last rows to 1, 2, ..., 128 keys.
    assert find("attend, window").least(TAILS, RELEASED).flops == 8 * (128 * 129 // 2) * 4 * 64 * 512


def test_rescoring_all_candidates_without_reuse_is_more_than_a_gigabyte() -> None:
    # 1,024 rows of a long prompt, 2,048 blocks of 8 keys of 68 bytes; the newest block of a row may be partial.
    far = Case("far", extends=(8192,) * 8, lengths=(262144,) * 8)
    keys = find("index_scores, candidates").least(far, RELEASED)["keys"]
    assert 1024 * 16377 * 68 <= keys <= 1024 * 16384 * 68
    assert round(1024 * 16384 * 68 / 1e9, 2) == 1.14


def test_candidate_blocks_of_a_million_tokens() -> None:
    far = Case("far", extends=(128,) * 8, lengths=(1048576,) * 8)
    assert find("candidate_blocks").least(far, RELEASED)["maxima"] == 1024 * 131072 * 4
    assert round(1024 * 131072 * 4 / 1e6) == 537


def test_the_compressor_with_its_entries_is_278_megabytes() -> None:
    pooled = find("pool_pairs").least(TAILS, RELEASED)["projected"]
    entries = work.pack(rows=32768, dim=512, codec=MAIN)["pool"]
    assert round((pooled + entries) / 1e6) == 278
    # In the encoder half, packing writes half as many entries as there are tokens.
    assert round(megabytes(replace(TAILS, ratio=2), "pack, main")) == 43


# What follows from lengths, against a walk over every row.


def walk(case: Case, window: int) -> tuple[int, set[tuple[int, int]], list[int]]:
    pairs, seen, entries = 0, set(), []
    for request, (extend, length) in enumerate(zip(case.extends, case.lengths, strict=True)):
        tail = extend if case.whole else min(window, extend)
        for position in range(length - tail, length):
            floor = 0
            if not case.whole:
                floor = max(0, length - window) if case.policy is Policy.WINDOW else length - tail
            keys = [key for key in range(length) if floor <= key <= position and key > position - window]
            pairs += len(keys)
            seen |= {(request, key) for key in keys}
            entries.append(len([entry for entry in range(length) if (entry + 1) * case.ratio <= position + 1]))
    return pairs, seen, entries


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    requests = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=4))
    return Case(
        "drawn",
        extends=tuple(extend for extend, _ in requests),
        lengths=tuple(extend + before for extend, before in requests),
        whole=draw(st.booleans()),
        ratio=draw(st.sampled_from([1, 2])),
        policy=draw(st.sampled_from(Policy)),
    )


@given(cases(), st.integers(1, 12))
def test_cases_count_what_a_walk_over_all_rows_finds(case: Case, window: int) -> None:
    pairs, seen, entries = walk(case, window)
    assert case.window_pairs(window) == pairs
    assert case.window_rows(window) == len(seen)
    assert case.window_pages(window, 4) == len({(request, key // 4) for request, key in seen})
    assert case.rows(window) == len(entries)
    assert case.seen(window) == sum(entries)
    assert case.seen(window, lambda count: min(count, 5)) == sum(min(count, 5) for count in entries)


@given(st.integers(0, 60))
def test_kept_entries_are_those_of_the_newest_and_the_earliest_blocks(seen: int) -> None:
    blocks = [range(first, min(first + SMALL.block, seen)) for first in range(0, seen, SMALL.block)]
    assert kept(seen, SMALL) == sum(len(block) for block in blocks[-SMALL.blocks :])


# The tensors that a call really takes and gives.


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_calls_take_and_give_what_the_registry_counts(case: Case, operation: Any) -> None:
    least = operation.least(case, SMALL)
    call = CALLS[operation.name](Inputs(case, SMALL, torch.device("cpu")))
    streams = {stream.name for stream in least.streams}
    checked = {name: tensor.nbytes for name, tensor in call.tensors.items() if name in streams}
    assert checked, "no stream is a whole tensor"
    assert checked == {name: least[name] for name in checked}
    results = call.run(TORCH)
    assert all(not result.is_floating_point() or not bool(result.isnan().any()) for result in results)
    if "pack" not in operation.name or "unpack" in operation.name:  # packing gives its whole pool
        assert sum(result.nbytes for result in results) == least.written


def test_every_operation_has_a_call() -> None:
    assert set(CALLS) == {operation.name for operation in OPERATIONS}
    with pytest.raises(KeyError):
        find("scatter_rows")


# Properties.


@given(
    rows=st.integers(1, 200),
    pairs=st.integers(1, 4000),
    extra=st.integers(0, 500),
    heads=st.sampled_from([1, 16, 64]),
)
def test_more_work_never_costs_less(rows: int, pairs: int, extra: int, heads: int) -> None:
    def attended(rows: int, pairs: int) -> Cost:
        return work.attend(
            rows=rows, heads=heads, dim=64, window_pairs=pairs, window_rows=pairs, topk=4, entry_pairs=4, entry_rows=4
        )

    less, more = attended(rows, pairs), attended(rows + extra, pairs + extra)
    assert more.bytes >= less.bytes + extra
    assert more.flops == less.flops + 4 * heads * 64 * extra
    assert all(machine.floor(more) >= machine.floor(less) for machine in MACHINES)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.integers(1, 300))
@settings(max_examples=30)
def test_a_longer_step_never_costs_less(lengths: list[int], extra: int) -> None:
    sizes = replace(RELEASED, window=16, page_size=64)
    small = Case("", tuple(lengths), tuple(lengths))
    longer = tuple(length + extra for length in lengths)
    for operation in OPERATIONS:
        least, more = operation.least(small, sizes), operation.least(Case("", longer, longer), sizes)
        # Windows may lie in fewer pages than before.
        assert all(more[stream.name] >= stream.bytes for stream in least.streams if stream.name != "table")
        assert more.flops >= least.flops


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reuse_never_costs_more_and_cuts_only_what_rows_select(case: Case) -> None:
    for operation in OPERATIONS:
        if operation.reused is None:
            continue
        least, reused = operation.least(case, RELEASED), operation.reused(case, RELEASED)
        assert reused.flops == least.flops
        assert {stream for stream in least.streams if reused[stream.name] != stream.bytes} <= {
            stream for stream in least.streams if stream.name in {"entries", "keys", "pool"}
        }
        assert reused.bytes <= least.bytes


def test_the_floor_is_the_longer_of_both() -> None:
    machine = Machine("M", bandwidth=1e12, flops=100e12, source="made up")
    assert machine.floor(cost({"a": 3_000_000}, {"b": 1_000_000}, flops=200_000_000)) == pytest.approx(4e-6)
    assert machine.floor(cost({"a": 3_000_000}, {"b": 1_000_000}, flops=900_000_000)) == pytest.approx(9e-6)


def test_floors_of_the_released_batch_on_an_h200() -> None:
    # 134.2 + 0.5 MB of queries, outputs and windows at 4.8 TB/s take 28.1 us; slots and sums 0.5 MB more.
    assert H200.floor(find("attend, window").least(TAILS, RELEASED)) == pytest.approx(28.1e-6, rel=0.01)
    # 77.4 GFLOP at 989 TFLOP/s take 78 us, 288 MB take 60 us.
    both = find("attend, window and entries").least(TAILS, RELEASED)
    assert H200.floor(both) == pytest.approx(77.376e9 / 989e12, rel=0.001) == pytest.approx(78.2e-6, rel=0.01)
    assert H200.memory_seconds(both) < H200.matrix_seconds(both)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI355X OAM", "MI355X"),
        ("NVIDIA GB200", None),
        ("NVIDIA H200 NVL", None),
    ],
)
def test_machines_are_known_by_their_drivers_names(name: str, expected: str | None) -> None:
    machine = find_machine(name)
    assert (machine.name if machine else None) == expected


def test_costs() -> None:
    actual = cost({"a": 3, "b": 4}, {"c": 5}, flops=6)
    assert actual.streams == (Stream("a", 3), Stream("b", 4), Stream("c", 5, written=True))
    assert (actual.read, actual.written, actual.bytes, actual["c"]) == (7, 5, 12, 5)
    with pytest.raises(KeyError):
        actual["d"]


# Measuring, with a clock of our own.


class FakeClock:
    def __init__(self, seconds: list[float]) -> None:
        self.left = list(seconds)

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        return self.left.pop(0)


def test_measuring_warms_up_first() -> None:
    calls: list[int] = []
    actual = measure(lambda: calls.append(1), FakeClock([3.0, 1.0, 2.0]), 3)
    assert actual == Spread(2.0, 1.0, 3.0)
    assert len(calls) == WARM_UPS + 3


def test_points_are_timed_behind_a_comparison() -> None:
    wanted = [find("tail_layout"), find("pack, main")]
    lines = list(points(wanted, SMALL_CASES[:1], SMALL))
    reported: list[str] = []
    clock = FakeClock([2e-6, 4e-6] * 2)
    actual = list(
        timed(lines, clock, kernels=TORCH, baseline=TORCH, device=torch.device("cpu"), repeats=1, tell=reported.append)
    )
    assert [point.measured for point in actual] == [Measured(Spread(2e-6, 2e-6, 2e-6), Spread(4e-6, 4e-6, 4e-6))] * 2
    assert reported == ["tails: tail_layout", "tails: pack, main"]
    assert clock.left == []


def test_wrong_kernels_are_not_timed() -> None:
    def shifted(*args: Any, **kwargs: Any) -> Tensor:
        return TORCH.entry_slots(*args, **kwargs) + 1

    lines = list(points([find("entry_slots")], SMALL_CASES[:1], SMALL))
    wrong = replace(TORCH, entry_slots=shifted)
    clock = FakeClock([])
    with pytest.raises(Disagreement, match="entry_slots: result 0"):
        list(timed(lines, clock, kernels=wrong, baseline=TORCH, device=torch.device("cpu"), repeats=1, tell=print))


def test_results_must_agree_to_bfloat16() -> None:
    one = torch.tensor([1.0, float("-inf")])
    compare("x", [one], [one * 1.01])
    with pytest.raises(Disagreement):
        compare("x", [one], [one * 1.05])
    with pytest.raises(Disagreement):
        compare("x", [torch.tensor([1])], [torch.tensor([2])])


# The command.


def test_without_a_gpu_it_prints_floors_and_says_that_nothing_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 0
    captured = capsys.readouterr().out
    assert captured.endswith(f"{table.UNMEASURED}\n")
    assert "No time was measured" in captured
    assert "kernel us" not in captured.split(table.NOTES)[0]
    assert captured.startswith("Floors of H200: 4.8 TB/s, 989 TFLOP/s (NVIDIA H200 SXM data sheet")
    assert "8 x 8,192 tokens, last rows: R = 1,024 rows, 1 token(s) an entry" in captured
    row = next(line for line in captured.splitlines() if line.startswith("attend, window and entries"))
    assert row.split()[4:] == ["288.377", "156.257", "77.38", "78.24", "matrix"]


def test_json_has_every_stream(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--json", "--only", "tail_layout", "--machine", "MI300X"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert (captured["measured"], captured["gpu"], captured["machine"]["name"]) == (False, None, "MI300X")
    assert [point["operation"] for point in captured["points"]] == ["tail_layout"] * len(CASES)
    first = captured["points"][0]
    assert first["streams"]["starts"] == {"bytes": 36, "written": True}
    assert first["least_bytes"] == 20620
    assert first["floor_us"] == round(20620 / 5.3e12 * 1e6, 4)
    assert not any("kernel_us" in point or "share_of_floor" in point for point in captured["points"])


def test_a_measured_report() -> None:
    times = Measured(Spread(40e-6, 39e-6, 45e-6), Spread(400e-6, 399e-6, 401e-6))
    point = Point(find("attend, window"), TAILS, RELEASED, times)
    reported = table.table([point], H200, "NVIDIA H200")
    row = next(line for line in reported.splitlines() if line.startswith("attend, window"))
    assert row.split()[2:] == [
        *("135.285", "8.66", "28.18", "memory", "40.0", "(39.0-45.0)", "400.0", "(399.0-401.0)", "70%")
    ]
    assert table.MEASURED in reported
    assert table.UNMEASURED not in reported
    document = table.document([point], H200, "NVIDIA H200")
    assert document["points"][0]["share_of_floor"] == round(28.185e-6 / 40e-6, 4)
    assert document["points"][0]["kernel_us"] == {"median": 40.0, "low": 39.0, "high": 45.0}
    # A GPU whose peaks nobody has listed: times, and no share.
    reported = table.table([point], None, "NVIDIA GB300")
    assert "peaks are not listed" in reported
    assert "%" not in reported


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "scatter"], "invalid choice"),
        (["--machine", "H100"], "invalid choice"),
        (["--repeats", "0"], "whole number"),
    ],
)
def test_bad_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert message in capsys.readouterr().err


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    assert "no time was measured" in " ".join(capsys.readouterr().out.split())
