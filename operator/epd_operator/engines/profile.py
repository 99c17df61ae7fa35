"""The questions that a plan asks about an engine."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from epd_operator.api.fault import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from epd_operator.api.deployment import Spec
    from epd_operator.api.names import RoleName
    from epd_operator.api.role import Role

ArgType: TypeAlias = Literal["int", "float", "bool", "str"]
_ACCEPTS: Mapping[ArgType, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str) and value != "",
}


class Images(Protocol):
    """The images that an operator release brings."""

    @property
    def worker_image(self) -> str:
        """Image of the Reference engine."""


@dataclass(frozen=True)
class ArgSpec:
    """One engine flag.

    Attributes:
        type: what a value must be.
        help: what the flag does, one line.
        identity: prefill, decode and encode pods must agree on it (it enters the compatibility key).
        owned_by: the field that sets it, for flags that `args` must not hold; None for a user's flag.
        default: value when the user gives none; None when the engine decides.
        minimum: smallest number allowed.
        maximum: largest number allowed.
    """

    type: ArgType
    help: str
    identity: bool = False
    owned_by: str | None = None
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class Port:
    """A named port of the engine's container."""

    name: str
    number: int


@dataclass(frozen=True)
class DefaultResources:
    """Quantities for a role whose user gave none."""

    cpu: str
    memory: str


@dataclass(frozen=True)
class Context:
    """What a command line needs to know beyond the role.

    Attributes:
        args: effective flags of the role (defaults and the user's).
        layout_key: what two pods must share before they exchange pages: the compatibility key.
    """

    served_name: str
    model_path: str | None
    bootstrap_port: int
    args: Mapping[str, Any]
    layout_key: str


@dataclass(frozen=True)
class UnknownProfile:
    """No profile for this engine and version.

    Attributes:
        known: versions of the same engine that have one; empty when the engine has none at all.
        message: names the field and what is available.
    """

    engine_type: str
    version: str
    known: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Probe:
    """An HTTP probe on a named port; times in seconds."""

    path: str
    port: str
    period: int
    timeout: int
    failures: int

    def manifest(self) -> dict[str, Any]:
        """The probe as a container spells it."""
        return {
            "httpGet": {"path": self.path, "port": self.port},
            "periodSeconds": self.period,
            "timeoutSeconds": self.timeout,
            "failureThreshold": self.failures,
        }


@dataclass(frozen=True)
class Profile:
    """Everything that differs between engines and their versions.

    Attributes:
        roles: roles that the engine can run.
        capabilities: named abilities, such as `vision-encode`.
        default_platform: platform when the user gives none.
        transfers: transfer back ends; the first is the default.
        catalogue: per role, every flag that the engine knows.
        resources: per role, default quantities.
        environment: container variables that the operator sets, as Kubernetes spells them.
        pre_stop_seconds: how long a pod keeps serving after it left the endpoints.
    """

    engine_type: str
    version: str
    roles: tuple[RoleName, ...]
    capabilities: frozenset[str]
    default_platform: str
    transfers: tuple[str, ...]
    catalogue: Mapping[RoleName, Mapping[str, ArgSpec]]
    resources: Mapping[RoleName, DefaultResources]
    default_startup_minutes: int
    default_grace_seconds: int
    pre_stop_seconds: int
    argv: Callable[[RoleName, Context], list[str]] = field(repr=False)
    image: Callable[[Images], str | None] = field(repr=False)
    role_ports: Callable[[RoleName, int], tuple[Port, ...]] = field(repr=False)
    role_probes: Callable[[RoleName, int], Mapping[str, Probe]] = field(repr=False)
    derive: Callable[[RoleName, Spec, int], Mapping[str, Any]] = field(repr=False)
    environment: tuple[Mapping[str, Any], ...] = ()
    refuse: Callable[[Spec], Sequence[Fault]] = field(repr=False, default=lambda _spec: ())

    @property
    def default_transfer(self) -> str:
        """Transfer back end when the user gives none."""
        return self.transfers[0]

    def default_image(self, settings: Images) -> str | None:
        """Image when the user gives none; None when the user must give one."""
        return self.image(settings)

    def args(self, role: RoleName) -> Mapping[str, ArgSpec]:
        """Every flag that a role knows, by full name without dashes."""
        return self.catalogue[role]

    def default_args(self, role: RoleName) -> dict[str, Any]:
        """Flags with a default of the profile's."""
        return {
            name: spec.default
            for name, spec in self.args(role).items()
            if spec.default is not None and spec.owned_by is None
        }

    def derived_args(self, role: RoleName, spec: Spec, grace_seconds: int) -> dict[str, Any]:
        """Flags of the operator's whose values follow from other fields of the spec."""
        return dict(self.derive(role, spec, grace_seconds))

    def identity(self, role: RoleName, args: Mapping[str, Any]) -> dict[str, Any]:
        """The flags of effective `args` on which the roles must agree."""
        return {name: args[name] for name, spec in self.args(role).items() if spec.identity and name in args}

    def command(self, role: RoleName, context: Context) -> list[str]:
        """The whole command line; its first word is the program."""
        return self.argv(role, context)

    def env(self, role: RoleName) -> list[dict[str, Any]]:
        """Variables that the operator sets for a role."""
        return [dict(entry) for entry in self.environment] if role in self.roles else []

    def ports(self, role: RoleName, bootstrap_port: int) -> tuple[Port, ...]:
        """Named ports of a role's container."""
        return self.role_ports(role, bootstrap_port)

    def probes(self, role: RoleName, startup_minutes: int) -> dict[str, dict[str, Any]]:
        """The container's startupProbe, readinessProbe and livenessProbe."""
        return {name: probe.manifest() for name, probe in self.role_probes(role, startup_minutes).items()}

    def default_resources(self, role: RoleName) -> DefaultResources:
        """Quantities for a role whose user gave none."""
        return self.resources[role]

    def page_size(self, args: Mapping[str, Any]) -> int:
        """Tokens in a key/value page under effective prefill or decode flags."""
        return int(args["page-size"])

    def context_length(self, args: Mapping[str, Any]) -> int:
        """Longest prompt plus answer in tokens under effective prefill or decode flags."""
        return int(args["context-length"])

    def check(self, spec: Spec) -> list[Fault]:
        """Everything that this engine would refuse, and everything in `args` that the operator owns."""
        faults = list(self.refuse(spec))
        declared = spec.roles.declared()
        for name, role in declared.items():
            if name in self.roles:
                faults += self._check_args(name, role)
                faults += self._check_env(name, role)
            else:
                faults.append(Fault(f"spec.roles.{name}", None, f"{self._label} has no {name} role: remove it"))
        faults += self._check_agreement(declared)
        backend = spec.transfer.backend
        if backend is not None and backend not in self.transfers:
            known = " or ".join(self.transfers)
            faults.append(Fault("spec.transfer.backend", backend, f"{self._label} transfers by {known}: use that"))
        return faults

    @property
    def _label(self) -> str:
        return f"{self.engine_type} {self.version}"

    def _check_args(self, role: RoleName, declared: Role) -> Iterator[Fault]:
        known = self.args(role)
        settable = [name for name, spec in known.items() if spec.owned_by is None]
        for name, value in declared.args.items():
            place = f"spec.roles.{role}.args.{name}"
            if name not in known:
                near = difflib.get_close_matches(name.lstrip("-"), settable, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known for {role}: {', '.join(sorted(settable))}"
                yield Fault(place, value, f"{self._label} has no such flag for {role}: {hint}")
            elif (owner := known[name].owned_by) is not None:
                yield Fault(place, value, f"belongs to the operator: remove it; {owner}")
            else:
                yield from _check_value(place, value, known[name])

    def _check_env(self, role: RoleName, declared: Role) -> Iterator[Fault]:
        owned = {entry["name"] for entry in self.environment}
        for part, names in (("env", declared.env), ("secretEnv", declared.secret_env)):
            for name in names:
                if name in owned:
                    place = f"spec.roles.{role}.{part}.{name}"
                    yield Fault(place, None, "is set by the operator: use another name")

    def _check_agreement(self, declared: Mapping[RoleName, Role]) -> Iterator[Fault]:
        """Identity flags must be equal on all roles that know them: a mismatch would be found by dying pods."""
        seen: dict[str, tuple[RoleName, Any]] = {}
        for role in sorted(set(declared) & set(self.roles), key=self.roles.index):
            args = {**self.default_args(role), **declared[role].args}
            for name, value in self.identity(role, args).items():
                if any(_check_value("", value, self.args(role)[name])):
                    continue  # wrong by itself: what it should agree with is not known
                other, before = seen.setdefault(name, (role, value))
                if value != before:
                    yield Fault(
                        f"spec.roles.{role}.args.{name}",
                        value,
                        f"must equal spec.roles.{other}.args.{name}, which is {before!r}: "
                        "pods with different values cannot share pages, so set both alike",
                    )


def _check_value(place: str, value: Any, spec: ArgSpec) -> Iterator[Fault]:
    if not _ACCEPTS[spec.type](value):
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a string, not empty"}
        yield Fault(place, value, f"must be {words[spec.type]}")
    elif spec.minimum is not None and value < spec.minimum:
        yield Fault(place, value, f"must be at least {spec.minimum:g}")
    elif spec.maximum is not None and value > spec.maximum:
        yield Fault(place, value, f"must be at most {spec.maximum:g}")
