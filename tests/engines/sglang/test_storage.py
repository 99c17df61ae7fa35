"""Whose pages a storage holds: what the operator hands to it, and that no two deployments share any (D7, D14)."""

from __future__ import annotations

import copy
import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_operator.api import parse
from epd_operator.engines import CommandInputs, lookup
from epd_operator.engines.sglang.namespace import DIGITS
from epd_operator.engines.sglang.storage import TAG
from epd_operator.rules import commandline
from epd_operator.rules.version import KNOWN

CONFIG = "hicache-storage-backend-extra-config"
LINKER = "unified-cache-external-linker-config"
MOONCAKE = {"enable-hierarchical-cache": True, "hicache-storage-backend": "mooncake"}
LINKED = {"enable-unified-cache-external-linker": True}
BASE: dict[str, Any] = {
    "metadata": {"name": "demo", "namespace": "llm", "uid": "0"},
    "spec": {
        "model": {"path": "deepseek-ai/DeepSeek-V4.1-Flash", "revision": "rev-a"},
        "engine": {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm100", "image": "sglang:v0.5.23"},
        "roles": {
            "prefill": {"args": {"tp-size": 4, **MOONCAKE}},
            "decode": {"args": {"tp-size": 4, **MOONCAKE, "disaggregation-decode-enable-radix-cache": True}},
        },
    },
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The base with values at paths below `spec`, `P/` and `D/` standing for prefill and decode."""
    document = copy.deepcopy(BASE)
    for path, value in changes.items():
        place = document if path.startswith("metadata/") else document["spec"]
        *steps, last = path.replace("P/", "roles/prefill/").replace("D/", "roles/decode/").split("/")
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = value
    return document


def flags(document: dict[str, Any], role: Any = "prefill") -> dict[str, Any]:
    """The command line of a role's pods, read back."""
    parsed = parse(document)
    written = parsed.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    engine = parsed.spec.engine
    profile = lookup("SGLang", engine.version)
    context = CommandInputs(
        document={**written, "metadata": {"name": parsed.metadata.name}},
        platform=engine.platform or "",
        served_name="demo",
        model_path=parsed.spec.model.path,
        bootstrap_port=8998,
        args=parsed.spec.roles.declared()[role].args,
        layout_key="00ff",
        tenant=f"{parsed.metadata.namespace}/{parsed.metadata.name}",
    )
    read = commandline.parse(profile.command(role, context)[3:], profile.args(role))
    assert read.faults == ()
    return dict(read.args)


def tag(changes: dict[str, Any] | None = None, role: Any = "prefill") -> str:
    actual = json.loads(flags(changed(changes or {}), role)[CONFIG])[TAG]
    assert re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", actual)
    return str(actual)


# Each of them changes what stored bytes mean, or whose they are.
APART: dict[str, dict[str, Any]] = {
    "another namespace (D14)": {"metadata/namespace": "other"},
    "another name": {"metadata/name": "demo-b"},
    "another KV type (D7)": {"P/args/kv-cache-dtype": "bfloat16"},
    "another KV layout": {"P/env/SGLANG_DSV4_KV_LAYOUT": "v4"},
    "another layout of compressed pages": {"P/env/SGLANG_DSV4_COMPRESSED_KV_LAYOUT": "fp8"},
    "another platform": {"engine/platform": "cuda-sm90"},
    "another release": {"engine/version": "dsv41-2026-09"},
    "another image": {"engine/image": "sglang:mine"},
    "other weights": {"model/path": "org/other"},
    "another revision of the weights": {"model/revision": "rev-b"},
    "weights in the image": {"model/path": "/model"},
    "weights from a volume": {
        "model/path": "/model",
        "model/source": {"persistentVolumeClaim": {"claimName": "weights"}},
    },
    "weights from another folder": {
        "model/path": "/model",
        "model/source": {"persistentVolumeClaim": {"claimName": "weights", "subPath": "new"}},
    },
    "weights from an image of their own": {
        "model/path": "/model",
        "model/source": {"image": {"reference": "registry/weights:1"}},
    },
    "weights quantised at the start": {"P/args/quantization": "fp8"},
    "another configuration of the model": {"P/args/json-model-override-args": '{"rope_theta": 1}'},
    "encoder replay, which approximates": {"P/encoderReplay": True},
    "pages cut by context parallelism": {"P/args/attn-cp-size": 2},
    "a draft": {"P/args/speculative-algorithm": "DSPARK"},
}
# None of these does.
ALIKE: dict[str, dict[str, Any]] = {
    "a default that is spelled out": {"P/args/kv-cache-dtype": "auto"},
    "more memory": {"P/args/mem-fraction-static": 0.8, "P/args/hicache-size": 20},
    "a longer context": {"P/args/context-length": 65536},
    "more ranks": {"P/args/tp-size": 8, "D/args/tp-size": 8},
    "more pods": {"P/replicas": 5},
    "another transfer": {"transfer": {"backend": "nixl", "bootstrapPort": 9001}},
    "another name for clients": {"model/servedName": "clients-say-so"},
    "a variable that decides nothing": {"P/env/NCCL_DEBUG": "INFO"},
}


def test_no_two_deployments_and_no_two_layouts_have_one_tag() -> None:
    tags = {"the base": tag(), **{name: tag(changes) for name, changes in APART.items()}}
    assert {(one, other) for one, other in itertools.combinations(tags, 2) if tags[one] == tags[other]} == set()


def test_two_ways_to_one_layout_lead_to_the_same_pages() -> None:
    assert tag({"P/env/SGLANG_DSV4_KV_LAYOUT": "v4"}) == tag({"P/args/dsv4-attn-backend": "flashmla"})


@pytest.mark.parametrize("name", ALIKE)
def test_what_changes_no_byte_keeps_the_pages(name: str) -> None:
    assert tag(ALIKE[name]) == tag()


def test_prefill_and_decode_of_one_deployment_share_pages() -> None:
    assert tag(role="decode") == tag()
    assert tag({"P/encoderReplay": True}, "decode") == tag({"P/encoderReplay": True})
    assert tag({"P/args/attn-cp-size": 2}, "decode") != tag({"P/args/attn-cp-size": 2})


def test_a_tag_stays_what_it_is() -> None:
    """What another release of the operator computes for a new revision must find the pages of the last one."""
    assert tag() == "550c135d2f7a2307"


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("backend", ["mooncake", "npu_memcache", "simm", "mori", "dynamic"])
def test_every_back_end_that_reads_a_tag_gets_one(version: str, backend: str) -> None:
    actual = flags(changed({"engine/version": version, "P/args/hicache-storage-backend": backend}))
    assert json.loads(actual[CONFIG]).keys() == {TAG}


@pytest.mark.parametrize("backend", ["file", "nixl", "hf3fs", "aibrix", "eic", "tensorcast", "seaweedfs", "shm", "sim"])
def test_other_back_ends_get_what_the_user_wrote(backend: str) -> None:
    changes = {"P/args/hicache-storage-backend": backend}
    assert CONFIG not in flags(changed(changes))
    assert flags(changed({**changes, f"P/args/{CONFIG}": '{"a": 1}'}))[CONFIG] == '{"a": 1}'


def test_without_a_storage_nothing_is_added() -> None:
    args = {"tp-size": 4, "enable-hierarchical-cache": True}
    assert CONFIG not in flags(changed({"P/args": args}))
    assert CONFIG not in flags(changed({"D/args": {"tp-size": 4}}), "decode")


def test_a_configuration_in_a_file_stays_one() -> None:
    """The user took responsibility for it, or there would be no pod."""
    assert flags(changed({f"P/args/{CONFIG}": "@/etc/storage.json"}))[CONFIG] == "@/etc/storage.json"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name != TAG), _JSON, max_size=4))
def test_what_the_user_configured_is_kept(config: dict[str, Any]) -> None:
    actual = json.loads(flags(changed({f"P/args/{CONFIG}": json.dumps(config)}))[CONFIG])
    assert actual == {**config, TAG: tag()}


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (LINKED, LINKER),
        ({**LINKED, "unified-cache-external-linker-backend": "mori"}, LINKER),
        ({**LINKED, LINKER: '{"master_server_address": "m:1"}'}, LINKER),
        ({**LINKED, CONFIG: '{"master_server_address": "m:1"}'}, CONFIG),
        ({**LINKED, LINKER: "{}", CONFIG: '{"master_server_address": "m:1"}'}, LINKER),
    ],
)
def test_an_external_linker_gets_the_tag_where_it_looks(args: dict[str, Any], place: str) -> None:
    actual = flags(changed({"P/args": {"tp-size": 4, **args}}))
    other = {LINKER: CONFIG, CONFIG: LINKER}[place]
    assert json.loads(actual[place]) == {**json.loads(args.get(place, "{}")), TAG: tag()}
    assert actual.get(other) == args.get(other)


def test_a_linker_of_ones_own_keeps_its_configuration() -> None:
    own = json.dumps({"linker": "Mine", "linker_module_path": "mine"})
    args = {**LINKED, "unified-cache-external-linker-backend": "dynamic", LINKER: own}
    actual = flags(changed({"P/args": {"tp-size": 4, **args}}))
    assert (actual[LINKER], CONFIG in actual) == (own, False)
