"""What the operator writes back: the shape of status, for the CRD and for the plan."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import Field

from epd_operator.api.marker import ListType
from epd_operator.api.scalar import Base, Quantity, RuleId

ConditionType: TypeAlias = Literal[
    "Valid",
    "Available",
    "EncodeReady",
    "PrefillReady",
    "DecodeReady",
    "RouterReady",
    "SwaPoolReady",
    "ReplayEffective",
    "Reconciling",
    "Stalled",
    "Ready",
]
CONDITION_TYPES: Final[tuple[ConditionType, ...]] = get_args(ConditionType)

MAX_MESSAGE: Final = 4096
"""Characters of a condition's message; a longer one must be cut before it is applied."""

Count: TypeAlias = Annotated[int, Field(ge=0)]
Hex: TypeAlias = Annotated[str, Field(max_length=64)]


class Condition(Base):
    """One statement about the object, as in metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]+$")]
    """What is stated."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Annotated[int, Field(ge=-1)] | None = None
    """metadata.generation that the statement is about."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"}, max_length=40)]
    """When status last flipped."""
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Why, in one word from a closed list."""
    message: Annotated[str, Field(max_length=MAX_MESSAGE)] = ""
    """Why, for people."""


class RoleStatus(Base):
    """The pods of one role."""

    desired: Count | None = None
    """Pods that should run."""
    ready: Count | None = None
    """Pods that are ready, of any revision."""
    updated: Count | None = None
    """Ready pods of the desired revision."""
    revision: Hex | None = None
    """Desired revision."""
    summary: Annotated[str, Field(max_length=32)] | None = None
    """Ready/desired, as kubectl get shows it."""


class RolesStatus(Base):
    """The pods of each declared role."""

    encode: RoleStatus | None = None
    """Vision encoders."""
    prefill: RoleStatus | None = None
    """Prefill pods."""
    decode: RoleStatus | None = None
    """Decode pods."""


class RouterStatus(Base):
    """The router's pods and address."""

    desired: Count | None = None
    """Pods that should run."""
    ready: Count | None = None
    """Pods that are ready."""
    summary: Annotated[str, Field(max_length=32)] | None = None
    """Ready/desired, as kubectl get shows it."""
    url: Annotated[str, Field(max_length=512)] | None = None
    """Address of the client Service inside the cluster."""


class RolesQuantity(Base):
    """One quantity for each role."""

    encode: Quantity | None = None
    """Encode pods."""
    prefill: Quantity | None = None
    """Prefill pods."""
    decode: Quantity | None = None
    """Decode pods."""


class EffectiveStatus(Base):
    """Values that apply after defaults."""

    served_name: Annotated[str, Field(max_length=253)] | None = None
    """Model name that clients send."""
    context_length: Count | None = None
    """Longest prompt plus answer, in tokens."""
    page_size: Count | None = None
    """Tokens in a key/value page."""
    replay: Literal["On", "Off"] | None = None
    """Whether prefill runs decoder bounded replay, as the engine resolves Auto; absent when it has none."""
    kv_layout: Annotated[str, Field(max_length=128)] | None = None
    """How key/value pages are laid out, which prefill and decode must share; absent when there is only one way."""
    shm: RolesQuantity | None = None
    """Size of /dev/shm in the pods of each role that has one of its own."""


class Status(Base):
    """What the operator last saw; observedGeneration -1 means that it has not looked yet."""

    observed_generation: Annotated[int, Field(ge=-1)] | None = None
    """metadata.generation that this status is about."""
    revision: Hex | None = None
    """Revision of the set that should serve."""
    compat_key: Hex | None = None
    """What prefill, decode and encode pods must agree on, hashed."""
    roles: RolesStatus | None = None
    """The pods of each role."""
    router: RouterStatus | None = None
    """The router."""
    acknowledged: Annotated[list[RuleId], Field(max_length=64), ListType("set")] = Field(default_factory=list)
    """Ids of rules whose refusal spec.engine.acknowledge overrides."""
    effective: EffectiveStatus | None = None
    """Values that apply after defaults."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListType("map", ("type",))] = Field(
        default_factory=list
    )
    """Valid, Available, EncodeReady, PrefillReady, DecodeReady, RouterReady, SwaPoolReady, ReplayEffective,
    Reconciling, Stalled and Ready."""


def role_status(*, desired: int, ready: int, updated: int, revision: str) -> dict[str, Any]:
    """The status of one role, with the printable `ready/desired` of the printer columns."""
    return {
        "desired": desired,
        "ready": ready,
        "updated": updated,
        "revision": revision,
        "summary": f"{ready}/{desired}",
    }


def router_status(*, desired: int, ready: int, url: str) -> dict[str, Any]:
    """The status of the router, with the printable `ready/desired`."""
    return {"desired": desired, "ready": ready, "summary": f"{ready}/{desired}", "url": url}
