"""The pool of windows and stored pages: what the engine's pods are told, what must go together, and who shares what."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_operator import api
from epd_operator.api import names
from epd_operator.engines import CommandInputs, lookup
from epd_operator.engines import swa_pool as pool_rules
from epd_operator.engines.effective import effective
from epd_operator.engines.reference import swa_pool
from epd_operator.engines.reference.profile import REFERENCE
from epd_operator.engines.reference.ruleset import RULESET
from epd_operator.engines.validation import validate
from epd_operator.rules.process import Process
from epd_workers.reference.model.replay import PRESETS, early_layers
from epd_workers.reference.serving.options import parse as parse_command_line
from epd_workers.swapool.key import Key, Namespace
from epd_workers.swapool.server.options import LEAST_MEMORY
from tests.support.checkpoint import geometry, packaged_config
from tools.corpus.field_cases import field_cases

if TYPE_CHECKING:
    from epd_workers.reference.cache.geometry import CacheType

FILE = "/etc/epd/swa-pool/pool.json"


def document(
    pool: dict[str, Any] | None = None,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    spec = {
        "engine": {"type": "Reference", "version": "0.1"},
        "roles": {"prefill": {"encoderReplay": True, **(prefill or {})}, "decode": decode or {}},
        "swaPool": pool or {},
        **more,
    }
    return {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "demo", "namespace": "llm", **(metadata or {})},
        "spec": spec,
    }


def rule_ids(*parts: Any, **more: Any) -> set[str]:
    return {finding.rule for finding in validate(document(*parts, **more)).findings}


def options(role: names.RoleName, whole: dict[str, Any]) -> Any:
    """What the engine reads from the command line of a role's pods."""
    parsed = api.parse(whole)
    actual = effective(parsed, REFERENCE)
    context = CommandInputs(
        document={},
        platform="cpu",
        served_name=actual.served_name,
        model_path=None,
        bootstrap_port=actual.bootstrap_port,
        args=actual.roles[role].args,
        layout_key="00ff",
        tenant=actual.tenant,
        pool=REFERENCE.reads_pool(role, exists=actual.swa_pool is not None),
    )
    _program, *words = REFERENCE.command(role, context)
    return parse_command_line([word.replace("$(POD_IP)", "10.0.0.1") for word in words])


@pytest.mark.parametrize("mode", ["Disabled", "InProcess", "Valkey", "Mooncake"])
def test_decode_is_started_alike_whatever_the_mode(mode: str) -> None:
    decode = options("decode", document({"mode": mode}))
    assert decode == options("decode", document())
    assert (decode.swa_pool_config, decode.tenant) == (FILE, "llm/demo")


@pytest.mark.parametrize("mode", ["InProcess", "Valkey", "Mooncake"])
def test_prefill_is_told_where_the_pool_is_and_nothing_else_of_it(mode: str) -> None:
    prefill = options("prefill", document({"mode": mode, "memory": "512Mi", "ttl": "60s", "deadline": "5ms"}))
    assert (prefill.swa_pool_config, prefill.tenant) == (FILE, "llm/demo")
    assert prefill == options("prefill", document({"mode": "Valkey"}))


def test_prefill_without_a_pool_keeps_its_stored_pages_apart_all_the_same() -> None:
    prefill = options("prefill", document({"mode": "Disabled"}, {"args": {"kv-disk-path": "/pages"}}))
    assert (prefill.swa_pool_config, prefill.kv_disk_path, prefill.tenant) == (None, "/pages", "llm/demo")


def test_encode_keeps_nothing() -> None:
    whole = document({"mode": "Valkey"})
    whole["spec"]["roles"]["encode"] = {}
    encode = options("encode", whole)
    assert (encode.swa_pool_config, encode.tenant) == (None, "")
    assert not {"swa-pool-config", "tenant", "kv-disk-path"} & set(REFERENCE.args("encode"))


@pytest.mark.parametrize("version", ["0.5.23", "dsv41-2026-09", "dsv41-37ae292e"])
@pytest.mark.parametrize("exists", [True, False])
def test_no_pod_of_sglang_reads_a_pool(version: str, exists: bool) -> None:
    profile = lookup("SGLang", version)
    assert not any(profile.reads_pool(role, exists=exists) for role in names.ROLES)


def test_nothing_of_a_pool_and_no_folder_is_in_the_compatibility_key() -> None:
    for role in ("prefill", "decode"):
        for flag in ("swa-pool-config", "tenant", "kv-disk-path", "kv-disk-bytes", "kv-disk-hours"):
            assert not REFERENCE.args(role)[flag].identity


@pytest.mark.parametrize("flag", ["swa-pool-config", "tenant"])
def test_where_the_pool_is_and_whose_it_is_belongs_to_the_operator(flag: str) -> None:
    assert rule_ids(prefill={"args": {flag: "x"}}) == {"flag-owned"}
    assert rule_ids(decode={"args": {flag: "x"}}) == {"flag-owned"}


MIXED: list[tuple[str, dict[str, Any]]] = [
    ("reference-pool-replay", {"prefill": {"encoderReplay": False}}),
    ("reference-pool-prefix-cache", {"prefill": {"args": {"prefix-cache": "off"}}}),
    ("reference-pool-ttl-short", {"pool": {"ttl": "29.999s"}}),
    ("reference-pool-deadline-short", {"pool": {"deadline": "4ms"}}),
    ("reference-pool-small", {"pool": {"memory": "1Mi"}}),
    ("reference-pool-open", {"networkPolicy": {"enabled": False}}),
    ("reference-pool-open", {"decode": {"hostNetwork": True}}),
]


@pytest.mark.parametrize(("rule", "change"), MIXED)
def test_a_rule_about_the_pool_keeps_quiet_without_one(rule: str, change: dict[str, Any]) -> None:
    change = dict(change)
    pool = change.pop("pool", {})
    assert rule in rule_ids({"mode": "Valkey", **pool}, **change)
    assert rule not in rule_ids({"mode": "Disabled", **pool}, **change)


REMOTE: list[dict[str, Any]] = [
    {"pool": {"deadline": "1ms"}},
    {"networkPolicy": {"enabled": False}},
    {"prefill": {"hostNetwork": True}},
]


@pytest.mark.parametrize("change", REMOTE)
def test_what_concerns_servers_alone_is_not_said_of_a_pool_in_process(change: dict[str, Any]) -> None:
    change = dict(change)
    assert not rule_ids({"mode": "InProcess", **change.pop("pool", {})}, **change) & {
        "reference-pool-deadline-short",
        "reference-pool-open",
    }


@pytest.mark.parametrize(("replicas", "speaks"), [(None, False), (0, False), (1, False), (2, True)])
def test_several_pods_with_a_pool_each_are_told(replicas: int | None, speaks: bool) -> None:
    prefill = {} if replicas is None else {"replicas": replicas}
    assert ("reference-pool-apart" in rule_ids({"mode": "InProcess"}, prefill)) == speaks


@pytest.mark.parametrize(
    ("mode", "port", "speaks"),
    [
        ("Mooncake", 14999, False),
        ("Mooncake", 15000, True),
        ("Mooncake", 17000, True),
        ("Mooncake", 17001, False),
        ("Mooncake", None, False),
        ("Valkey", 15000, False),
    ],
)
def test_a_port_that_mooncake_may_take_is_refused(mode: str, port: int | None, speaks: bool) -> None:
    transfer = {} if port is None else {"bootstrapPort": port}
    assert ("reference-pool-ports" in rule_ids({"mode": mode}, transfer=transfer)) == speaks


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_windows_in_process_and_the_engine_fit_into_the_pod(pool: int, pod: int) -> None:
    actual = rule_ids({"mode": "InProcess", "memory": f"{pool}Mi"}, {"resources": {"memory": f"{pod}Mi"}})
    assert ("reference-pool-memory" in actual) == (pool + 512 > pod)


def test_a_pod_left_alone_has_room_for_a_pool_in_process_left_alone() -> None:
    assert rule_ids({"mode": "InProcess"}) == set()


@pytest.mark.parametrize("cache_type", ["fp4", "bf16"])
@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_size_of_a_window_is_that_of_the_checkpoint_in_the_image(preset: str | None, cache_type: CacheType) -> None:
    config = packaged_config()
    layers = early_layers(PRESETS[preset] if preset else None, config.text)
    sizes = geometry(config, cache_type)
    args = {"kv-cache-dtype": cache_type, **({"decoder-replay-preset": preset} if preset else {})}
    document_ = {"roles": {"prefill": {"decoderReplay": "Auto" if preset else "Off"}}}
    process = Process("prefill", "cpu", 0, args, {}, {}, document=document_)
    assert swa_pool.WINDOW_BYTES.value(process) == layers * sizes.window * sizes.window_bytes


def test_the_least_memory_is_that_of_the_servers() -> None:
    assert pool_rules.SERVER_MIB * 2**20 == LEAST_MEMORY


@pytest.mark.parametrize("mode", ["InProcess", "Valkey", "Mooncake"])
@given(running=st.integers(1, 10**6), kib=st.integers(1, 10**6))
@settings(max_examples=30)
def test_a_pool_holds_a_window_of_every_request_that_runs(mode: str, running: int, kib: int) -> None:
    args = {"max-running-requests": running}
    actual = rule_ids({"mode": mode, "memory": f"{kib}Ki"}, {"args": args, "resources": {"memory": "4Gi"}})
    room = kib * 1024 - (2**20 if mode == "Valkey" else 0)
    assert ("reference-pool-small" in actual) == (room < running * 33792)


def test_the_windows_of_another_checkpoint_are_not_guessed() -> None:
    tiny = {"mode": "Valkey", "memory": "1Ki"}
    assert "reference-pool-small" in rule_ids(tiny)
    assert "reference-pool-small" not in rule_ids(tiny, model={"path": "/model", "revision": "1"})


REPLAY: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({}, ("on", "0.5.23")),
    ({"decoderReplay": "Off"}, ("off", "0.5.23")),
    ({"decoderReplay": "On", "args": {"decoder-replay-preset": "dsv41-37ae292e"}}, ("on", "dsv41-37ae292e")),
]


@pytest.mark.parametrize(("prefill", "splits"), REPLAY)
def test_decode_stores_windows_of_the_layers_that_prefill_looks_for(
    prefill: dict[str, Any], splits: tuple[str, str]
) -> None:
    whole = document({"mode": "Valkey"}, prefill)
    assert rule_ids({"mode": "Valkey"}, prefill) <= {"reference-replay-preset-idle"}
    for role in ("prefill", "decode"):
        actual = options(role, whole)
        assert (actual.decoder_replay, actual.decoder_replay_preset) == splits


@pytest.mark.parametrize("flag", ["decoder-replay", "decoder-replay-preset"])
def test_decode_takes_replay_from_prefill_alone(flag: str) -> None:
    assert rule_ids(decode={"args": {flag: "off"}}) == {"flag-owned"}
    assert REFERENCE.identity(api.parse(document()).spec, "decode", {flag: "off", "vision": "remote"}) == {}


# Two deployments never share: neither a server, nor a name under which a window lies in one.


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
SPACE = Namespace(
    model="demo",
    checkpoint="0" * 64,
    engine="epd-reference/0.1/float32",
    layout="1" * 64,
    row_format="fp4",
    first_layer=0,
    layers=4,
    window=128,
    row_bytes=66,
    page_size=64,
)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=4, unique=True))
def test_d14_tenants_of_two_deployments_differ(deployments: list[tuple[str, str]]) -> None:
    """Also where a namespace and a name run together, as `a-b` of `c` and `a` of `b-c` would."""
    tenants = [names.tenant(*one) for one in deployments]
    assert len(set(tenants)) == len(tenants)
    digests = [replace(SPACE, tenant=tenant).digest for tenant in tenants]
    assert len(set(digests)) == len(digests)


SAME: list[dict[str, str]] = [{"namespace": "llm", "name": "b"}, {"namespace": "other", "name": "a"}]


@pytest.mark.parametrize("other", SAME)
def test_d14_a_window_of_one_deployment_has_no_name_in_another(other: dict[str, str]) -> None:
    """Even if both had one server, the same weights, flags, served name, and request: the deployment is in the key."""
    shared = {"pool": {"mode": "Valkey"}, "model": {"servedName": "dsv41"}}
    ours = document(**shared, metadata={"namespace": "llm", "name": "a"})
    theirs = document(**shared, metadata=other)
    for role in ("prefill", "decode"):
        tenants = [options(role, whole).tenant for whole in (ours, theirs)]
        keys = {Key(replace(SPACE, tenant=tenant), b"\0" * 32, 64).text for tenant in tenants}
        assert len(keys) == 2
    assert names.swa_pool("a") != names.swa_pool("b")
    assert names.swa_pool_store("a") != names.swa_pool_store("b")


def test_d7_two_layouts_have_no_name_in_common() -> None:
    """What a row is made of is in the key, too, so one format is never read as another."""
    layouts = [
        SPACE,
        replace(SPACE, row_format="bf16", row_bytes=128),
        replace(SPACE, row_format="bf16"),
        replace(SPACE, layers=5),
        replace(SPACE, page_size=32),
        replace(SPACE, checkpoint="2" * 64),
        replace(SPACE, engine="epd-reference/0.2/float32"),
    ]
    for one, other in combinations(layouts, 2):
        assert Key(one, b"\0" * 32, 64).text != Key(other, b"\0" * 32, 64).text


@pytest.mark.parametrize("field", ["ref", "address", "tenant", "name", "namespace"])
def test_d7_nothing_in_a_spec_names_the_pool_of_another(field: str) -> None:
    (actual,) = validate(document({"mode": "Valkey", field: "other/demo"})).errors
    assert actual.rule == "structure"
    assert actual.sides[0].field == f"spec.swaPool.{field}"


def test_every_rule_of_the_pool_has_an_example_on_both_sides() -> None:
    rules = {rule.id for rule in swa_pool.RULES}
    assert rules <= {rule.id for rule in RULESET.rules}
    spoken = {case.name: {finding.rule for finding in validate(case.document).findings} for case in field_cases()}
    for rule in rules:
        assert any(rule in entry for entry in spoken.values()), rule
        assert any(rule not in entry for name, entry in spoken.items() if name.startswith("pool")), rule
