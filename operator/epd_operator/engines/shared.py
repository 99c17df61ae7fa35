"""Rules about a spec that hold whatever engine serves it."""

from __future__ import annotations

from typing import Final

from epd_operator.api.names import ENCODER_PORT, HTTP_PORT
from epd_operator.engines.expression import Expr, at, field_of, spec_of
from epd_operator.engines.rule import Rule

MEMORY: Final = field_of("resources.memory", "float", unit="bytes")
SHM: Final = field_of("resources.shm", "float", unit="bytes")
MEMORY_GIB: Final = MEMORY * (1 / 2**30)
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
        when=SHM >= MEMORY,
        sides=(SHM, MEMORY),
        says="shared memory counts inside the memory limit, and would leave nothing of {memory} GiB for the engine",
        fix="lower resources.shm, or raise resources.memory to shm plus what the engine needs",
        source="Kubernetes, emptyDir with medium Memory",
        roles=_EVERY,
        shows={"memory": MEMORY_GIB},
    ),
    Rule(
        id="shm-large",
        when=(SHM < MEMORY) & (SHM * 2.0 > MEMORY),
        sides=(SHM, MEMORY),
        says="shared memory counts inside the memory limit, so full it leaves less than half of it for the engine",
        fix="raise resources.memory, or lower resources.shm",
        source="Kubernetes, emptyDir with medium Memory",
        severity="warning",
        roles=_EVERY,
    ),
)
