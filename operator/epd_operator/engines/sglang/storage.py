"""The storage behind the hierarchical cache or the external linker: whose pages it holds, and which it may give back.

The tricky idea: a page is found by a name that says nothing of the bytes (`namespace`). Four storage back ends put a
tag of one's choice in front of that name; the operator sets it, and the rest of the configuration stays the user's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.base import IS_DECODE, IS_V41, MODE, ON_A_SPEC
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.rules.expression import Expr, Opaque, every, named, some, starts, when
from epd_operator.rules.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_operator.rules.expression import EvaluationScope, Leaf, Value

TAG: Final = "extra_backend_tag"
"""Source: SGLang 0.5.23, mem_cache/storage: mooncake_store, npu_memcache, simm, umbp."""

_ROLES: Final = ("prefill", "decode")
_TAGGED: Final = ("mooncake", "npu_memcache", "simm", "mori", "dynamic")
_UNTAGGED: Final = ("hf3fs", "nixl", "aibrix", "eic", "tensorcast", "seaweedfs")
"""Beside these and `file` there are `shm` and `sim`, which keep nothing."""
_SCRATCH: Final = "/tmp/"  # noqa: S108 - a private emptyDir of the pod, not a shared directory
_SOURCE: Final = "SGLang 0.5.23, mem_cache/storage/backend_factory.py and the back ends that it names"

_LINKS: Final = flag("enable-unified-cache-external-linker")
_LINKER: Final = flag("unified-cache-external-linker-backend")
_LINKER_CONFIG: Final = written("unified-cache-external-linker-config")
_STORAGE: Final = written("hicache-storage-backend")
_CONFIG: Final = written("hicache-storage-backend-extra-config")
_OFFLOAD: Final = flag("disaggregation-decode-enable-offload-kvcache")

LINKED: Final = _LINKS & ~(_LINKER == "dynamic")
"""A linker of one's own has a configuration of its own."""
STORED: Final = ~_LINKS & _STORAGE.given
TAGGED: Final = LINKED | (STORED & _STORAGE.isin(_TAGGED))
"""Whether something puts the tag in front of the names of pages."""
_BY_LINKER: Final = LINKED & (_LINKER_CONFIG.given | ~_CONFIG.given)
"""The linker takes the storage's configuration only where it has none. Source: unified_cache/linker_factory.py."""
_READ: Final = named("storage_config", when(_BY_LINKER, _LINKER_CONFIG, _CONFIG), _CONFIG, _LINKER_CONFIG)


def configured(process: EvaluationScope, tag: str) -> dict[str, str]:
    """The flag that hands the tag to the storage of a process, with what the user configured beside it.

    Args:
        process: The process; its findings are out of the way.
        tag: What keeps its pages apart.

    Returns:
        Nothing where nobody reads a tag, or where the user took responsibility for a configuration in a file.
    """
    if not TAGGED.value(process):
        return {}
    config = _object(_READ.value(process))
    if config is None:
        return {}
    place = _LINKER_CONFIG if _BY_LINKER.value(process) else _CONFIG
    return {place.name: json.dumps({**config, TAG: tag}, ensure_ascii=False)}


def _object(text: Value) -> dict[str, Any] | None:
    """The JSON object that a text holds, an empty one where there is no text; None when it holds something else."""
    if text in {None, ""}:
        return {}
    try:
        config = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _no_object(text: Value) -> bool:
    return not str(text).startswith("@") and _object(text) is None


def _entry(text: Value, name: str) -> Value:
    result = (_object(text) or {}).get(name)
    return None if result is None else str(result)


def _tag(text: Value) -> Value:
    return _entry(text, TAG)


def _folder(text: Value) -> Value:
    return _entry(text, "file_storage_path")


def _about(place: Expr, name: str, function: Callable[[Value], bool]) -> Expr:
    return Opaque(name, function, (place,), "bool", blind=False, nullable=False)


def _text(place: Leaf, name: str, function: Callable[[Value], Value]) -> Expr:
    return Opaque(name, function, (place,), "str")


_GIVEN_TAG: Final = Opaque("the tag in the configuration of the storage", _tag, (_READ,), "str")
_FOLDER: Final = env("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR").otherwise(
    _text(_CONFIG, "the folder in the configuration of the storage", _folder).otherwise(written("file-storage-path"))
)
"""Where the back end `file` keeps pages; /tmp/hicache when nobody says."""
_IN_A_FOLDER: Final = every(_STORAGE == "file", _FOLDER.given, ~starts(_FOLDER, _SCRATCH))

_NAMES: Final = (
    Rule(
        id="hicache-storage-config",
        when=every(
            ON_A_SPEC,
            STORED,
            _about(_CONFIG, "whether the configuration of the storage is not a JSON object", _no_object),
        ),
        sides=(_CONFIG, _STORAGE),
        says="the configuration of a storage back end must be a JSON object, or the engine exits",
        fix='write it as one, such as {{"master_server_address": "mooncake-master:50051"}}, or leave it out',
        source="SGLang 0.5.23, mem_cache/hybrid_cache/hybrid_cache_controller.py",
        roles=_ROLES,
    ),
    Rule(
        id="hicache-storage-config-file",
        when=every(ON_A_SPEC, TAGGED, starts(_READ, "@")),
        sides=(_READ,),
        says=f"the operator keeps the pages of deployments and of layouts apart by an {TAG} in this configuration, "
        "and it can put none into a file",
        fix=f"write the JSON itself instead of @ and a path; or see to it that the file has an {TAG} that no other "
        "deployment has, and another one whenever weights, engine, KV dtype or layout change",
        source=_SOURCE,
        roles=_ROLES,
        overridable=True,
    ),
    Rule(
        id="hicache-storage-tag",
        when=every(ON_A_SPEC, TAGGED, _GIVEN_TAG.given),
        sides=(_READ,),
        says=f'{TAG} is "{{tag}}" here, and the operator sets one of its own, so that no two deployments, weights, '
        "engines or layouts ever read each other's pages",
        fix=f"remove {TAG}",
        source=_SOURCE,
        roles=_ROLES,
        shows={"tag": _GIVEN_TAG.otherwise("")},
    ),
    Rule(
        id="hicache-storage-shared",
        when=every(ON_A_SPEC, STORED, some(_STORAGE.isin(_UNTAGGED), _IN_A_FOLDER)),
        sides=(_STORAGE,),
        says="this storage back end knows pages by the served model's name alone, so that another deployment of that "
        "name, or this one with other weights or another layout, is given bytes that mean something else",
        fix="use mooncake, where the operator keeps them apart; or give this deployment a store of its own, an empty "
        "one whenever weights, engine, KV dtype or layout change",
        source="SGLang 0.5.23, mem_cache/hicache_storage.py; sgl-project/sglang#38362, dingodb/DingoCache#380",
        roles=_ROLES,
        overridable=True,
    ),
    Rule(
        id="hicache-storage-own-class",
        when=every(ON_A_SPEC, STORED, _STORAGE == "dynamic"),
        sides=(_STORAGE,),
        says=f"the operator hands an {TAG} to this class, and only the class can keep the pages of deployments and of "
        "layouts apart by it",
        fix=f"see to it that the class puts {TAG} of its extra_config into every name",
        source=_SOURCE,
        severity="warning",
        roles=_ROLES,
    ),
)

_DECODE: Final = (
    Rule(
        id="decode-offload-pages",
        when=every(_OFFLOAD, IS_DECODE, IS_V41),
        sides=(written("disaggregation-decode-enable-offload-kvcache"), MODE),
        says="a decode server saves pages of other kinds than those of DeepSeek-V4.1, and exits once it has loaded the "
        "weights",
        fix="remove disaggregation-decode-enable-offload-kvcache: what prefill computed is stored by prefill",
        source="SGLang 0.5.23, disaggregation/decode_kvcache_offload_manager.py (read, not run)",
        operator_only=True,
        overridable=True,
    ),
)

RULES: Final = (*_NAMES, *_DECODE)
RESOLVED: Final = ()
