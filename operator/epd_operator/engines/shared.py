"""Rules about a spec that hold for every engine."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from epd_operator.api import quantity
from epd_operator.api.names import ENCODER_PORT, HTTP_PORT
from epd_operator.engines.effective import SHM as DEFAULT_SHM
from epd_operator.engines.effective import SHM_MIB
from epd_operator.rules.expression import PLATFORM, Expr, at, every, field_of, named, spec_of, when
from epd_operator.rules.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_operator.rules.expression import Scalar

DEFAULT_MEMORY: Final = MappingProxyType({"SGLang": "128Gi", "Reference": "1Gi"})
"""Memory of an engine pod whose user gave none, by engine; the profiles take it from here."""
REHEARSAL_MEMORY: Final = "4Gi"
"""The same of a pod of SGLang on a CPU."""

_GIB: Final = 2**30
_ENGINE: Final = spec_of("engine.type", "str")
_MEMORY: Final = field_of("resources.memory", "float", unit="bytes")
_SHM: Final = field_of("resources.shm", "float", unit="bytes")
_IS_SGLANG: Final = _ENGINE == "SGLang"
_IS_REFERENCE: Final = _ENGINE == "Reference"
_HAS_GPUS: Final = _IS_SGLANG & ~(PLATFORM == "cpu")


def _by_engine(of: Callable[[str], Scalar]) -> Expr:
    return when(
        _IS_SGLANG,
        when(_HAS_GPUS, of(DEFAULT_MEMORY["SGLang"]), of(REHEARSAL_MEMORY)),
        when(_IS_REFERENCE, of(DEFAULT_MEMORY["Reference"]), None),
    )


def _gib(amount: str) -> float:
    return float((quantity.parse(amount) or 0) / _GIB)


MEMORY_GIB: Final = (_MEMORY * (1 / _GIB)).otherwise(_by_engine(_gib))
"""Memory limit of a pod, as it runs; absent on a bare command line."""
_HALF: Final = MEMORY_GIB * 0.5
_HAS_SHM: Final = every(_HAS_GPUS, ~(field_of("resources.gpu", "int") == 0))
_FULL_SHM: Final = float(SHM_MIB / 1024)
SHM_GIB: Final = (_SHM * (1 / _GIB)).otherwise(when(_HAS_SHM, when(_HALF >= _FULL_SHM, _FULL_SHM, _HALF), None))
"""Largest size of /dev/shm, as it runs; the engine that uses GPUs gets one by itself."""

# A side shows the quantity as it is written, and a default as one would write it; such a value bears its field's name.
_MEMORY_TEXT: Final = field_of("resources.memory", "str")
MEMORY: Final = named(_MEMORY_TEXT.name, when(_MEMORY.given, _MEMORY_TEXT, _by_engine(str)), _MEMORY_TEXT)
_SHM_TEXT: Final = field_of("resources.shm", "str")
SHM: Final = named(
    _SHM_TEXT.name,
    when(_SHM.given, _SHM_TEXT, when(_HAS_SHM & (_HALF >= _FULL_SHM), DEFAULT_SHM, None)),
    _SHM_TEXT,
)

_BOOTSTRAP: Final = spec_of("transfer.bootstrapPort", "int")
_TRANSFER: Final = spec_of("transfer.backend", "str")
_REPLICAS_WRITTEN: Final = field_of("replicas", "int")
_REPLICAS: Final = _REPLICAS_WRITTEN.otherwise(1)
_EVERY: Final = ("encode", "prefill", "decode")


def differ(subject: Expr, one: str = "prefill", other: str = "decode") -> Expr:
    """Whether a value is not the same on two roles."""
    return ~(at(one, subject) == at(other, subject))


def transfer_backend(known: tuple[str, ...], engine: str) -> Rule:
    """Only the transfer back ends that an engine has."""
    return Rule(
        id="transfer-backend",
        when=_TRANSFER.given & ~_TRANSFER.isin(known),
        sides=(_TRANSFER,),
        says=f"{engine} transfers by {', '.join(known)}",
        fix="use one of these, or leave it out",
        source="docs/reference/api.md",
        roles=(),
    )


RULES: Final = (
    Rule(
        id="bootstrap-port-taken",
        when=_BOOTSTRAP.isin((HTTP_PORT, ENCODER_PORT)),
        sides=(_BOOTSTRAP,),
        says=f"engine pods listen on {HTTP_PORT} for requests and on {ENCODER_PORT} for encoders",
        fix="use another port, such as 8998",
        source="docs/reference/api.md",
        roles=(),
    ),
    Rule(
        id="replicas-zero-alone",
        when=~((at("prefill", _REPLICAS) == 0) == (at("decode", _REPLICAS) == 0)),
        sides=(at("prefill", _REPLICAS_WRITTEN), at("decode", _REPLICAS_WRITTEN)),
        says="a request needs one pod of each, so the other role's pods hold their resources for nothing",
        fix="set both to zero, or neither",
        source="llm-d/llm-d-autoscaling#1531, volcano-sh/kthena#905",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="shm-memory",
        when=SHM_GIB >= MEMORY_GIB,
        sides=(SHM, MEMORY),
        says="shared memory counts inside the memory limit, and would leave nothing of {memory} GiB for the engine",
        fix="lower resources.shm, or raise resources.memory to shm plus what the engine needs",
        source="Kubernetes, emptyDir with medium Memory",
        roles=_EVERY,
        shows={"memory": MEMORY_GIB},
    ),
    Rule(
        id="shm-large",
        when=(SHM_GIB < MEMORY_GIB) & (SHM_GIB * 2.0 > MEMORY_GIB),
        sides=(SHM, MEMORY),
        says="shared memory counts inside the memory limit, so full it leaves less than half of it for the engine",
        fix="raise resources.memory, or lower resources.shm",
        source="Kubernetes, emptyDir with medium Memory",
        severity="warning",
        roles=_EVERY,
    ),
)
