"""The pool of windows as a user writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field

from epd_operator.api import duration
from epd_operator.api.marker import CelRule
from epd_operator.api.pod import PodPlacement
from epd_operator.api.scalar import Base, Duration, Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

PoolMode: TypeAlias = Literal["Disabled", "InProcess", "Valkey", "Mooncake"]

_SETTINGS: Final = ("memory", "stores", "ttl", "deadline", "pod")


def _between(field: str, least: str, most: str, why: str, fix: str) -> CelRule:
    """A duration has bounds, both of them good values themselves."""
    low, high = duration.parse(least), duration.parse(most)
    assert low is not None
    assert high is not None

    def holds(value: Any) -> bool:
        seconds = duration.parse(value)
        return seconds is None or low <= seconds <= high  # anything but a duration has a message of its own

    return CelRule(
        f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')",
        f"spec.swaPool.{field} must be from {least} to {most}, because {why}: {fix}",
        holds,
    )


def _mode(pool: Mapping[str, Any]) -> Any:
    return pool.get("mode", "Disabled")


class SwaPool(Base):
    """Keeps the window keys and values of ended turns for some minutes, so that the next turn need not rebuild them."""

    mode: PoolMode | None = None
    """Where windows are kept: Disabled (default), InProcess (each prefill pod its own), Valkey, or Mooncake."""
    memory: Quantity | None = None
    """Bytes of windows in each server, or in each prefill pod; default 8Gi, InProcess: 256Mi of the pod's memory."""
    stores: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of Mooncake stores; default 1."""
    ttl: (
        Annotated[
            Duration,
            _between(
                "ttl",
                "1s",
                "24h",
                "a window is of use until the next turn, which is minutes away",
                "use 300s, or set mode to Disabled to keep none",
            ),
        ]
        | None
    ) = None
    """How long a window is kept, such as 300s (default) or 5m."""
    deadline: (
        Annotated[
            Duration,
            _between(
                "deadline",
                "1ms",
                "1s",
                "a turn waits that long at most before it rebuilds its window, which takes milliseconds",
                "use 20ms",
            ),
        ]
        | None
    ) = None
    """How long a request waits for its window at most; default 20ms."""
    pod: PodPlacement = PodPlacement()
    """Scheduling and metadata of the pool's pods."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            f"has(self.mode) || !({' || '.join(f'has(self.{field})' for field in _SETTINGS)})",
            "spec.swaPool.mode is required when swaPool has other fields, because without it there is no pool: add "
            "InProcess, Valkey or Mooncake, or Disabled to keep the fields for later",
            lambda pool: "mode" in pool or not any(field in pool for field in _SETTINGS),
        ),
        CelRule(
            "!has(self.stores) || !has(self.mode) || self.mode in ['Disabled', 'Mooncake']",
            "spec.swaPool.stores is for mode Mooncake, because the other modes have no stores: remove it",
            lambda pool: "stores" not in pool or _mode(pool) in {"Disabled", "Mooncake"},
            lambda _pool: ["stores"],
        ),
        CelRule(
            "!has(self.pod) || !has(self.mode) || self.mode != 'InProcess'",
            "spec.swaPool.pod is for modes Valkey and Mooncake, because InProcess keeps windows in the prefill pods: "
            "remove it, and use spec.roles.prefill.pod",
            lambda pool: "pod" not in pool or _mode(pool) != "InProcess",
            lambda _pool: ["pod"],
        ),
    )
