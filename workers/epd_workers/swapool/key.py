"""What a window is stored under: everything that its bytes depend on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Final, Self

SCHEMA: Final = 1
LONGEST_POSITION: Final = 2**32 - 1


@dataclass(frozen=True)
class Namespace:
    """Who can read each other's windows: those who agree on every one of these facts.

    The token chain in a key says what was read, not by which weights nor how the rows are laid out; two layouts under
    one name would exchange bytes that have the right size and the wrong meaning.

    Attributes:
        model: Its name or path, as served.
        checkpoint: Digest of the weights and of everything else that is loaded with them.
        engine: Name and version of what computes the rows.
        layout: Digest or name of the cache layout.
        row_format: Encoding of a row, for example ``fp8``.
        first_layer: First layer whose window is kept.
        layers: How many layers from there on.
        window: Rows of a full window.
        row_bytes: Bytes of one row of one layer.
        page_size: Tokens of a page; windows are kept at page boundaries.
        tenant: The deployment.
        salt: The request's cache salt: only requests with the same one share windows.
    """

    model: str
    checkpoint: str
    engine: str
    layout: str
    row_format: str
    first_layer: int
    layers: int
    window: int
    row_bytes: int
    page_size: int
    tenant: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: A size does not fit the header of a window.
        """
        limits = {"layers": 2**16, "window": 2**32, "row_bytes": 2**32, "page_size": 2**32}
        sizes = {name: getattr(self, name) for name in limits}
        wrong = [f"{name} is {size}" for name, size in sizes.items() if not 0 < size < limits[name]]
        if wrong or self.largest >= 2**32:
            raise ValueError(f"no windows of this size: {', '.join(wrong) or f'{self.largest} bytes'}")

    @cached_property
    def digest(self) -> bytes:
        """16 bytes of SHA-256 over the canonical JSON of all facts and the schema."""
        text = json.dumps({**asdict(self), "schema": SCHEMA}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()[:16]

    @property
    def largest(self) -> int:
        """Bytes of a full window."""
        return self.layers * self.window * self.row_bytes

    def salted(self, salt: str) -> Self:
        """Return the namespace of requests with this salt."""
        return replace(self, salt=salt)


@dataclass(frozen=True)
class Key:
    """Names one window.

    Attributes:
        namespace: What its bytes depend on besides the tokens.
        chain: Digest of all tokens before `position`, and of what else they stand for, such as pictures.
        position: The window's end: the page boundary behind its last row.
    """

    namespace: Namespace
    chain: bytes
    position: int

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            ValueError: Too short a digest to rely on, too long a one, or a position that no header holds.
        """
        if not 16 <= len(self.chain) <= 64:
            raise ValueError(f"a chain of {len(self.chain)} bytes: a digest has 16 to 64")
        if not 0 < self.position <= LONGEST_POSITION:
            raise ValueError(f"position is {self.position}: a window ends behind its last token")

    @cached_property
    def text(self) -> str:
        """The name in the pool's server: printable, without spaces, the same for nothing else."""
        return f"swa{SCHEMA}/{self.namespace.digest.hex()}/{self.position}/{self.chain.hex()}"

    @cached_property
    def digest(self) -> bytes:
        """8 bytes that bind a value to this very name."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).digest()

    @property
    def rows(self) -> int:
        """Rows of each layer: a full window, or all there are."""
        return min(self.namespace.window, self.position)

    @property
    def size(self) -> int:
        """Bytes of the window's rows, all layers together."""
        return self.namespace.layers * self.rows * self.namespace.row_bytes
