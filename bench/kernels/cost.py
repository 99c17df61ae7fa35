"""What one call must move and multiply at the very least."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stream:
    """One tensor on its way between memory and the chip.

    Attributes:
        name: Of the tensor.
        bytes: That must be moved.
        written: Whether it goes to memory; if not, it comes from there.
    """

    name: str
    bytes: int
    written: bool = False


@dataclass(frozen=True)
class Cost:
    """Of one call.

    Attributes:
        streams: Every tensor that is read or written.
        flops: Multiplications and additions of its matrix products, two for each pair of factors; others are not
            counted.
    """

    streams: tuple[Stream, ...]
    flops: int = 0

    def __getitem__(self, name: str) -> int:
        """Bytes of one stream.

        Raises:
            KeyError: There is no such stream.
        """
        return {stream.name: stream.bytes for stream in self.streams}[name]

    @property
    def read(self) -> int:
        """Bytes that come from memory."""
        return sum(stream.bytes for stream in self.streams if not stream.written)

    @property
    def written(self) -> int:
        """Bytes that go to memory."""
        return sum(stream.bytes for stream in self.streams if stream.written)

    @property
    def bytes(self) -> int:
        """Both."""
        return self.read + self.written


def cost(reads: dict[str, int], writes: dict[str, int], flops: int = 0) -> Cost:
    """A cost from the bytes of each tensor."""
    inward = tuple(Stream(name, size) for name, size in reads.items())
    return Cost((*inward, *(Stream(name, size, written=True) for name, size in writes.items())), flops)
