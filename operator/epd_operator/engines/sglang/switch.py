"""Environment variables that turn something on or off."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.flags import env
from epd_operator.rules.expression import lower

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr

_ON: Final = ("true", "1", "yes", "y")
_OFF: Final = ("false", "0", "no", "n")


@cache
def switch(name: str, *, default: bool = False) -> Expr:
    """Whether a variable turns its feature on; what is neither yes nor no counts as not set.

    Source: SGLang 0.5.23, environ.py, class EnvBool.
    """
    value = lower(env(name))
    return ~value.isin(_OFF) if default else value.isin(_ON)
