"""What rules read of the pool of windows, whichever engine serves."""

from __future__ import annotations

from typing import Final

from epd_operator.rules.expression import spec_of

MODE: Final = spec_of("swaPool.mode", "str")
EXISTS: Final = MODE.isin(("InProcess", "Valkey", "Mooncake"))
"""Whether the user asks for a pool."""
