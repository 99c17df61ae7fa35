"""The pods of one role as a user writes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from epd_operator.api.marker import CelRule
from epd_operator.api.pod import PodOverrides
from epd_operator.api.scalar import VARIABLE, Arguments, Base, Key, ObjectName, Quantity, Replicas, Value

if TYPE_CHECKING:
    from epd_operator.api.names import RoleName

_VARIABLES = CelRule(
    f"self.all(name, name.matches('{VARIABLE}'))",
    "names of variables hold letters, digits and '_' and do not start with a digit: rename the variable",
    lambda variables: all(re.fullmatch(VARIABLE, name) for name in variables),
)


class SecretKey(Base):
    """One key of a Secret of the same namespace; the kubelet reads it, the operator never does."""

    name: ObjectName
    """Name of the Secret."""
    key: Key
    """Key in the Secret."""


class Resources(Base):
    """Memory is both request and limit, CPU a request only."""

    cpu: Quantity | None = None
    """CPU request."""
    memory: Quantity | None = None
    """Memory request and limit."""


class RoleResources(Resources):
    """Requests equal limits, except for CPU, which has no limit."""

    gpu: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs of a pod; default what args need."""
    shm: Quantity | None = None
    """Size of /dev/shm, inside the memory limit; default for a pod of several GPUs: 32Gi, at most half of memory."""
    rdma: Annotated[int, Field(ge=0, le=64)] | None = None
    """RDMA devices of a pod, under the resource name that the operator was installed with; default none."""


class Role(Base):
    """The pods of one role."""

    replicas: Replicas | None = None
    """Number of pods, or of groups of pods when nodes is above 1; default 1."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods that form one engine; above 1 they run as a LeaderWorkerSet."""
    resources: RoleResources = RoleResources()
    """CPU, memory and devices of a pod; default by engine."""
    args: Arguments = Field(default_factory=dict)
    """Engine flags: full name without dashes to a scalar or a list, such as `page-size: 64`."""
    env: Annotated[dict[str, Value], Field(max_length=64), _VARIABLES] = Field(default_factory=dict)
    """Environment variables, plain strings."""
    secret_env: Annotated[dict[str, SecretKey], Field(max_length=64), _VARIABLES] = Field(default_factory=dict)
    """Environment variables from Secrets."""
    host_network: bool = False
    """Use the node's network; two such pods of one port never share a node."""
    startup_minutes: Annotated[int, Field(ge=1, le=1440)] | None = None
    """Minutes a pod may take to start before it is restarted; default by engine (SGLang: 90, Reference: 2)."""
    pod: PodOverrides = PodOverrides()
    """Scheduling, volumes and metadata of the pods."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "!has(self.env) || !has(self.secretEnv) || self.env.all(name, !(name in self.secretEnv))",
            "a variable stands in env or in secretEnv, not in both: remove one",
            lambda role: not set(role.get("env", {})) & set(role.get("secretEnv", {})),
            lambda role: [f"secretEnv.{name}" for name in sorted(set(role["env"]) & set(role["secretEnv"]))],
        ),
    )


class PrefillRole(Role):
    """The prefill pods."""

    decoder_replay: Literal["Auto", "On", "Off"] = "Auto"
    """Decoder SWA bounded replay; Auto leaves the choice to the engine."""
    encoder_replay: bool = False
    """Encoder SWA bounded replay."""


class Roles(Base):
    """Prefill and decode are required; without encode the deployment serves text only."""

    encode: Role | None = None
    """Vision encoders; without them image requests are refused."""
    prefill: PrefillRole
    """Reads the prompt, and hands its key/value pages to a decode pod."""
    decode: Role
    """Writes the answer."""

    def declared(self) -> dict[RoleName, Role]:
        """The roles that exist, in the order encode, prefill, decode."""
        every: dict[RoleName, Role | None] = {"encode": self.encode, "prefill": self.prefill, "decode": self.decode}
        return {name: role for name, role in every.items() if role is not None}
