"""The profiles of this release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.reference.profile import REFERENCE
from epd_operator.engines.sglang.profile import PLUGGED, SGLANG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epd_operator.engines.profile import Profile

PROFILES: Final = (REFERENCE, *SGLANG, PLUGGED)
_BY_NAME: Final[Mapping[tuple[str, str, frozenset[str]], Profile]] = {
    (profile.engine_type, profile.version, profile.plugins): profile for profile in PROFILES
}


def lookup(engine_type: str, version: str, plugins: Iterable[str] = ()) -> Profile:
    """The profile of an engine version whose rules have judged a spec.

    Args:
        engine_type: spec.engine.type.
        version: The version that judged, see `judgement.Judgement`; not every `spec.engine.version` is one.
        plugins: spec.engine.plugins.

    Raises:
        KeyError: No such profile; a programming error, as the rules refuse every other version and plugin.
    """
    return _BY_NAME[engine_type, version, frozenset(plugins)]
