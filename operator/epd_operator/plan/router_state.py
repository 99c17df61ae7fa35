"""What a registrar says, read with care: it comes over the network, from a pod with an image that a user may choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class Pairing(_Part):
    """Workers of one compatibility key that the router would pick, and whether they make a pair."""

    prefill: int = 0
    decode: int = 0
    routable: bool = False


class Router(_Part):
    """The router beside the registrar."""

    ready: bool = False


class Half(_Part):
    """Bounded replay of one half of the model's layers, as a prefill pod tells it."""

    active: bool
    reason: str = ""
    preset: str = ""


class Replay(_Part):
    """Bounded replay in one prefill pod."""

    decoder: Half
    encoder: Half


class SwaPoolUse(_Part):
    """The pool of windows, as a prefill pod sees it."""

    engine: str = ""
    fault: str = ""


class Worker(_Part):
    """A prefill or decode pod, and how the router stands to it."""

    pod: str
    role: str
    revision: str = ""
    state: str = ""
    routable: bool = False
    reason: str = ""
    replay: Replay | None = None
    swa_pool: SwaPoolUse | None = None


class Encoder(_Part):
    """An encode pod, and the prefill pods that do not know it yet."""

    pod: str
    missing: tuple[str, ...] = ()


class RouterState(_Part):
    """One `GET /state` document of schema 1; what the plan does not use is not read."""

    router: Router = Router()
    compat_keys: dict[str, Pairing] = Field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    encoders: tuple[Encoder, ...] = ()


def read(documents: Iterable[Any]) -> tuple[RouterState, ...]:
    """The documents that make sense; one that does not is worth as much as none."""
    router_states = []
    for document in documents:
        try:
            router_states.append(RouterState.model_validate(document))
        except ValidationError:
            continue
    return tuple(router_states)
