"""What the Reference engine needs of a pool of windows and of a folder for pages, and what makes them useless."""

from __future__ import annotations

from typing import Final

from epd_operator.api import duration, quantity
from epd_operator.engines.effective import IN_PROCESS_MEMORY, POOL_MEMORY
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
from epd_operator.engines.swa_pool import EXISTS, MODE
from epd_operator.rules.expression import Expr, Leaf, at, every, field_of, named, some, spec_of, when
from epd_operator.rules.rule import Rule

ENGINE_GIB: Final = 0.5
"""Memory of a prefill pod with the checkpoint in the image, beside windows: 0.36 GiB before the first request."""
SERVER_MIB: Final = 16
"""Least memory of a server: below it a store's set-up fails (mooncake-transfer-engine 0.3.13.post1)."""
VALKEY_MIB: Final = 1
"""What an empty server counts against its limit (valkey-server 9.1)."""
LAYERS: Final = {"off": 8, "0.5.23": 4, "dsv41-37ae292e": 5}
"""Layers of a window of the checkpoint in the image, by what decoder replay follows."""
ROW: Final = {"fp4": 66, "bf16": 128}
"""Bytes of a row of one of its layers, by kv-cache-dtype."""

MOONCAKE_PORTS: Final = range(15000, 17001)
"""Of these a client in an engine's pod takes two free ones (mooncake-transfer-engine 0.3.13.post1, by default)."""

_SOURCE: Final = "docs/swa-pool.md"
_MIB: Final = 2**20
_IN_PROCESS: Final = MODE == "InProcess"
_MOONCAKE: Final = MODE == "Mooncake"
_REMOTE: Final = MODE.isin(("Valkey", "Mooncake"))
_TEXT: Final = spec_of("swaPool.memory", "str")
_BYTES: Final = spec_of("swaPool.memory", "float", unit="bytes")


def _by_mode(in_process: str | float, remote: str | float) -> Expr:
    return when(_IN_PROCESS, in_process, when(_REMOTE, remote, None))


def _mib(amount: str) -> float:
    return float((quantity.parse(amount) or 0) / _MIB)


def _seconds(length: str) -> float:
    return float(duration.parse(length) or 0)


POOL_MIB: Final = (_BYTES * (1 / _MIB)).otherwise(_by_mode(_mib(IN_PROCESS_MEMORY), _mib(POOL_MEMORY)))
"""Memory for windows in each server, or in each prefill pod."""
_MEMORY: Final = named("swapool.memory", when(_BYTES.given, _TEXT, _by_mode(IN_PROCESS_MEMORY, POOL_MEMORY)), _TEXT)
_NEED: Final = POOL_MIB * (1 / 1024) + ENGINE_GIB

_TYPE: Final = flag("kv-cache-dtype")
_RUNNING: Final = flag("max-running-requests")
_LAYERS: Final = when(
    DECODER_ON, when(PRESET == "dsv41-37ae292e", LAYERS["dsv41-37ae292e"], LAYERS["0.5.23"]), LAYERS["off"]
)
WINDOW_BYTES: Final = _LAYERS * WINDOW * when(_TYPE == "bf16", ROW["bf16"], ROW["fp4"])
"""Bytes of one window of the checkpoint in the image."""
_LEAST: Final = WINDOW_BYTES * _RUNNING * (1 / _MIB) + when(MODE == "Valkey", float(VALKEY_MIB), 0.0)

_REPLICAS: Final = field_of("replicas", "int")
_BOOTSTRAP: Final = spec_of("transfer.bootstrapPort", "int")
_POLICY: Final = spec_of("networkPolicy.enabled", "bool")
_HOST_NETWORK: Final = field_of("hostNetwork", "bool")

_TTL: Final = spec_of("swaPool.ttl", "str")
_TTL_SECONDS: Final = spec_of("swaPool.ttl", "float", unit="seconds")
_SHORT_TTL: Final = "30s"
_DEADLINE: Final = spec_of("swaPool.deadline", "str")
_DEADLINE_SECONDS: Final = spec_of("swaPool.deadline", "float", unit="seconds")
_SHORT_DEADLINE: Final = "5ms"

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
    Rule(
        id="reference-pool-apart",
        when=_IN_PROCESS & (_REPLICAS > 1),
        sides=(MODE, _REPLICAS),
        says="each prefill pod keeps a pool of its own, so a turn that comes to another pod finds no window there",
        fix="use Valkey or Mooncake, or one prefill pod",
        source=_SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-pool-ttl-short",
        when=EXISTS & (_seconds(_SHORT_TTL) > _TTL_SECONDS),
        sides=(_TTL,),
        says="few people answer that fast, so most windows would be gone when their turn comes",
        fix=f"use {_SHORT_TTL} or more, such as 300s",
        source=_SOURCE,
        severity="warning",
        roles=(),
    ),
    Rule(
        id="reference-pool-deadline-short",
        when=_REMOTE & (_seconds(_SHORT_DEADLINE) > _DEADLINE_SECONDS),
        sides=(_DEADLINE, MODE),
        says="a window of a few megabytes takes a busy server that long by itself, so many would come too late to be "
        "used: data goes in and never comes out",
        fix=f"use {_SHORT_DEADLINE} or more, such as 20ms",
        source=_SOURCE,
        severity="warning",
        roles=(),
    ),
)

_SIZE_RULES: Final = (
    Rule(
        id="reference-pool-memory",
        when=_IN_PROCESS & (_NEED > MEMORY_GIB),
        sides=(_MEMORY, MEMORY),
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
        sides=(_MEMORY, _RUNNING, DECODER_FIELD, _TYPE),
        says="{running} requests that run at once leave windows of {window} KiB each, and a pool that holds fewer than "
        "those loses each before anyone returns for it: they take {least} KiB",
        fix="raise swaPool.memory well above {least} KiB, or set mode to Disabled",
        source=_SOURCE,
        roles=("prefill",),
        shows={"running": _RUNNING, "window": WINDOW_BYTES * (1 / 1024), "least": _LEAST * 1024.0},
    ),
    Rule(
        id="reference-pool-server-small",
        when=_REMOTE & (float(SERVER_MIB) > POOL_MIB),
        sides=(_MEMORY, MODE),
        says=f"a server of the pool does not start with less than {SERVER_MIB} MiB",
        fix=f"raise swaPool.memory to {SERVER_MIB}Mi or more",
        source="epd-swapool, --memory; mooncake-transfer-engine 0.3.13.post1, set-up of a store",
        roles=(),
    ),
)

_NETWORK_RULES: Final = (
    Rule(
        id="reference-pool-ports",
        when=every(_MOONCAKE, MOONCAKE_PORTS[0] <= _BOOTSTRAP, MOONCAKE_PORTS[-1] >= _BOOTSTRAP),
        sides=(_BOOTSTRAP, MODE),
        says=f"Mooncake in the engine's pods takes free ports from {MOONCAKE_PORTS[0]} to {MOONCAKE_PORTS[-1]}, and "
        "may take this one first",
        fix="use another port, such as 8998",
        source="mooncake-transfer-engine 0.3.13.post1, MC_MIN_RPC_PORT and MC_MAX_RPC_PORT",
        roles=(),
    ),
    Rule(
        id="reference-pool-open",
        when=_REMOTE & some(_POLICY == False, *(at(role, _HOST_NETWORK) == True for role in _BOTH)),  # noqa: E712 - expressions
        sides=(MODE, _POLICY, *(at(role, _HOST_NETWORK) for role in _BOTH)),
        says="the pool has no password and no encryption, and without network policies, which a pod on its node's "
        "network has none of, everyone in the cluster can read and change what is in it",
        fix="leave networkPolicy.enabled and hostNetwork as they are by default, or keep others away from the pool by "
        "other means",
        source=_SOURCE,
        severity="warning",
        roles=(),
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

RULES: Final = (*_USE_RULES, *_SIZE_RULES, *_NETWORK_RULES, *_DISK_RULES)
