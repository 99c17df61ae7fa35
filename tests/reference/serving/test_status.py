from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epd_workers.reference.serving.admission import Admission, State
from epd_workers.reference.serving.errors import ApiError
from epd_workers.reference.serving.metrics import Throughput
from epd_workers.reference.serving.record import Leg, Record, RecordBook
from tests.support.reference.serving import CHAT, SHORT, chat
from tests.support.reference.small import WINDOW

if TYPE_CHECKING:
    from tests.support.reference.serving import Fleet, Running

ROLES = ("encode", "prefill", "decode", "aggregated")


@pytest.mark.parametrize("role", ROLES)
async def test_what_a_router_asks_for_at_registration(fleet: Fleet, role: str) -> None:
    server = await fleet.start(role, "--served-model-name", "m")
    for path in ("/health", "/ready", "/health_generate"):
        assert (await server.get(path)).status == 200
    model = (await server.get("/v1/models")).body["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("m", "sglang", 192)
    info = (await server.get("/model_info")).body
    expected = {
        "served_model_name": "m",
        "disaggregation_mode": role if role in {"prefill", "decode"} else "null",
        "has_image_understanding": True,
        "max_running_requests": 16,
        "page_size": 4,
        "context_length": 192,
        "kv_cache_dtype": "fp4",
        "model_type": "deepseek_v41",
        "architectures": ["DeepseekV41ForCausalLM"],
    }
    assert expected.items() <= info.items()
    reported = (await server.get("/server_info")).body
    assert info.items() <= reported.items()
    assert reported["encoder_only"] == (role == "encode")
    assert (await server.get("/get_server_info")).body.keys() == reported.keys()


@pytest.mark.parametrize("role", ROLES)
async def test_loads_have_the_shape_that_routers_poll(fleet: Fleet, role: str) -> None:
    server = await fleet.start(role)
    answer = (await server.get("/v1/loads?include=core,disagg,queues,memory")).body
    assert {"timestamp", "version", "accelerator", "num_accelerators", "loads"} <= answer.keys()
    (load,) = answer["loads"]
    core = ("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "token_usage")
    assert all(load[name] == 0 for name in core if not name.startswith("max"))
    assert load["memory"]["token_capacity"] == load["max_total_num_tokens"] == 2048
    assert load["queues"] == {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0}
    assert load["disaggregation"]["prefill_bootstrap_queue_reqs"] == 0
    (bare,) = (await server.get("/v1/loads?include=core")).body["loads"]
    assert not {"memory", "queues", "disaggregation"} & bare.keys()
    assert (await server.get("/v1/loads?include=core,wrong")).status == 400


async def test_metrics_count_under_sglangs_names(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill", *SHORT), await fleet.start("decode")
    await fleet.pair(prefill, decode, chat("hello", max_tokens=5))
    await prefill.post(CHAT, chat("x") | fleet.meeting(prefill))
    values = {}
    for server in (prefill, decode):
        families = text_string_to_metric_families((await server.get("/metrics")).body)
        values[server.role] = {s.name: s.value for f in families for s in f.samples if "le" not in s.labels}
    assert values["decode"]["sglang:prompt_tokens_total"] == values["prefill"]["sglang:prompt_tokens_total"] == 9
    assert values["decode"]["sglang:generation_tokens_total"] == 5
    assert values["prefill"]["sglang:num_transfer_failed_reqs_total"] == 1
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "num_decode_transfer_queue_reqs"):
        assert values["decode"][f"sglang:{name}"] == 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "kv_transfer_latency_ms"):
        assert values["decode"][f"sglang:{name}_count"] == 1


REPLAY = ("--decoder-replay", "on", "--encoder-replay", "on")
REPLAYED = {"active": True, "reason": "", "rows_replayed": 0, "windows_adopted": 0, "rows_avoided": 0}
LONG = chat("a prompt that is longer than the window of eight tokens", max_tokens=2)


async def half_values(server: Running) -> dict[str, float]:
    families = text_string_to_metric_families((await server.get("/metrics")).body)
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("epd_") or "cache" in sample.name or "evicted" in sample.name
    }


async def test_replay_is_told_with_its_reason_and_its_rows(fleet: Fleet) -> None:
    server = await fleet.start("aggregated", *REPLAY)
    reported = (await server.get("/server_info")).body["replay"]
    assert {name: half["reason"] for name, half in reported.items()} == {
        "decoder": "NoLongPromptYet",
        "encoder": "NoPrefixHitYet",
    }
    assert not any(half["active"] for half in reported.values())
    assert (await server.get("/metrics")).body.count("epd_replay_active{") == 2
    assert (await half_values(server))["epd_replay_active decoder NoLongPromptYet"] == 0
    for _ in range(2):
        usage = (await server.post(CHAT, LONG)).body["usage"]
    cached, length = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
    reported = (await server.get("/server_info")).body["replay"]
    decoder, encoder = reported["decoder"], reported["encoder"]
    assert decoder.keys() == {"active", "reason", "preset", "rows_run", "rows_skipped"}
    assert (decoder["active"], decoder["reason"], decoder["preset"]) == (True, "", "0.5.23")
    assert encoder == {**REPLAYED, "rows_replayed": WINDOW}
    values = await half_values(server)
    assert values["epd_replay_active decoder "] == values["epd_replay_active encoder "] == 1
    assert values["epd_replay_layer_rows_total decoder run"] == decoder["rows_run"]
    assert values["epd_replay_layer_rows_total decoder skipped"] == decoder["rows_skipped"] > 0
    ran = values["epd_replay_layer_rows_total encoder run"]
    assert ran == values["epd_replay_layer_rows_total decoder run"] + decoder["rows_skipped"]
    assert values["epd_replay_layer_rows_total encoder skipped"] == 2 * (cached - WINDOW)
    assert values["sglang:cached_tokens_total device reference"] == cached > WINDOW
    assert 0 < values["sglang:cache_hit_rate reference"] < cached / (2 * length - cached)
    assert values["epd_cache_lookups_total hit"] == 1


async def test_prompts_that_need_every_row_are_the_reason(fleet: Fleet) -> None:
    server = await fleet.start("aggregated", *REPLAY)
    body = {"input_ids": list(range(40)), "return_logprob": True, "logprob_start_len": 0}
    assert (await server.post("/generate", body)).status == 200
    reported = (await server.get("/server_info")).body["replay"]
    assert {half["reason"] for half in reported.values()} == {"PromptLogprobs"}
    assert (await half_values(server))["epd_replay_active decoder PromptLogprobs"] == 0


@pytest.mark.parametrize("role", ["prefill", "decode", "encode"])
async def test_replay_that_is_off_says_so(fleet: Fleet, role: str) -> None:
    server = await fleet.start(role)
    reported = (await server.get("/server_info")).body
    assert reported["replay"]["decoder"] | {"rows_run": 0} == {
        "active": False, "reason": "TurnedOff", "preset": "", "rows_run": 0, "rows_skipped": 0,
    }  # fmt: skip
    assert reported["replay"]["encoder"] == {**REPLAYED, "active": False, "reason": "TurnedOff"}
    assert (reported["swa_pool"], reported["kv_disk"]) == (None, None)
    assert reported["cache"]["page_bytes"] == reported["cache"]["bytes_per_token"] * 4 > 0
    assert (await half_values(server))["epd_replay_active decoder TurnedOff"] == 0


async def test_evictions_are_counted_per_pool(fleet: Fleet) -> None:
    server = await fleet.start("aggregated", "--max-total-tokens", "192", "--window-cache-tokens", "16")
    for number in range(4):
        assert (await server.post(CHAT, chat(f"{number} is the number of this prompt " * 3))).status == 200
    values = await half_values(server)
    assert values["epd_cache_evicted_pages_total global"] > 0
    assert values["epd_cache_evicted_pages_total window"] > 0
    assert values["sglang:evicted_tokens_total reference"] == 4 * values["epd_cache_evicted_pages_total global"]
    assert values["epd_cache_held_tokens"] > 0


async def test_flush_waits_for_an_idle_engine(fleet: Fleet) -> None:
    server = await fleet.start("aggregated")
    async with server.session.post(server.url + "/flush_cache") as answer:
        assert answer.status == 200
    running = asyncio.create_task(server.post(CHAT, chat("x", max_tokens=50, ignore_eos=True)))
    while not await server.busy():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    async with server.session.post(server.url + "/flush_cache") as answer:
        assert answer.status == 400
    await running


async def test_a_prefill_is_ready_only_with_a_complete_table(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await fleet.start("prefill")
    assert (await server.get("/ready")).status == 200
    server.server._table._ranks.clear()
    answer = await server.get("/ready")
    assert (answer.status, answer.code) == (503, "not_ready")
    assert (await server.get("/health")).status == 200


async def test_a_dead_engine_is_unhealthy(fleet: Fleet) -> None:
    server = await fleet.start("aggregated")
    await server.server._engine.stop()
    answer = await server.get("/health")
    assert (answer.status, answer.code) == (503, "engine_failed")
    assert (await server.post(CHAT, chat("x"))).status == 500


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "words"),
    [
        (CHAT, chat("x", model="other"), 404, "model_not_found", "'other' is not served here"),
        (CHAT, chat("x" * 500), 400, "context_length_exceeded", "192"),
        (CHAT, chat("x", messages=[]), 400, "invalid_value", "messages"),
        (CHAT, chat("x", temperature=-1, top_p=2), 400, "invalid_value", "top_p is 2"),
        (CHAT, chat("x", temperature="hot", n=0), 400, "invalid_value", "n is 0"),
        (CHAT, chat("x", max_tokens=0), 400, "invalid_value", "max_new_tokens is 0"),
        (CHAT, chat("x", tools=[{"type": "function"}]), 400, "invalid_value", "calls no tools"),
        (CHAT, chat("x", response_format={"type": "json_object"}), 400, "invalid_value", "must be text"),
        (CHAT, chat("x", top_logprobs=3), 400, "invalid_value", "needs logprobs"),
        (CHAT, chat([{"type": "input_audio"}]), 400, "invalid_value", "must be text or image_url"),
        (CHAT, chat("x", messages=[{"role": "tool", "content": "x"}]), 400, "invalid_value", "messages.0.role"),
        (CHAT, "x", 400, "invalid_value", "body"),
        ("/v1/completions", {"model": "reference"}, 400, "invalid_value", "prompt"),
        ("/v1/completions", {"model": "reference", "prompt": ""}, 400, "invalid_value", "prompt is empty"),
        ("/v1/completions", {"model": "reference", "prompt": "x", "echo": True}, 400, "invalid_value", "echo"),
        ("/v1/completions", {"model": "reference", "prompt": [9999]}, 400, "invalid_value", "outside 0..511"),
        ("/generate", {"text": "x", "input_ids": [1]}, 400, "invalid_value", "only one of them"),
        ("/generate", {}, 400, "invalid_value", "give text or input_ids"),
        ("/generate", {"text": "a<image>", "image_data": ["data:,", "data:,"]}, 400, "invalid_value", "marks 1 images"),
        ("/v1/embeddings", {}, 404, "not_found", ""),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_answered_in_openais_form(
    fleet: Fleet, path: str, body: Any, status: int, code: str, words: str
) -> None:
    server = await fleet.start("aggregated")
    answer = await server.post(path, body)
    assert (answer.status, answer.code) == (status, code), answer.body
    assert words in answer.message
    assert answer.body["error"].keys() == {"message", "type", "param", "code"}
    assert (await server.post(CHAT, chat("x"))).status == 200


async def test_broken_bodies(fleet: Fleet) -> None:
    server = await fleet.start("aggregated", "--max-body-bytes", "2000")
    for data, status in ((b"{", 400), (b"\xff", 400), (b"[" * 1500, 400), (b" " * 3000, 413)):
        async with server.session.post(server.url + CHAT, data=data) as answer:
            assert answer.status == status
            assert "error" in await answer.json()
    async with server.session.get(server.url + CHAT) as answer:
        assert answer.status == 405


async def test_router_additions_are_ignored(fleet: Fleet) -> None:
    server = await fleet.start("aggregated")
    extra: dict[str, Any] = {
        "separate_reasoning": True,
        "no_logs": None,
        "tools": None,
        "tool_choice": "none",
        "stream": None,
    }
    extra |= {"logprobs": False, "chat_template_kwargs": {"a": 1}, "skip_special_tokens": True, "n": None}
    plain = await server.post(CHAT, chat("x"))
    assert (await server.post(CHAT, chat("x") | extra)).text == plain.text


def test_the_book_forgets_the_oldest_first() -> None:
    book = RecordBook()
    for number in range(2000):
        record = Record(str(number), (str(number), "shared"), "/x")
        record.legs.append(Leg("decode", "p"))
        book.add(record)
    assert not book.find("0")
    assert [record.id for record in book.find("1999")] == ["1999"]
    assert [record.id for record in book.recent(3)] == ["1999", "1998", "1997"]
    assert len(book.find("shared")) == 16


async def test_admission_counts_and_frees() -> None:
    admission = Admission(3)
    with pytest.raises(ApiError, match="starting"), admission.admit(1):
        pass
    admission.state = State.READY
    with admission.admit(2):
        with pytest.raises(ApiError, match="2 of 3 places are taken, 2 are asked for"), admission.admit(2):
            pass
        assert not await admission.drain(0.01)
    assert await admission.drain(0.01)
    with pytest.raises(ApiError, match="draining"), admission.admit(1):
        pass


def test_throughput_is_a_rate_over_whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("epd_workers.reference.serving.metrics.time.monotonic", lambda: now)
    meter = Throughput()
    now = 100.5
    assert meter.read(50) == 0
    now = 102.0
    assert meter.read(60) == 30
    now = 102.1
    assert meter.read(999) == 30
    now = 104.0
    assert meter.read(60) == 0
