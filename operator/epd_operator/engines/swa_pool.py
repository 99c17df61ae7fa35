"""The pool of windows, whichever engine serves: what rules read of it, and the rules that no engine changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.api import duration, quantity
from epd_operator.engines.effective import IN_PROCESS_MEMORY, POOL_MEMORY
from epd_operator.rules.expression import at, every, field_of, named, some, spec_of, when
from epd_operator.rules.rule import Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr

SERVER_MIB: Final = 16
"""Least memory of a server: below it a store's set-up fails (mooncake-transfer-engine 0.3.13.post1)."""
MOONCAKE_PORTS: Final = range(15000, 17001)
"""Of these a client in an engine's pod takes two free ones (mooncake-transfer-engine 0.3.13.post1, by default)."""

MODE: Final = spec_of("swaPool.mode", "str")
EXISTS: Final = MODE.isin(("InProcess", "Valkey", "Mooncake"))
"""Whether the user asks for a pool."""
IN_PROCESS: Final = MODE == "InProcess"

_SOURCE: Final = "docs/swa-pool.md"
_MIB: Final = 2**20
_MOONCAKE: Final = MODE == "Mooncake"
_REMOTE: Final = MODE.isin(("Valkey", "Mooncake"))
_TEXT: Final = spec_of("swaPool.memory", "str")
_BYTES: Final = spec_of("swaPool.memory", "float", unit="bytes")


def _by_mode(in_process: str | float, remote: str | float) -> Expr:
    return when(IN_PROCESS, in_process, when(_REMOTE, remote, None))


def _mib(amount: str) -> float:
    return float((quantity.parse(amount) or 0) / _MIB)


def _seconds(length: str) -> float:
    return float(duration.parse(length) or 0)


POOL_MIB: Final = (_BYTES * (1 / _MIB)).otherwise(_by_mode(_mib(IN_PROCESS_MEMORY), _mib(POOL_MEMORY)))
"""Memory for windows in each server, or in each prefill pod."""
MEMORY: Final = named("swapool.memory", when(_BYTES.given, _TEXT, _by_mode(IN_PROCESS_MEMORY, POOL_MEMORY)), _TEXT)
"""The same as it is written, or as one would write the default."""

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
_BOTH: Final = ("prefill", "decode")


def rules(prefix: str, used: Expr) -> tuple[Rule, ...]:
    """The rules for a pool that an engine uses.

    Args:
        prefix: How their ids begin.
        used: Whether the engine uses a pool at all.
    """
    return (
        Rule(
            id=f"{prefix}-apart",
            when=every(used, IN_PROCESS, _REPLICAS > 1),
            sides=(MODE, _REPLICAS),
            says="each prefill pod keeps a pool of its own, so a turn that comes to another pod finds no window there",
            fix="use Valkey or Mooncake, or one prefill pod",
            source=_SOURCE,
            severity="warning",
            roles=("prefill",),
        ),
        Rule(
            id=f"{prefix}-ttl-short",
            when=every(used, EXISTS, _seconds(_SHORT_TTL) > _TTL_SECONDS),
            sides=(_TTL,),
            says="few people answer that fast, so most windows would be gone when their turn comes",
            fix=f"use {_SHORT_TTL} or more, such as 300s",
            source=_SOURCE,
            severity="warning",
            roles=(),
        ),
        Rule(
            id=f"{prefix}-deadline-short",
            when=every(used, _REMOTE, _seconds(_SHORT_DEADLINE) > _DEADLINE_SECONDS),
            sides=(_DEADLINE, MODE),
            says="a window of a few megabytes takes a busy server that long by itself, so many would come too late to "
            "be used: data goes in and never comes out",
            fix=f"use {_SHORT_DEADLINE} or more, such as 20ms",
            source=_SOURCE,
            severity="warning",
            roles=(),
        ),
        Rule(
            id=f"{prefix}-server-small",
            when=every(used, _REMOTE, float(SERVER_MIB) > POOL_MIB),
            sides=(MEMORY, MODE),
            says=f"a server of the pool does not start with less than {SERVER_MIB} MiB",
            fix=f"raise swaPool.memory to {SERVER_MIB}Mi or more",
            source="epd-swapool, --memory; mooncake-transfer-engine 0.3.13.post1, set-up of a store",
            roles=(),
        ),
        Rule(
            id=f"{prefix}-ports",
            when=every(used, _MOONCAKE, MOONCAKE_PORTS[0] <= _BOOTSTRAP, MOONCAKE_PORTS[-1] >= _BOOTSTRAP),
            sides=(_BOOTSTRAP, MODE),
            says=f"Mooncake in the engine's pods takes free ports from {MOONCAKE_PORTS[0]} to {MOONCAKE_PORTS[-1]}, "
            "and may take this one first",
            fix="use another port, such as 8998",
            source="mooncake-transfer-engine 0.3.13.post1, MC_MIN_RPC_PORT and MC_MAX_RPC_PORT",
            roles=(),
        ),
        Rule(
            id=f"{prefix}-open",
            when=every(
                used,
                _REMOTE,
                some(_POLICY == False, *(at(role, _HOST_NETWORK) == True for role in _BOTH)),  # noqa: E712 - expressions
            ),
            sides=(MODE, _POLICY, *(at(role, _HOST_NETWORK) for role in _BOTH)),
            says="the pool has no password and no encryption, and without network policies, which a pod on its node's "
            "network has none of, everyone in the cluster can read and change what is in it",
            fix="leave networkPolicy.enabled and hostNetwork as they are by default, or keep others away from the pool "
            "by other means",
            source=_SOURCE,
            severity="warning",
            roles=(),
        ),
    )
