"""What both ends of a transfer must agree on for the bytes of a page to mean the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Layout:
    """The shape of the key/value pages of one server.

    Attributes:
        page_size: Tokens in a page.
        page_bytes: Bytes of a full page over all layers.
        kv_cache_dtype: Element type of the stored keys and values.
        kv_layout: Digest of everything else the bytes depend on (architecture, weights, layout key).
    """

    page_size: int
    page_bytes: int
    kv_cache_dtype: str
    kv_layout: str

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Read a layout that a peer stated.

        Raises:
            ValueError: A field is missing or of the wrong type.
        """
        for name, kind in (("page_size", int), ("page_bytes", int), ("kv_cache_dtype", str), ("kv_layout", str)):
            if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool):
                raise ValueError(f"the peer's layout has no {kind.__name__} {name!r}")  # noqa: TRY004 - one error type
        return cls(data["page_size"], data["page_bytes"], data["kv_cache_dtype"], data["kv_layout"])

    def state(self) -> dict[str, Any]:
        """Return the layout as a JSON object."""
        return asdict(self)

    def differences(self, peer: Layout) -> list[str]:
        """Return one phrase per field in which the peer differs, empty when pages may be exchanged."""
        return [
            f"{field.name} is {getattr(self, field.name)!r} here and {getattr(peer, field.name)!r} at the peer"
            for field in fields(self)
            if getattr(self, field.name) != getattr(peer, field.name)
        ]
