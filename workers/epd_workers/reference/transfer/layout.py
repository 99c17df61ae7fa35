"""What both ends of a transfer must agree on for the bytes of its pieces to mean the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_workers.reference.engine.job import PieceKind


@dataclass(frozen=True)
class Layout:
    """The shape of what one server hands out or takes in of its caches.

    Attributes:
        page_size: Tokens in a page.
        page_bytes: Bytes of a page's global entries, all their owners together.
        window_page_bytes: Bytes of a page's window rows, all layers together.
        state_bytes: Bytes of what a prompt of odd length leaves pending.
        kv_cache_dtype: Format of the stored keys and values.
        kv_layout: Digest of everything else the bytes depend on (architecture, weights, layout key).
    """

    page_size: int
    page_bytes: int
    window_page_bytes: int
    state_bytes: int
    kv_cache_dtype: str
    kv_layout: str

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Read a layout that a peer stated.

        Raises:
            ValueError: A field is missing or of the wrong type.
        """
        numbers = ("page_size", "page_bytes", "window_page_bytes", "state_bytes")
        kinds: dict[str, type] = dict.fromkeys(numbers, int) | dict.fromkeys(("kv_cache_dtype", "kv_layout"), str)
        for name, kind in kinds.items():
            if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool):
                raise ValueError(f"the peer's layout has no {kind.__name__} {name!r}")  # noqa: TRY004 - one error type
        return cls(**{name: data[name] for name in kinds})

    def size(self, kind: PieceKind) -> int:
        """Bytes of a piece of this kind."""
        return {"page": self.page_bytes, "window": self.window_page_bytes, "state": self.state_bytes}[kind]

    @property
    def largest(self) -> int:
        """Bytes of the largest piece."""
        return max(self.page_bytes, self.window_page_bytes, self.state_bytes)

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
