from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epd_operator import api
from epd_operator.engines import CommandInputs, lookup
from epd_operator.engines.sglang.catalogue import REFUSED_IN_ARGS
from epd_operator.engines.sglang.ownership import OWNED
from epd_operator.engines.sglang.profile import HEALTH_SECONDS, SGLANG
from epd_operator.rules import commandline

if TYPE_CHECKING:
    from epd_operator.api.deployment import Spec

RELEASE = SGLANG[-1]


def spec(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **more: Any) -> Spec:
    engine = {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "sglang:1", **more}
    return api.parse(
        {
            "metadata": {"name": "demo"},
            "spec": {
                "model": {"path": "/weights"},
                "engine": engine,
                "roles": {"prefill": prefill or {}, "decode": decode or {}},
            },
        }
    ).spec


def command(role: Any, document: dict[str, Any], args: dict[str, Any] | None = None, nodes: int = 1) -> list[str]:
    context = CommandInputs(
        document={"metadata": {"name": "demo"}, **document},
        platform="cuda-sm90",
        served_name="demo",
        model_path="/weights",
        bootstrap_port=8998,
        args=args or {},
        layout_key="00ff",
        nodes=nodes,
    )
    return RELEASE.command(role, context)


def flags(*given: Any, **more: Any) -> dict[str, Any]:
    """A command line, read back as the engine reads it."""
    parsed = commandline.parse(command(*given, **more)[3:], RELEASE.args("prefill"))
    assert parsed.faults == ()
    return dict(parsed.args)


@pytest.mark.parametrize("version", ["0.5.23", "dsv41-2026-09", "dsv41-37ae292e"])
def test_each_known_version_has_a_profile_of_its_own(version: str) -> None:
    actual = lookup("SGLang", version)
    assert actual.version == version
    assert actual.args("prefill").version == version


def test_the_command_line_says_what_the_spec_says() -> None:
    document = {
        "model": {"path": "org/model", "revision": "abc", "servedName": "dsv41"},
        "transfer": {"backend": "nixl", "bootstrapPort": 9001, "checksum": True},
        "roles": {"prefill": {"decoderReplay": "On", "encoderReplay": True, "nodes": 1}},
    }
    assert command("prefill", document)[:3] == ["python3", "-m", "sglang.launch_server"]
    assert flags("prefill", document, {"tp-size": 4, "trust-remote-code": True}) == {
        "disaggregation-bootstrap-port": 9001,
        "disaggregation-enable-kv-checksum": True,
        "disaggregation-mode": "prefill",
        "disaggregation-transfer-backend": "nixl",
        "enable-decoder-swa-bounded-replay": True,
        "enable-encoder-swa-bounded-replay": True,
        "enable-metrics": True,
        "host": "0.0.0.0",
        "model-path": "org/model",
        "nnodes": 1,
        "port": 30000,
        "revision": "abc",
        "served-model-name": "dsv41",
        "tp-size": 4,
        "trust-remote-code": True,
    }


def test_what_is_left_out_is_left_to_the_engine_or_has_the_documented_default() -> None:
    actual = flags("decode", {"model": {"path": "/weights"}, "roles": {"decode": {}}})
    assert actual["served-model-name"] == "demo"
    assert (actual["disaggregation-mode"], actual["disaggregation-transfer-backend"]) == ("decode", "mooncake")
    assert actual["disaggregation-bootstrap-port"] == 8998
    assert not {name for name in actual if "replay" in name or "checksum" in name or name == "revision"}


def test_replay_off_is_said_and_auto_is_not() -> None:
    off = flags("prefill", {"roles": {"prefill": {"decoderReplay": "Off", "encoderReplay": False}}})
    auto = flags("prefill", {"roles": {"prefill": {"decoderReplay": "Auto"}}})
    assert off["enable-decoder-swa-bounded-replay"] is False
    assert "enable-decoder-swa-bounded-replay" not in auto
    assert "enable-encoder-swa-bounded-replay" not in off
    decode = flags("decode", {"roles": {"prefill": {"decoderReplay": "On"}, "decode": {}}})
    assert "enable-decoder-swa-bounded-replay" not in decode, "replay is a matter of the prefill"


def test_pods_of_one_engine_find_each_other() -> None:
    words = command("decode", {"roles": {"decode": {"nodes": 3}}}, nodes=3)
    assert words[words.index("--nnodes") + 1] == "3"
    assert words[words.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert words[words.index("--dist-init-addr") + 1] == "$(LWS_LEADER_ADDRESS):20000"
    assert not {"--node-rank", "--dist-init-addr"} & set(command("decode", {"roles": {"decode": {}}}))


def test_every_flag_that_the_command_line_sets_is_closed_to_users() -> None:
    assert set(OWNED) <= set(REFUSED_IN_ARGS)
    assert {"node-rank", "dist-init-addr"} <= set(REFUSED_IN_ARGS)


@pytest.mark.parametrize(
    ("args", "nodes", "gpus"),
    [
        ({}, 1, 1),
        ({"tp-size": 8}, 1, 8),
        ({"tp-size": 16}, 2, 8),
        ({"tp-size": 8, "attn-dp-size": 8}, 1, 8),
        ({"tp-size": 4, "dp-size": 2}, 1, 8),
        ({"tp-size": 4, "dp-size": 4, "enable-dp-attention": True}, 1, 4),
        ({"tp-size": 3}, 2, 2),
        ({"tp-size": "four"}, 1, 1),
    ],
)
def test_the_flags_say_how_many_gpus_a_pod_needs(args: dict[str, Any], nodes: int, gpus: int) -> None:
    assert RELEASE.gpus(args, nodes) == gpus


@pytest.mark.parametrize(
    ("platform", "resource"),
    [("cuda-sm90", "nvidia.com/gpu"), ("cuda-sm100", "nvidia.com/gpu"), ("hip-gfx950", "amd.com/gpu")],
)
def test_the_platform_names_the_resource(platform: str, resource: str) -> None:
    assert RELEASE.hardware(platform).gpu == resource


def identity(role: Any, args: dict[str, Any], **more: Any) -> dict[str, Any]:
    return RELEASE.identity(spec(**{role: {"args": args, **more}}), role, args)


def test_what_the_pair_must_share_is_told_by_its_meaning() -> None:
    assert identity("prefill", {}) == identity("prefill", {"kv-cache-dtype": "auto", "dsv4-attn-backend": "auto"})
    assert identity("decode", {"kv-cache-dtype": "fp8_e4m3", "dsv4-attn-backend": "flashmla"}) == identity("decode", {})
    assert identity("decode", {"kv-cache-dtype": "bfloat16"}) != identity("decode", {})
    assert identity("decode", {}, env={"SGLANG_DSV4_KV_LAYOUT": "v41"}) != identity("decode", {})
    assert identity("prefill", {}, decoderReplay="Off") != identity("prefill", {})
    assert identity("prefill", {}, encoderReplay=True) != identity("prefill", {})


def test_a_default_that_is_spelled_out_changes_nothing() -> None:
    blackwell = spec(platform="cuda-sm100")
    assert RELEASE.identity(blackwell, "decode", {"dsv4-attn-backend": "flashmla_mega"}) == {}
    assert RELEASE.identity(blackwell, "decode", {"dsv4-attn-backend": "flashmla"}) != {}
    assert RELEASE.identity(spec(), "decode", {"dsv4-attn-backend": "flashmla"}) == {}
    assert RELEASE.identity(spec(), "decode", {"page-size": 64, "kv-cache-dtype": "fp8_e4m3"}) == {}


def test_a_flag_that_turns_replay_off_makes_another_set() -> None:
    assert "decoder_replay" in RELEASE.identity(spec(), "prefill", {"cuda-graph-backend-prefill": "full"})
    assert RELEASE.identity(spec({"decoderReplay": "On"}), "prefill", {}) == {}
    assert "decoder_replay" in RELEASE.identity(spec({"decoderReplay": "Off"}), "prefill", {})


def test_ranks_are_shared_only_with_speculation() -> None:
    assert identity("decode", {"tp-size": 8}) == identity("decode", {"tp-size": 4})
    draft = {"speculative-algorithm": "DSPARK"}
    assert identity("decode", {**draft, "tp-size": 8}) != identity("decode", {**draft, "tp-size": 4})


@pytest.mark.parametrize("args", [{"context-length": 4096}, {"max-running-requests": 8}, {"mem-fraction-static": 0.8}])
def test_what_is_each_roles_own_is_no_identity(args: dict[str, Any]) -> None:
    assert identity("decode", args) == identity("decode", {})


def test_facts_are_what_the_engine_makes_of_the_flags() -> None:
    whole = spec({"args": {"page-size": 64, "context-length": 4096}, "decoderReplay": "On"})
    actual = RELEASE.facts(whole, {"prefill": whole.roles.prefill.args, "decode": {}})
    assert (actual.page_size, actual.context_length) == (256, 4096)
    assert (actual.replay, actual.kv_layout) == ("On", "fp8_e4m3 flashmla")
    assert RELEASE.facts(spec(), {"prefill": {}, "decode": {}}).replay == "On"
    assert RELEASE.facts(spec({"decoderReplay": "Off"}), {"prefill": {}, "decode": {}}).replay == "Off"
    spelled = spec({"args": {"context-length": "4k", "max-total-tokens": "1M"}})
    assert RELEASE.facts(spelled, {"prefill": spelled.roles.prefill.args, "decode": {}}).context_length == 4000
    assert RELEASE.identity(spelled, "prefill", spelled.roles.prefill.args) == {}
    early = lookup("SGLang", "dsv41-2026-09")
    assert early.facts(spec(version="dsv41-2026-09"), {"prefill": {}, "decode": {}}).replay == "Off"


def test_probes_ask_what_they_prove() -> None:
    actual = RELEASE.probes("prefill", 90)
    start, ready, live = (actual[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))
    assert start["httpGet"] == {"path": "/health", "port": "http"}
    assert start["timeoutSeconds"] > 20
    assert start["periodSeconds"] * start["failureThreshold"] == 90 * 60
    assert ready["httpGet"]["port"] == "bootstrap"
    assert ready["httpGet"]["path"].startswith("/route?prefill_dp_rank=-1&")
    assert live["httpGet"]["path"] == "/health_generate", "an HTTP server outlives its scheduler"
    assert live["timeoutSeconds"] > HEALTH_SECONDS
    assert live["periodSeconds"] > 20
    assert RELEASE.probes("decode", 90)["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    variables = {entry["name"]: entry.get("value") for entry in RELEASE.env("decode", "cuda-sm90")}
    assert variables["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_follower_is_asked_for_what_it_serves(role: Any) -> None:
    for probe in RELEASE.probes(role, 90, leads=False).values():
        assert probe["httpGet"] == {"path": "/health", "port": "http"}


def test_only_prefill_has_a_bootstrap_port() -> None:
    assert [(port.name, port.number) for port in RELEASE.ports("prefill", 9000)] == [
        ("http", 30000),
        ("bootstrap", 9000),
    ]
    assert [port.name for port in RELEASE.ports("decode", 9000)] == ["http"]


@pytest.mark.parametrize(
    ("model", "args", "fetches"),
    [
        ({"path": "/weights"}, {}, True),
        ({"path": "/weights"}, {"language-model-only": True}, False),
        ({"path": "org/model", "revision": "1"}, {"language-model-only": True}, True),
    ],
)
def test_pods_reach_the_outside_for_pictures_and_weights_only(
    model: dict[str, Any], args: dict[str, Any], *, fetches: bool
) -> None:
    engine = {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "sglang:1"}
    roles = {"prefill": {"args": args}, "decode": {"args": args}}
    document = {"metadata": {"name": "demo"}, "spec": {"model": model, "engine": engine, "roles": roles}}
    assert RELEASE.fetches(api.parse(document).spec) is fetches


def test_no_version_has_a_vision_encode_tier_by_itself() -> None:
    for item in SGLANG:
        assert "vision-encode" not in item.capabilities
        assert item.roles == ("prefill", "decode")


def test_pods_keep_serving_until_the_router_has_let_go_and_their_requests_are_done() -> None:
    for item in SGLANG:
        assert item.pre_stop_seconds >= 7
        assert item.default_grace_seconds == 900
        assert item.default_startup_minutes == 90
        assert all(name.startswith("sglang:") for name in item.metrics.values())
