"""The profiles of this release."""

from __future__ import annotations

from epd_operator.engines.profile import Profile, UnknownProfile
from epd_operator.engines.reference import REFERENCE

PROFILES: tuple[Profile, ...] = (REFERENCE,)


def lookup(engine_type: str, version: str) -> Profile | UnknownProfile:
    """The profile of exactly this engine and version.

    Args:
        engine_type: spec.engine.type.
        version: spec.engine.version.
    """
    known = {profile.version: profile for profile in PROFILES if profile.engine_type == engine_type}
    if version in known:
        return known[version]
    available = ", ".join(f"{profile.engine_type} {profile.version}" for profile in PROFILES)
    if known:
        message = f'spec.engine.version "{version}" is not known for {engine_type}: use {" or ".join(sorted(known))}'
    else:
        message = f"spec.engine.type {engine_type} has no profile in this release: available are {available}"
    return UnknownProfile(engine_type=engine_type, version=version, known=tuple(sorted(known)), message=message)
