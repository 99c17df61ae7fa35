from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator import api
from epd_operator.engines import CommandInputs, Profile, lookup
from epd_operator.engines.reference.profile import REFERENCE
from epd_operator.engines.validation import validate
from epd_workers.reference.serving.options import FLAGS
from epd_workers.reference.serving.options import parse as parse_command_line

if TYPE_CHECKING:
    from epd_operator.api.deployment import Spec


def spec(roles: dict[str, Any] | None = None, **more: Any) -> Spec:
    document = {
        "metadata": {"name": "demo"},
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {"prefill": {}, "decode": {}, **(roles or {})},
            **more,
        },
    }
    return api.parse(document).spec


def faults(roles: dict[str, Any] | None = None, version: str = "0.1", **more: Any) -> list[str]:
    document = {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "demo"},
        "spec": {
            "engine": {"type": "Reference", "version": version},
            "roles": {"prefill": {}, "decode": {}, **(roles or {})},
            **more,
        },
    }
    judgement = validate(document).findings
    assert all(str(finding).startswith(f"[{finding.rule}] ") for finding in judgement)
    return [str(finding).split("] ", 1)[1].removesuffix(" (0.1 on cpu)") for finding in judgement]


def test_lookup_knows_exactly_the_released_version() -> None:
    assert lookup("Reference", "0.1") is REFERENCE
    (unknown,) = faults(version="0.2")
    assert "spec.engine.version" in unknown
    assert 'is not known for Reference: use "0.1"' in unknown


def test_a_plain_spec_has_no_faults() -> None:
    assert faults() == []
    assert faults({"encode": {"replicas": 2, "args": {"max-images": 1}}}) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"page-sise": 64},
            ("spec.roles.prefill.args.page-sise = 64: unknown flag in 0.1: did you mean page-size?"),
        ),
        (
            {"--page-size": 64},
            ("spec.roles.prefill.args.--page-size = 64: is not the full name of the flag: write page-size"),
        ),
        (
            {"page-size": "64"},
            "spec.roles.prefill.args.page-size = '64': must be a whole number: write 64 without quotes",
        ),
        (
            {"page-size": True},
            "spec.roles.prefill.args.page-size = true: must be a whole number: write a whole number without quotes",
        ),
        ({"context-length": 1}, "spec.roles.prefill.args.context-length = 1: must be at least 16: write 16 or more"),
        ({"port": 1}, "spec.roles.prefill.args.port = 1: belongs to the operator: remove it; it is always 30000"),
        (
            {"served-model-name": "x"},
            (
                "spec.roles.prefill.args.served-model-name = x: "
                "belongs to the operator: remove it; set spec.model.servedName instead"
            ),
        ),
    ],
)
def test_a_bad_flag_is_refused_with_its_way_out(args: dict[str, Any], message: str) -> None:
    assert message in faults({"prefill": {"args": args}})


def test_an_unknown_flag_with_no_near_name_is_to_be_removed() -> None:
    assert faults({"decode": {"args": {"zzzz": 1}}}) == [
        "spec.roles.decode.args.zzzz = 1: unknown flag in 0.1: remove it"
    ]


def test_flags_of_other_roles_are_unknown_to_the_encoder() -> None:
    (actual,) = faults({"encode": {"args": {"page-size": 64}}})
    assert actual.startswith("spec.roles.encode.args.page-size = 64: unknown flag in 0.1")


def test_identity_flags_must_agree_as_they_resolve() -> None:
    (actual,) = faults({"decode": {"args": {"page-size": 32}}})
    assert actual.startswith(
        "spec.roles.prefill.args.page-size not set, so 64, spec.roles.decode.args.page-size = 32: "
    )
    assert faults({"decode": {"args": {"page-size": 64}}}) == []
    (actual,) = faults({"prefill": {"args": {"kv-cache-dtype": "bf16"}}})
    assert actual.startswith(
        "spec.roles.prefill.args.kv-cache-dtype = bf16, spec.roles.decode.args.kv-cache-dtype not set, so fp4: "
    )
    assert faults({role: {"args": {"kv-cache-dtype": "bf16"}} for role in ("prefill", "decode")}) == []


def test_a_value_that_is_wrong_by_itself_is_told_once() -> None:
    actual = faults({"prefill": {"args": {"page-size": [1, 2], "window-cache-tokens": "abc"}}})
    assert actual == [
        (
            "spec.roles.prefill.args.page-size = [1, 2]: must be a whole number, not a list: "
            "give one value, without brackets"
        ),
        (
            "spec.roles.prefill.args.window-cache-tokens = 'abc': must be a whole number: "
            "write a whole number without quotes"
        ),
    ]


def test_context_length_is_no_identity() -> None:
    assert faults({"decode": {"args": {"context-length": 256}}}) == []
    args = {"page-size": 8, "kv-cache-dtype": "bf16", "context-length": 9}
    assert REFERENCE.identity(spec(), "decode", args) == {"page-size": 8, "kv-cache-dtype": "bf16"}


def test_a_default_written_out_is_no_identity() -> None:
    assert REFERENCE.identity(spec(), "decode", {"page-size": 64, "kv-cache-dtype": "fp4", "vision": "remote"}) == {}


def test_every_fault_is_found_at_once() -> None:
    actual = faults(
        {"prefill": {"args": {"window-cache-tokens": -1, "host": "x"}, "env": {"POD_IP": "1"}}},
        model={"path": "a/b", "revision": "1"},
        transfer={"backend": "mooncake", "bootstrapPort": 30000},
    )
    assert sorted(line.split(" ", 1)[0].rstrip(":") for line in actual) == [
        "spec.model.path",
        "spec.roles.prefill.args.host",
        "spec.roles.prefill.args.window-cache-tokens",
        "spec.roles.prefill.env.POD_IP",
        "spec.transfer.backend",
        "spec.transfer.bootstrapPort",
    ]


@dataclass(frozen=True)
class Images:
    worker_image: str = "registry.example/worker:1"


def test_the_default_image_is_the_release_s() -> None:
    assert REFERENCE.default_image(Images()) == "registry.example/worker:1"


def effective_args(role: Any, whole: Spec, grace: int = 60) -> dict[str, Any]:
    return REFERENCE.derived_args(role, whole, grace)


def context(model_path: str | None, args: dict[str, Any]) -> CommandInputs:
    return CommandInputs({}, "cpu", "toy", model_path, 9000, args, "00ff")


@pytest.mark.parametrize("role", REFERENCE.roles)
def test_the_command_line_is_one_that_the_engine_reads(role: Any) -> None:
    args = effective_args(role, spec({"encode": {}}))
    program, *words = REFERENCE.command(role, context("/model", args))
    options = parse_command_line([word.replace("$(POD_IP)", "10.0.0.1") for word in words])
    assert program == "epd-reference"
    assert (options.role, options.host, options.port) == (role, "0.0.0.0", 30000)
    assert (options.served_model_name, options.model_path) == ("toy", "/model")
    assert (options.bootstrap_port, options.encoder_bootstrap_port) == (9000, 8997)
    assert (options.advertise_host, options.layout_key) == ("10.0.0.1", "00ff")
    assert options.drain_timeout == 50
    for name, value in args.items():
        assert getattr(options, name.replace("-", "_")) == value
    assert [entry["name"] for entry in REFERENCE.env(role, "cpu")] == ["POD_IP"]


def test_every_catalogued_flag_has_the_type_and_bounds_of_the_engine() -> None:
    theirs = {flag.name: flag for flag in FLAGS}
    for role in REFERENCE.roles:
        for name, ours in REFERENCE.args(role).flags.items():
            default = theirs[name].default
            assert (ours.choices or ()) in {(), theirs[name].choices}, name
            if default is not None and ours.owner is None:
                assert ours.type == type(default).__name__, name
                assert ours.choices is not None or ours.minimum == theirs[name].low, name
                assert ours.default in {None, default}, name
                assert theirs[name].high in {float("inf"), ours.maximum}, name


def test_replay_defaults_are_the_engine_s() -> None:
    theirs = {flag.name: flag for flag in FLAGS}
    for name in ("decoder-replay", "encoder-replay"):
        ours = REFERENCE.args("prefill")[name]
        assert (ours.default, ours.choices) == (theirs[name].default, theirs[name].choices), name
    assert "encoder-replay" not in REFERENCE.args("decode")


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, {}),
        ({"decoderReplay": "Auto", "encoderReplay": False}, {}),
        ({"decoderReplay": "On"}, {"decoder-replay": "on"}),
        ({"decoderReplay": "Off", "encoderReplay": True}, {"decoder-replay": "off", "encoder-replay": "on"}),
    ],
)
def test_the_replay_fields_are_flags_of_prefill(fields: dict[str, Any], flags: dict[str, str]) -> None:
    whole = spec({"prefill": fields})
    actual = {name: value for name, value in effective_args("prefill", whole).items() if "replay" in name}
    assert actual == flags
    words = REFERENCE.command("prefill", context(None, actual))
    assert all(f"--{name} {value}" in " ".join(words) for name, value in flags.items())
    followed = {name: value for name, value in flags.items() if name == "decoder-replay"}
    assert {name: value for name, value in effective_args("decode", whole).items() if "replay" in name} == followed
    assert REFERENCE.identity(whole, "prefill", actual) == {
        name: value for name, value in flags.items() if value != REFERENCE.args("prefill")[name].default
    }
    facts = REFERENCE.facts(whole, {"prefill": actual, "decode": {}})
    assert facts.replay == ("Off" if fields.get("decoderReplay") == "Off" else "On")


def test_the_preset_and_the_cache_format_are_identity() -> None:
    for args in ({"decoder-replay-preset": "dsv41-37ae292e"}, {"kv-cache-dtype": "bf16"}):
        assert REFERENCE.identity(spec(), "prefill", args) == args
    facts = REFERENCE.facts(spec(), {"prefill": {"kv-cache-dtype": "bf16"}, "decode": {}})
    assert (facts.kv_layout, facts.page_size) == ("bf16", 64)


OFF: dict[str, Any] = {"decoderReplay": "Off"}


@pytest.mark.parametrize(
    ("prefill", "message"),
    [
        ({"encoderReplay": True, "args": {"chunked-prefill-size": 192}}, ""),
        (
            {"encoderReplay": True, "args": {"chunked-prefill-size": 191}},
            "room for them and a page: 192 tokens: raise chunked-prefill-size to 192 or more, or remove encoder replay",
        ),
        ({"args": {"chunked-prefill-size": 191}}, ""),
        ({"encoderReplay": True, "args": {"prefix-cache": "off"}}, "without a prefix cache it does nothing: set "),
        ({"args": {"prefix-cache": "off"}}, ""),
        ({"args": {"chunked-prefill-size": 128}}, "in chunks this small it does nothing: raise "),
        ({"args": {"chunked-prefill-size": 129}}, ""),
        ({**OFF, "args": {"chunked-prefill-size": 128}}, ""),
        ({**OFF, "args": {"decoder-replay-preset": "0.5.23"}}, "decoder replay is off: leave the preset out, or "),
        ({"args": {"decoder-replay-preset": "0.5.23"}}, ""),
        ({"args": {"window-cache-tokens": 127}}, "neither kept nor rebuilt: raise window-cache-tokens to 128 or more"),
        ({"args": {"window-cache-tokens": 128}}, ""),
        ({"args": {"window-cache-tokens": 0, "prefix-cache": "off"}}, ""),
        ({"encoderReplay": True, "args": {"window-cache-tokens": 0}}, ""),
    ],
)
def test_replay_that_cannot_work_is_told(prefill: dict[str, Any], message: str) -> None:
    actual = faults({"prefill": prefill})
    assert len(actual) == bool(message), actual
    assert all(message in line for line in actual)


def test_only_what_the_engine_would_refuse_is_an_error() -> None:
    document = {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "demo"},
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {
                "prefill": {"encoderReplay": True, "args": {"chunked-prefill-size": 128, "prefix-cache": "off"}},
                "decode": {},
            },
        },
    }
    judged = validate(document)
    assert [finding.rule for finding in judged.errors] == ["reference-encoder-replay-chunk"]
    assert {finding.rule for finding in judged.findings if finding.severity == "warning"} == {
        "reference-encoder-replay-idle",
        "reference-decoder-replay-idle",
    }


def test_a_page_holds_whole_pairs() -> None:
    actual = faults({role: {"args": {"page-size": 31}} for role in ("prefill", "decode")})
    assert [line.split(": ")[-1] for line in actual] == ["use an even number, such as 32"] * 2


@pytest.mark.parametrize(("read", "word"), [(False, "off"), (True, "on")])
def test_a_bare_on_or_off_is_to_be_quoted(read: bool, word: str) -> None:
    (actual,) = faults({"decode": {"args": {"prefix-cache": read}}})
    assert actual.endswith(f'must be one of on, off: quote it: "{word}"')


def test_without_an_encode_role_images_are_refused_by_prefill_and_decode_alike() -> None:
    text_only, with_images = spec(), spec({"encode": {}})
    for role in ("prefill", "decode"):
        off, remote = effective_args(role, text_only), effective_args(role, with_images)
        assert (off["vision"], remote["vision"]) == ("off", "remote")
        assert REFERENCE.identity(text_only, role, off) != REFERENCE.identity(with_images, role, remote)
    assert "vision" not in effective_args("encode", with_images)


@pytest.mark.parametrize(("grace", "drain"), [(60, 50), (10, 1), (900, 890)])
def test_draining_ends_before_the_kubelet_kills(grace: int, drain: int) -> None:
    assert effective_args("decode", spec(), grace)["drain-timeout"] == drain


def test_a_pool_smaller_than_a_page_is_refused() -> None:
    (actual,) = faults({"decode": {"args": {"max-total-tokens": 32}}})
    assert actual.endswith("all pages together must hold at least one page: raise max-total-tokens or lower page-size")


def test_without_a_model_path_the_image_s_checkpoint_is_used() -> None:
    assert "--model-path" not in REFERENCE.command("decode", context(None, {}))


def test_only_prefill_has_bootstrap_and_encoder_ports() -> None:
    def shown(role: Any) -> list[tuple[str, int]]:
        return [(port.name, port.number) for port in REFERENCE.ports(role, 9000)]

    assert shown("prefill") == [("http", 30000), ("bootstrap", 9000), ("encoders", 8997)]
    assert shown("decode") == shown("encode") == [("http", 30000)]


def test_probes_ask_what_they_prove() -> None:
    probes = REFERENCE.probes("prefill", 2)
    assert probes["startupProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert probes["startupProbe"]["failureThreshold"] * probes["startupProbe"]["periodSeconds"] == 120
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert probes["livenessProbe"]["timeoutSeconds"] == 25
    assert probes["livenessProbe"]["periodSeconds"] == 30


def test_every_role_has_everything() -> None:
    assert isinstance(REFERENCE, Profile)
    assert "vision-encode" in REFERENCE.capabilities
    for role in REFERENCE.roles:
        assert REFERENCE.args(role)
        assert REFERENCE.default_resources(role, "cpu").memory
        for name, flag in REFERENCE.args(role).flags.items():
            assert flag.help, name
