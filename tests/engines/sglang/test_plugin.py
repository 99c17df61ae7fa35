"""The plugin epd: what the rules say with it, and what its pods are given."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epd_operator import api
from epd_operator.engines import CommandInputs, lookup
from epd_operator.engines.effective import effective
from epd_operator.engines.sglang.catalogue import catalogue, encoder_catalogue
from epd_operator.engines.sglang.profile import PLUGGED, SGLANG
from epd_operator.engines.validation import validate, validate_command_line
from epd_operator.rules import commandline
from tools.docs.page import ROOT
from tools.mutation.record import VERDICTS, rows, with_plugin

if TYPE_CHECKING:
    from epd_operator.engines.effective import Effective

SAMPLE = ROOT / "manifests/samples/sglang-cpu.yaml"
RELEASE = SGLANG[-1]


def sample(**changes: Any) -> dict[str, Any]:
    """The sample of a rehearsal with changes, value by a path below `spec` whose steps are parted by `__`."""
    document: dict[str, Any] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    for path, value in changes.items():
        *steps, last = path.split("__")
        place = document["spec"]
        for step in steps:
            place = place.setdefault(step, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return document


def meaning(document: dict[str, Any]) -> Effective:
    return effective(api.parse(document), PLUGGED)


def command(role: Any, document: dict[str, Any]) -> dict[str, Any]:
    """A pod's command line, read back as the engine reads it."""
    whole = meaning(document)
    inputs = CommandInputs(
        document={**document["spec"], "metadata": {"name": "demo"}},
        platform=whole.platform,
        served_name="demo",
        model_path="/weights",
        bootstrap_port=8998,
        args=whole.roles[role].args,
        layout_key="00ff",
    )
    parsed = commandline.parse(PLUGGED.command(role, inputs)[3:], catalogue("0.5.23"))
    assert parsed.faults == ()
    assert parsed.role == role
    return dict(parsed.args)


def test_eleven_recorded_lines_turn_and_no_other() -> None:
    turned = 0
    for before, row in zip(rows(VERDICTS), with_plugin(), strict=True):
        ours = validate_command_line(
            "0.5.23", row["platform"], row["argv"], row["env"], config=row.get("config"), plugins=("epd",)
        )
        assert ours.accepted == row["accepted"], row["id"]
        turned += before["accepted"] != row["accepted"]
        if before["accepted"] != row["accepted"]:
            assert row["accepted"]
            assert {"--encoder-only", "--language-only"} & set(row["argv"])
    assert turned == 11


def test_images_travel_from_encoders_to_prefill_and_nowhere_else() -> None:
    encode, prefill, decode = (command(role, sample()) for role in ("encode", "prefill", "decode"))
    assert encode["encoder-only"] is True
    assert "disaggregation-mode" not in encode
    assert encode["encoder-transfer-backend"] == prefill["encoder-transfer-backend"] == "zmq_to_tokenizer"
    assert (prefill["language-only"], prefill["encoder-bootstrap-port"]) == (True, 8997)
    assert not {name for name in decode if "encoder" in name or "language" in name}
    alone = command("prefill", sample(roles__encode=None))
    assert not {name for name in alone if name.startswith("encoder-") or "language" in name}


def test_a_rehearsal_runs_on_the_cpu() -> None:
    for role in ("encode", "prefill", "decode"):
        assert command(role, sample())["device"] == "cpu"
    assert command("prefill", sample())["sleep-on-idle"] is command("decode", sample())["sleep-on-idle"] is True
    assert "sleep-on-idle" not in command("encode", sample())
    asked = sample(roles__prefill__args={"sleep-on-idle": False})
    assert "sleep-on-idle" not in command("prefill", asked), "what a user writes is not overridden"
    roles = meaning(sample()).roles.values()
    assert {(role.gpu, role.shm) for role in roles} == {(0, None)}
    assert meaning(sample(roles__decode={})).roles["decode"].memory == "4Gi"


def test_a_gpu_is_left_to_the_engine() -> None:
    document = sample(engine__platform="cuda-sm90", transfer__backend="mooncake", roles__decode={})
    assert "device" not in command("prefill", document)
    assert "sleep-on-idle" not in command("prefill", document)
    assert (meaning(document).roles["decode"].gpu, meaning(document).roles["decode"].memory) == (1, "128Gi")


@pytest.mark.parametrize(("platform", "loaded"), [("cuda-sm100", "epd"), ("hip-gfx950", "epd"), ("cpu", "epd,epd-cpu")])
def test_nothing_but_the_plugin_is_loaded(platform: str, loaded: str) -> None:
    for role in PLUGGED.roles:
        assert {"name": "SGLANG_PLUGINS", "value": loaded} in PLUGGED.env(role, platform)
    assert not any(entry["name"] == "SGLANG_PLUGINS" for entry in RELEASE.env("decode", "cuda-sm90"))


def test_the_profile_with_the_plugin_is_one_of_its_own() -> None:
    assert lookup("SGLang", "0.5.23", ["epd"]) is PLUGGED
    assert lookup("SGLang", "0.5.23") is RELEASE
    assert set(PLUGGED.capabilities) == {"vision-encode", "replay-report"}
    assert PLUGGED.roles == ("encode", "prefill", "decode")
    assert PLUGGED.hardware("cpu").rehearsal
    assert not PLUGGED.hardware("cuda-sm90").rehearsal
    with pytest.raises(KeyError):
        lookup("SGLang", "dsv41-37ae292e", ["epd"])


def test_prefill_alone_reads_the_pool() -> None:
    assert [role for role in PLUGGED.roles if PLUGGED.reads_pool(role, exists=True)] == ["prefill"]
    assert not any(PLUGGED.reads_pool(role, exists=False) for role in PLUGGED.roles)


def test_encoders_are_asked_to_encode_and_registered_at_prefill() -> None:
    probes = PLUGGED.probes("encode", 15)
    assert {probe["httpGet"]["path"] for probe in probes.values()} == {"/health"}
    assert all(probe["timeoutSeconds"] > 30 for probe in probes.values()), "a dummy encode gives up after 30 seconds"
    assert [port.name for port in PLUGGED.ports("encode", 8998)] == ["http"]
    assert ("encoders", 8997) in [(port.name, port.number) for port in PLUGGED.ports("prefill", 8998)]


def test_an_encoder_takes_the_flags_that_it_reads() -> None:
    encoder, every = encoder_catalogue("0.5.23"), catalogue("0.5.23")
    assert {"dp-size", "allowed-media-domains", "enable-prefix-mm-cache", "mem-fraction-static"} <= set(encoder)
    assert "chunked-prefill-size" not in encoder
    assert encoder.elsewhere | set(encoder) == set(every)
    assert "flag-unknown" in {
        finding.rule for finding in validate(sample(roles__encode__args={"page-size": 256})).findings
    }


def test_what_encoders_are_given_makes_no_other_set() -> None:
    document = api.parse(sample())
    assert PLUGGED.identity(document.spec, "encode", {"dp-size": 2}) == {}


def test_what_v41_takes_for_a_gpu_is_one_only_to_its_own_checks() -> None:
    judged = validate(sample())
    assert judged.accepted
    resolved = judged.resolved["prefill"]
    assert resolved["enable_decoder_swa_bounded_replay"] is True
    assert (resolved["dsv4_attn_backend"], resolved["kv_layout"]) == ("flashmla", "v41")
    assert resolved["chunked_prefill_size"] == 2048
    refused = validate(sample(roles__prefill__args={"mm-feature-transport": "cuda_ipc"}))
    assert "media-transport-hardware" in {finding.rule for finding in refused.errors}


# What SGLang 0.5.23 itself resolved on a machine without a GPU, its DeepSeek-V4.1 checks (deepseek_v4_hook.py) alone
# being answered that it has NVIDIA's.
RESOLVED: dict[str, dict[str, Any]] = {
    "aggregated": {"cuda_graph_decode": "full", "disable_radix_cache": False},
    "prefill": {"cuda_graph_decode": "disabled", "disable_radix_cache": False},
    "decode": {"cuda_graph_decode": "full", "disable_radix_cache": True},
}
ALIKE = {
    "attention_backend": "dsv4",
    "dsv4_attn_backend": "flashmla",
    "kv_cache_dtype": "fp8_e4m3",
    "page_size": 256,
    "max_prefill_tokens": 16384,
    "max_running_requests": 256,
    "moe_a2a_backend": "none",
    "moe_runner_backend": "auto",
    "enable_decoder_swa_bounded_replay": True,
    "hicache_mem_layout": "page_first",
    "hicache_io_backend": "kernel",
    "mm_feature_transport": "cpu",
    "cuda_graph_prefill": "disabled",
    "cuda_graph_decode_max_bs": 32,
}


@pytest.mark.parametrize("role", sorted(RESOLVED))
def test_a_cpu_resolves_as_the_engine_was_seen_to(role: str) -> None:
    mode = [] if role == "aggregated" else ["--disaggregation-mode", role]
    line = [*mode, "--disaggregation-transfer-backend", "mooncake_tcp", "--model-path", "m", "--device", "cpu"]
    judgement = validate_command_line("0.5.23", "cpu", line, {}, plugins=("epd",))
    assert judgement.findings == ()
    expected = {**ALIKE, **RESOLVED[role]}
    actual = judgement.resolved[role]
    assert {name: actual.get(name) for name in expected} == expected


def test_the_sample_passes_without_a_warning() -> None:
    assert validate(sample()).findings == ()
