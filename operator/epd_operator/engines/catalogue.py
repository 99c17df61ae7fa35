"""The profiles of this release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.reference.profile import REFERENCE
from epd_operator.engines.sglang.profile import SGLANG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.engines.profile import Profile

PROFILES: Final = (REFERENCE, *SGLANG)
_BY_VERSION: Final[Mapping[tuple[str, str], Profile]] = {
    (profile.engine_type, profile.version): profile for profile in PROFILES
}


def lookup(engine_type: str, version: str) -> Profile:
    """The profile of an engine version whose rules have judged a spec.

    Args:
        engine_type: spec.engine.type.
        version: The version that judged, see `judgement.Judgement`; not every `spec.engine.version` is one.

    Raises:
        KeyError: No such profile; a programming error, as the rules refuse every other version.
    """
    return _BY_VERSION[engine_type, version]
