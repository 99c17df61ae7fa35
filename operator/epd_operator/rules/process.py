"""One server process as its flags, environment and surroundings describe it, before anything has started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr, Value

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass
class Process:
    """The scope in which expressions are evaluated; see `expression.EvaluationScope`.

    Attributes:
        role: `encode`, `prefill`, `decode` or `aggregated`.
        platform: `cuda-sm90`, `cuda-sm100`, `hip-gfx950` or `cpu`.
        rank: Place of the judged version in the order of profiles.
        args: Flags as written, by canonical name, only those whose value has the right type.
        env: Environment as written.
        checkpoint: Facts of the checkpoint.
        owned: Flags that the operator sets, as expressions over the spec; empty on a bare command line.
        document: The spec as written; empty on a bare command line.
        siblings: The processes of the other roles of the same spec.
        dropped: Flags that were written with an unusable value.
    """

    role: str
    platform: str
    rank: int
    args: Mapping[str, Value]
    env: Mapping[str, str]
    checkpoint: Mapping[str, Value]
    owned: Mapping[str, Expr] = field(default_factory=lambda: _EMPTY)
    document: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    siblings: Mapping[str, Process] = field(default_factory=lambda: _EMPTY)
    dropped: frozenset[str] = frozenset()
    memo: dict[str, Value] = field(default_factory=dict)

    def flag(self, name: str) -> Value:
        """Value of a flag as the engine gets it: the operator's own where it owns the flag, else the user's."""
        if name in self.owned:
            key = f"--{name}"
            if key not in self.memo:
                self.memo[key] = self.owned[name].value(self)
            return self.memo[key]
        return self.args.get(name)

    def variable(self, name: str) -> str | None:
        """Environment variable of the process."""
        return self.env.get(name)

    def field(self, path: str) -> Value:
        """Typed field of the role."""
        value: Value = read(self.document, f"roles.{self.role}.{path}")
        return value

    def spec(self, path: str) -> Value:
        """Typed field of the spec."""
        value: Value = read(self.document, path)
        return value

    def model(self, name: str) -> Value:
        """A fact of the checkpoint."""
        return self.checkpoint.get(name)

    def at(self, role: str) -> Process:
        """The process of another role; one with no flags when the role is not declared."""
        if role == self.role:
            return self
        if role not in self.siblings:
            return Process(role, self.platform, self.rank, {}, {}, self.checkpoint, self.owned, self.document)
        return self.siblings[role]

    def declares(self, role: str) -> bool:
        """Whether the spec has this role."""
        return isinstance(read(self.document, f"roles.{role}"), Mapping)


def read(document: Mapping[str, Any], path: str) -> Any:
    """What stands at a dotted path, or None; a quantity stays as written."""
    result: Any = document
    for part in path.split("."):
        if not isinstance(result, Mapping) or part not in result:
            return None
        result = result[part]
    return result


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping with names for keys, else an empty one: for documents that nobody has checked."""
    if not isinstance(value, Mapping):
        return _EMPTY
    return value if all(isinstance(key, str) for key in value) else {str(key): inner for key, inner in value.items()}
