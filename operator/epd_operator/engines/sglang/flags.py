"""The flags of SGLang as leaves of the algebra.

`flag(name)` is what the engine's parser hands on: the value given, else the parser's default. `written(name)` is the
value given, absent when none is: for rules that ask who wrote something.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.catalogue import catalogue
from epd_operator.rules.expression import Expr, Leaf, variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.expression import Kind

LATEST: Final = "0.5.23"
_KINDS: Final[Mapping[str, Kind]] = {"bool": "bool", "int": "int", "human-int": "int", "float": "float"}


@cache
def written(name: str) -> Leaf:
    """The value given for a flag; absent when none is.

    Raises:
        KeyError: No such flag.
    """
    spec = catalogue(LATEST)[name]
    kind: Kind = "list" if spec.nargs in {"*", "+"} else _KINDS.get(spec.type, "str")
    return Leaf("flag", name, kind)


@cache
def flag(name: str) -> Expr:
    """The value given for a flag, else the default of the engine's parser; absent when that is None.

    Raises:
        KeyError: No such flag.
    """
    default = catalogue(LATEST)[name].default
    leaf = written(name)
    if isinstance(default, int) and not isinstance(default, bool) and leaf.kind == "float":
        default = float(default)
    return leaf if default is None or isinstance(default, list) else leaf.otherwise(default)


@cache
def env(name: str) -> Leaf:
    """An environment variable as text; absent when it is not set."""
    return variable(name)
