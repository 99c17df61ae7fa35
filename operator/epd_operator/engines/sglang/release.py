"""What changed from one version of the engine to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_operator.rules import version
from epd_operator.rules.expression import Since, lift

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr, Scalar


def since(first: str, newer: Expr | Scalar | None, older: Expr | Scalar | None) -> Since:
    """`newer` from this version on, `older` before it.

    Raises:
        ValueError: No such version.
    """
    return Since(version.rank(first), lift(newer), lift(older))
