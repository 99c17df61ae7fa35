"""`epd explain` of a deployment with a pool of windows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from epd_operator.cli import pool_sizing

if TYPE_CHECKING:
    from tests.support.cli import Epd, Write

POOLED = """\
apiVersion: serving.epd.dev/v1alpha1
kind: DeepSeekV41Deployment
metadata: {name: demo}
spec:
  engine: {type: Reference, version: "0.1"}
  swaPool: {mode: Valkey, memory: 1Gi}
  roles:
    prefill: {replicas: 3, encoderReplay: true}
    decode: {}
"""
ELSEWHERE = '  model: {path: /model, source: {image: {reference: "registry/weights:1"}}}\n'


class Explain(Protocol):
    """Gives what is explained of the pool of a document: open JSON, None without a pool."""

    def __call__(self, text: str, *words: str) -> Any: ...


@pytest.fixture
def explained(epd: Epd, write: Write) -> Explain:
    def explain(text: str, *words: str) -> Any:
        answer = epd("explain", "-o", "json", *words, write(text))
        assert answer.status == 0, answer.err
        return json.loads(answer.out)["documents"][0]["swa_pool"]

    return explain


def test_a_pool_is_counted_in_windows(explained: Explain) -> None:
    actual = explained(POOLED)
    assert (actual["layers"], actual["rows"], actual["row_bytes"], actual["window_bytes"]) == (4, 128, 66, 33_792)
    assert actual["windows"] == pool_sizing.held("Valkey", 2**30, 33_792)
    assert actual["windows_per_turn"] == 2.984
    assert [(row["seconds"], row["chosen"]) for row in actual["ttl"]] == [
        *((60, False), (120, False), (180, False), (300, True), (600, False))
    ]
    chosen = actual["ttl"][3]
    capacity = pool_sizing.Capacity(actual["windows"], pool_sizing.windows_per_turn(64, 128))
    assert chosen["hit_share"] == round(pool_sizing.hit_share(300), 4)
    assert chosen["turns_per_second"] == round(capacity.highest_rate(300), 4)
    assert chosen["hit_share_at_rate"] is None


def test_a_time_to_live_of_ones_own_is_among_them(explained: Explain) -> None:
    actual = explained(POOLED.replace("1Gi", "1Gi, ttl: 1m30s"))
    assert [row["seconds"] for row in actual["ttl"]] == [60, 90, 120, 180, 300, 600]
    assert [row["seconds"] for row in actual["ttl"] if row["chosen"]] == [90]


def test_a_rate_shows_what_memory_costs(explained: Explain) -> None:
    slow, fast = (explained(POOLED, "--turns-per-second", rate) for rate in ("1", "500"))
    assert [row["hit_share_at_rate"] for row in slow["ttl"]] == [row["hit_share"] for row in slow["ttl"]]
    capacity = pool_sizing.Capacity(fast["windows"], pool_sizing.windows_per_turn(64, 128))
    assert fast["turns_per_second"] == 500
    for row in fast["ttl"]:
        assert row["hit_share_at_rate"] == round(capacity.hit_share(row["seconds"], 500), 4) < row["hit_share"]


def test_each_mode_holds_what_its_servers_hold(explained: Explain) -> None:
    stores = explained(POOLED.replace("mode: Valkey", "mode: Mooncake, stores: 4"))
    alone = explained(POOLED.replace("Valkey, memory: 1Gi", "InProcess, memory: 128Mi"))
    assert (stores["servers"], stores["windows"]) == (4, pool_sizing.held("Mooncake", 2**30, 33_792, 4))
    assert (alone["servers"], alone["windows"]) == (3, 3 * pool_sizing.held("InProcess", 2**27, 33_792))


def test_sizes_follow_the_model_and_the_flags(explained: Explain) -> None:
    other = POOLED.replace("  swaPool", ELSEWHERE + "  swaPool")
    assert explained(other)["window_bytes"] == 1_351_680
    off = other.replace("prefill: {", "prefill: {decoderReplay: 'Off', args: {page-size: 256}, ")
    off = off.replace("decode: {}", "decode: {args: {page-size: 256}}")
    actual = explained(off)
    assert (actual["layers"], actual["windows_per_turn"]) == (40, 1.0)


def test_answers_are_counted_where_decode_keeps_their_pages(explained: Explain) -> None:
    kept = POOLED.replace("{}", "{args: {kv-disk-path: /pages}}")
    kept = kept.replace("encoderReplay: true", "encoderReplay: true, args: {kv-disk-path: /pages}")
    assert explained(kept)["windows_per_turn"] == 5.969


def test_people_get_a_table(epd: Epd, write: Write) -> None:
    text = epd("explain", "--turns-per-second", "50", write(POOLED)).out
    before, _, after = text.partition("\npool of windows: Valkey\n")
    assert "decode: epd-reference" in before
    lines = after.splitlines()
    assert lines[0] == "    a window is 4 layers x 128 rows x 66 bytes = 33,792 bytes"
    assert lines[1] == "    one server of 1Gi holds 29,919; a turn leaves 2.98 behind"
    assert lines[2].split("  ")[-1] == "hit at 50 turns/s"
    assert lines[6].split() == ["300s", "69.2%", "36.9", "58.3%", "spec.swaPool.ttl"]
    assert "pod of" not in after
    alone = epd("explain", write(POOLED.replace("Valkey, memory: 1Gi", "InProcess"))).out
    assert "3 prefill pods of 256Mi hold 23,355" in alone
    assert "a turn that another pod serves misses" in alone


@pytest.mark.parametrize("text", ["", "  swaPool: {mode: Disabled}\n"])
def test_without_a_pool_nothing_is_said_of_one(epd: Epd, write: Write, explained: Explain, text: str) -> None:
    bare = POOLED.replace("  swaPool: {mode: Valkey, memory: 1Gi}\n", text)
    assert explained(bare) is None
    assert "pool of windows" not in epd("explain", write(bare)).out


@pytest.mark.parametrize("rate", ["x", "0", "-1", "inf", "nan"])
def test_bad_rates_are_refused(epd: Epd, write: Write, rate: str) -> None:
    answer = epd("explain", f"--turns-per-second={rate}", write(POOLED))
    assert answer.status == 2
    assert "give a number above zero" in answer.err
