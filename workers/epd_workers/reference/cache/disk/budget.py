"""How much more may be written before somebody has to look."""

from __future__ import annotations

from typing import Final

# Several servers write into one folder and each sees what the others wrote only when it looks. With three of them it
# stays below the limit all the time; with more it may exceed it by a thirty-second for each until the next one looks.
LOOK: Final = 32
MOST: Final = 29
REST: Final = 27


class Budget:
    """Room in the folder as this server knows it.

    Args:
        limit: Bytes that the folder may hold, all servers' files together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen = 0
        self._fresh = 0

    @property
    def held(self) -> int:
        """Bytes in the folder: those last seen there, and those written here since."""
        return self._seen + self._fresh

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        return self._fresh * LOOK >= self._limit

    def bounds(self, *, tight: bool) -> tuple[int, int]:
        """Return the bytes that may stay, and those to come down to if there are more.

        Args:
            tight: The disk is full with what the folder holds now, whatever the limit.
        """
        limit = min(self._limit, self.held) if tight else self._limit
        return limit * MOST // LOOK, limit * REST // LOOK

    def admits(self, size: int) -> bool:
        """Whether a file of this size may be written."""
        return self.held + size <= self._limit

    def wrote(self, size: int) -> None:
        """A file of this size has been written."""
        self._fresh += size

    def saw(self, held: int) -> None:
        """The folder holds this much."""
        self._seen, self._fresh = held, 0
