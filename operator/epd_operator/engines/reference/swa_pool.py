"""What the Reference engine needs of a pool of windows and of a folder for pages, and what makes them useless."""

from __future__ import annotations

from typing import Final

from epd_operator.engines import swa_pool
from epd_operator.engines.reference.value import (
    CACHE,
    DECODER_FIELD,
    DECODER_ON,
    ENCODER_FIELD,
    ENCODER_ON,
    PRESET,
    SOURCE,
    WINDOW,
    flag,
)
from epd_operator.engines.shared import MEMORY, MEMORY_GIB
from epd_operator.engines.swa_pool import EXISTS, IN_PROCESS, MODE, POOL_MIB
from epd_operator.engines.swa_pool import MEMORY as POOL_MEMORY
from epd_operator.rules.expression import TRUE, Leaf, at, every, some, spec_of, when
from epd_operator.rules.rule import Rule

ENGINE_GIB: Final = 0.5
"""Memory of a prefill pod with the checkpoint in the image, beside windows: 0.36 GiB before the first request."""
VALKEY_MIB: Final = 1
"""What an empty server counts against its limit (valkey-server 9.1)."""
LAYERS: Final = {"off": 8, "0.5.23": 4, "dsv41-37ae292e": 5}
"""Layers of a window of the checkpoint in the image, by what decoder replay follows."""
ROW: Final = {"fp4": 66, "bf16": 128}
"""Bytes of a row of one of its layers, by kv-cache-dtype."""

_SOURCE: Final = "docs/swa-pool.md"
_MIB: Final = 2**20
_REMOTE: Final = MODE.isin(("Valkey", "Mooncake"))
_NEED: Final = POOL_MIB * (1 / 1024) + ENGINE_GIB

_TYPE: Final = flag("kv-cache-dtype")
_RUNNING: Final = flag("max-running-requests")
_LAYERS: Final = when(
    DECODER_ON, when(PRESET == "dsv41-37ae292e", LAYERS["dsv41-37ae292e"], LAYERS["0.5.23"]), LAYERS["off"]
)
WINDOW_BYTES: Final = _LAYERS * WINDOW * when(_TYPE == "bf16", ROW["bf16"], ROW["fp4"])
"""Bytes of one window of the checkpoint in the image."""
_LEAST: Final = WINDOW_BYTES * _RUNNING * (1 / _MIB) + when(MODE == "Valkey", float(VALKEY_MIB), 0.0)

_DISK: Final = Leaf("flag", "kv-disk-path", "str")
_DISK_BYTES: Final = Leaf("flag", "kv-disk-bytes", "int")
_DISK_HOURS: Final = Leaf("flag", "kv-disk-hours", "float")
_BOTH: Final = ("prefill", "decode")


_USE_RULES: Final = (
    Rule(
        id="reference-pool-replay",
        when=EXISTS & ~ENCODER_ON,
        sides=(MODE, ENCODER_FIELD),
        says="without encoder replay a prefix is found only with a window of its own pod, so the pool would hold "
        "nothing that is ever read, and a window that it lost would cost the whole prefix",
        fix="set encoderReplay to true, or mode to Disabled",
        source=_SOURCE,
        roles=("prefill",),
    ),
    Rule(
        id="reference-pool-prefix-cache",
        when=EXISTS & (CACHE == "off"),
        sides=(MODE, CACHE),
        says="a window is useful only after a prefix whose pages are cached, so without a prefix cache the pool would "
        "never be asked",
        fix="set prefix-cache to on, or mode to Disabled",
        source=_SOURCE,
        roles=("prefill",),
    ),
)

_SIZE_RULES: Final = (
    Rule(
        id="reference-pool-memory",
        when=IN_PROCESS & (_NEED > MEMORY_GIB),
        sides=(POOL_MEMORY, MEMORY),
        says=f"windows in process count inside the pod's memory limit: with {ENGINE_GIB:g} GiB for the engine itself "
        "the pod needs {need} GiB of {memory} GiB, and would be killed",
        fix="raise resources.memory of prefill to {need} GiB or more, or lower swaPool.memory",
        source=_SOURCE,
        roles=("prefill",),
        shows={"need": _NEED, "memory": MEMORY_GIB},
    ),
    Rule(
        id="reference-pool-small",
        when=every(EXISTS, ~spec_of("model.path", "str").given, POOL_MIB < _LEAST),
        sides=(POOL_MEMORY, _RUNNING, DECODER_FIELD, _TYPE),
        says="{running} requests that run at once leave windows of {window} KiB each, and a pool that holds fewer than "
        "those loses each before anyone returns for it: they take {least} KiB",
        fix="raise swaPool.memory well above {least} KiB, or set mode to Disabled",
        source=_SOURCE,
        roles=("prefill",),
        shows={"running": _RUNNING, "window": WINDOW_BYTES * (1 / 1024), "least": _LEAST * 1024.0},
    ),
)

_DISK_RULES: Final = (
    Rule(
        id="reference-disk-path",
        when=some(_DISK_BYTES.given, _DISK_HOURS.given) & ~_DISK.given,
        sides=(_DISK, _DISK_BYTES, _DISK_HOURS),
        says="the limits of stored pages are given without the folder",
        fix="set kv-disk-path, or remove both limits",
        source=SOURCE,
        roles=_BOTH,
    ),
    Rule(
        id="reference-disk-replay",
        when=_DISK.given & ~ENCODER_ON,
        sides=(_DISK, ENCODER_FIELD),
        says="stored pages hold no windows, so without encoder replay nothing that begins with them is ever found",
        fix="set encoderReplay to true, or remove kv-disk-path",
        source=SOURCE,
        roles=("prefill",),
    ),
    Rule(
        id="reference-disk-prefix-cache",
        when=_DISK.given & (CACHE == "off"),
        sides=(_DISK, CACHE),
        says="stored pages come back through the prefix cache, which is off",
        fix="set prefix-cache to on, or remove kv-disk-path",
        source=SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-disk-decode",
        when=_DISK.given & some(~_REMOTE, ~at("prefill", _DISK).given),
        sides=(_DISK, MODE, at("prefill", _DISK)),
        says="decode stores an answer's pages only together with its windows, and prefill must read both: that takes a "
        "pool that several pods share, and kv-disk-path of prefill on the same volume",
        fix="set mode to Valkey or Mooncake and kv-disk-path on prefill, too, or remove it from decode",
        source=_SOURCE,
        severity="warning",
        roles=("decode",),
    ),
)

RULES: Final = (*_USE_RULES, *swa_pool.rules("reference-pool", TRUE), *_SIZE_RULES, *_DISK_RULES)
