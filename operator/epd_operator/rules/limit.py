"""How large a value under `args` may be: what an API server can hold, and judge in a fraction of a second."""

from __future__ import annotations

from typing import Any, Final

MOST_ITEMS: Final = 512
"""Values of a list: each of them is judged."""
MOST_CHARACTERS: Final = 32 * 1024
"""Of a text."""
NUMERAL: Final = 64
"""Characters of a text that spells a number."""
LONG: Final = "must be a whole number of at most 64 bits"


def is_long(value: Any) -> bool:
    """Whether a whole number takes more than 64 bits."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63
