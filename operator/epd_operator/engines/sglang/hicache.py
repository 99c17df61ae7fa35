"""The hierarchical cache in host memory and storage, and the external linker that takes its place.

The tricky idea: the engine rewrites layout and copy back end until they fit each other and the storage. The chain below
repeats that, because prefill and decode see only its end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.base import IS_DECODE, MODE
from epd_operator.engines.sglang.cache import DISABLE_RADIX_CACHE
from epd_operator.engines.sglang.disaggregation import HOST_RECEIVE, RETRACTION_BACKUP
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.rules.expression import Expr, Opaque, every, named, some, when
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_operator.rules.expression import Value

_SOURCE: Final = "SGLang 0.5.23, arg_groups/hicache_hook.py"
_DECIDES: Final = "hicache_hook.handle_hicache"
_MODES: Final = "hicache_hook.validate_hicache_host_memory_mode"
_UNFIT_STORAGES: Final = ("mooncake", "npu_memcache")

_HICACHE: Final = flag("enable-hierarchical-cache")
_LINKER: Final = flag("enable-unified-cache-external-linker")
_LINKER_GIVEN: Final = written("enable-unified-cache-external-linker")
_LINKER_BACKEND: Final = flag("unified-cache-external-linker-backend")
_LINKER_CONFIG: Final = written("unified-cache-external-linker-config")
_STORAGE: Final = written("hicache-storage-backend")
_UNIFIED: Final = flag("enable-unified-memory")
_BUFFER_ONLY: Final = flag("hicache-host-memory-mode") == "buffer_only"
_LAYOUT: Final = written("hicache-mem-layout")
_IO: Final = written("hicache-io-backend")
_FRACTION: Final = flag("hicache-host-memory-fraction")

HOST_POOL: Final = ~_LINKER & some(
    _HICACHE,
    flag("disaggregation-decode-enable-offload-kvcache"),
    IS_DECODE & (~RETRACTION_BACKUP.given | (RETRACTION_BACKUP == "host_pool")),
)
"""Whether the server keeps pages in host memory, and so settles their layout."""

_LAYOUT_WANTED: Final = named(
    "hicache_mem_layout_wanted", when(HOST_RECEIVE, "layer_first", flag("hicache-mem-layout")), _LAYOUT
)
_IO_FITTED: Final = named(
    "hicache_io_backend_fitted",
    when(
        (_LAYOUT_WANTED == "page_first_direct") & (flag("hicache-io-backend") == "kernel"),
        "direct",
        flag("hicache-io-backend"),
    ),
    _IO,
)
_LAYOUT_FITTED: Final = named(
    "hicache_mem_layout_fitted",
    when(
        (_LAYOUT_WANTED == "page_first") & (_IO_FITTED == "direct"),
        "page_first_direct",
        when(
            (_LAYOUT_WANTED == "layer_first")
            & _STORAGE.isin(_UNFIT_STORAGES)
            & ~((_STORAGE == "mooncake") & (flag("dcp-size") > 1)),
            when(
                _IO_FITTED == "direct", "page_first_direct", when(_IO_FITTED == "kernel", "page_first", "layer_first")
            ),
            _LAYOUT_WANTED,
        ),
    ),
    _LAYOUT,
)
_STRIDED: Final = _UNIFIED & (_LAYOUT_FITTED == "page_first_direct")
HICACHE_MEM_LAYOUT: Final = named(
    "hicache_mem_layout",
    when(HOST_POOL, when(_STRIDED, "page_first", _LAYOUT_FITTED), flag("hicache-mem-layout")),
    _LAYOUT,
    _IO,
    _STORAGE,
)
HICACHE_IO_BACKEND: Final = named(
    "hicache_io_backend",
    when(HOST_POOL, when(_STRIDED, "kernel", _IO_FITTED), flag("hicache-io-backend")),
    _IO,
    _LAYOUT,
)
HICACHE_WRITE_POLICY: Final = named(
    "hicache_write_policy",
    when(
        HOST_POOL & _BUFFER_ONLY & _STORAGE.given & (flag("hicache-write-policy") == "write_back"),
        "write_through",
        flag("hicache-write-policy"),
    ),
    written("hicache-write-policy"),
    written("hicache-host-memory-mode"),
)


def _read(text: Value) -> Any:
    try:
        return json.loads(str(text)) if text is not None else None
    except (ValueError, RecursionError):
        return None


def _not_an_object(text: Value) -> bool:
    """Whether the linker's configuration is JSON, but no object."""
    config = _read(text)
    return config is not None and not isinstance(config, dict)


def _names_no_linker(text: Value) -> bool:
    """Whether an object lacks what a linker of one's own is loaded by."""
    config = _read(text)
    if config is None:
        return True
    if not isinstance(config, dict):
        return False
    names = (config.get("linker"), config.get("linker_module_path"))
    known = {"linker", "linker_module_path", "linker_extra_config"}
    return (
        bool(set(config) - known)
        or not all(isinstance(name, str) and name.strip() for name in names)
        or not isinstance(config.get("linker_extra_config", {}), dict)
    )


def _has_config(text: Value) -> bool:
    return _read(text) is not None


def _about_config(name: str, function: Callable[[Value], bool]) -> Expr:
    return Opaque(name, function, (_LINKER_CONFIG,), "bool", blind=False, nullable=False)


_OWN_LINKER: Final = (_LINKER_BACKEND == "dynamic") & (
    _LINKER | _about_config("whether the linker configuration holds something", _has_config)
)

_LINKER_RULES: Final = (
    Rule(
        id="linker-config-object",
        when=_about_config("whether the linker configuration is not an object", _not_an_object),
        sides=(_LINKER_CONFIG,),
        says="the external linker is configured by a JSON object",
        fix="set unified-cache-external-linker-config to a JSON object, or leave it out",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linker-config-dynamic",
        when=_OWN_LINKER & _about_config("whether the linker configuration names no linker", _names_no_linker),
        sides=(written("unified-cache-external-linker-backend"), _LINKER_CONFIG),
        says="an external linker of one's own is named by linker and linker_module_path, with linker_extra_config as "
        "an "
        "object, and nothing else",
        fix="name both in unified-cache-external-linker-config, or use the mooncake or mori linker",
        source="SGLang 0.5.23, mem_cache/unified_cache/linker_config.py",
        decided_by="linker_config.from_dict",
        roles=ROLES,
    ),
    Rule(
        id="linker-mla-dedup",
        when=flag("enable-linker-mla-dedup") & ~(_LINKER & (_LINKER_BACKEND == "mooncake")),
        sides=(written("enable-linker-mla-dedup"), written("enable-unified-cache-external-linker")),
        says="storing MLA pages once is done by the mooncake linker",
        fix="remove enable-linker-mla-dedup",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linker-features",
        when=_LINKER & _HICACHE,
        sides=(_LINKER_GIVEN, written("enable-hierarchical-cache")),
        says="the external linker takes the place of the hierarchical cache",
        fix="remove enable-hierarchical-cache or enable-unified-cache-external-linker",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linker-storage",
        when=every(_LINKER, ~_HICACHE, _STORAGE.given),
        sides=(_LINKER_GIVEN, _STORAGE),
        says="the external linker takes the place of the storage behind a hierarchical cache",
        fix="remove hicache-storage-backend or enable-unified-cache-external-linker",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linker-radix-backend",
        when=_LINKER & written("radix-cache-backend").given,
        sides=(_LINKER_GIVEN, written("radix-cache-backend")),
        says="the external linker needs the built-in radix cache",
        fix="remove radix-cache-backend or enable-unified-cache-external-linker",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linker-radix-cache",
        when=_LINKER & DISABLE_RADIX_CACHE,
        sides=(_LINKER_GIVEN, DISABLE_RADIX_CACHE),
        says="the external linker needs the radix cache, and this server has none",
        fix="remove enable-unified-cache-external-linker; or remove disable-radix-cache, and on decode set "
        "disaggregation-decode-enable-radix-cache",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
)

_HICACHE_RULES: Final = (
    Rule(
        id="hicache-memory-fraction-range",
        when=~((_FRACTION > 0.0) & (_FRACTION <= 1.0)),
        sides=(written("hicache-host-memory-fraction"),),
        says="the hierarchical cache takes a share above 0 and up to 1 of the host memory",
        fix="set hicache-host-memory-fraction to such a number, or leave it out",
        source=_SOURCE,
        decided_by="hicache_hook.handle_hicache_ratio_default",
        roles=ROLES,
    ),
    Rule(
        id="hicache-buffer-storage",
        when=HOST_POOL & _BUFFER_ONLY & ~_STORAGE.given,
        sides=(written("hicache-host-memory-mode"), _STORAGE),
        says="buffer_only host memory passes pages on to storage, and no storage backend is set",
        fix="set hicache-storage-backend, or hicache-host-memory-mode: cache",
        source=_SOURCE,
        decided_by=_MODES,
        roles=ROLES,
    ),
    Rule(
        id="hicache-buffer-decode",
        when=HOST_POOL & _BUFFER_ONLY & IS_DECODE,
        sides=(written("hicache-host-memory-mode"), MODE),
        says="a decode server bypasses the buffer that buffer_only host memory is",
        fix="set hicache-host-memory-mode: cache on decode; buffer_only is for prefill",
        source=_SOURCE,
        decided_by=_MODES,
        roles=ROLES,
    ),
    Rule(
        id="hicache-host-receive-layout",
        when=HOST_POOL & HOST_RECEIVE & ~(HICACHE_MEM_LAYOUT == "layer_first"),
        sides=(written("disaggregation-decode-host-receive-threshold"), HICACHE_MEM_LAYOUT, _STORAGE),
        says="pages received in host memory lie layer by layer, and this storage backend cannot store them so",
        fix="leave disaggregation-decode-host-receive-threshold at 1, or use another hicache-storage-backend",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="hicache-dcp",
        when=HOST_POOL & _HICACHE & (flag("dcp-size") > 1),
        sides=(written("enable-hierarchical-cache"), written("dcp-size")),
        says="a hierarchical cache with decode context parallelism is for MLA models, and DeepSeek-V4.1 does not count "
        "as one",
        fix="remove enable-hierarchical-cache or set dcp-size: 1",
        source=_SOURCE,
        decided_by="hicache_hook.resolve_hicache_dcp_compatibility",
        roles=ROLES,
    ),
)

_CHANGES: Final = (
    Rule(
        id="hicache-layout-changed",
        when=_LAYOUT.given & ~(HICACHE_MEM_LAYOUT == _LAYOUT),
        sides=(HICACHE_MEM_LAYOUT, HICACHE_IO_BACKEND, _STORAGE),
        says="the engine uses the memory layout {layout} instead of the one given, to fit its I/O or storage backend",
        fix="set hicache-mem-layout: {layout}, or another I/O or storage backend",
        source=_SOURCE,
        severity="warning",
        shows={"layout": HICACHE_MEM_LAYOUT},
    ),
    Rule(
        id="hicache-io-changed",
        when=_IO.given & ~(HICACHE_IO_BACKEND == _IO),
        sides=(HICACHE_IO_BACKEND, HICACHE_MEM_LAYOUT),
        says="the engine copies by the I/O backend {backend} instead of the one given, to fit its memory layout",
        fix="set hicache-io-backend: {backend}, or another memory layout",
        source=_SOURCE,
        severity="warning",
        shows={"backend": HICACHE_IO_BACKEND},
    ),
    Rule(
        id="hicache-write-policy-changed",
        when=~(flag("hicache-write-policy") == HICACHE_WRITE_POLICY),
        sides=(HICACHE_WRITE_POLICY, written("hicache-host-memory-mode")),
        says="buffer_only host memory keeps nothing to write back, so the engine writes through",
        fix="set hicache-write-policy: write_through",
        source=_SOURCE,
        severity="warning",
    ),
)

RULES: Final = (*_LINKER_RULES, *_HICACHE_RULES, *_CHANGES)
RESOLVED: Final = (HICACHE_MEM_LAYOUT, HICACHE_IO_BACKEND, HICACHE_WRITE_POLICY)
