"""The profiles of this release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_operator.engines.profile import Profile, UnknownProfile
from epd_operator.engines.reference import REFERENCE
from epd_operator.engines.sglang.profile import SGLANG
from epd_operator.engines.version import Refusal, resolve

if TYPE_CHECKING:
    from epd_operator.engines.version import Policy

PROFILES: tuple[Profile, ...] = (REFERENCE, *SGLANG)


def lookup(engine_type: str, version: str, policy: Policy = "Strict") -> Profile | UnknownProfile:
    """The profile that an engine version runs under.

    Args:
        engine_type: spec.engine.type.
        version: spec.engine.version.
        policy: spec.engine.versionPolicy; under `Nearest` the profile's version may be a lower one.
    """
    known = {profile.version: profile for profile in PROFILES if profile.engine_type == engine_type}
    if version in known:
        return known[version]
    if engine_type != "SGLang":
        names = " or ".join(sorted(known))
        message = f'spec.engine.version "{version}" is not known for {engine_type}: use {names}'
        return UnknownProfile(engine_type, version, tuple(sorted(known)), message)
    found = resolve(version, policy)
    if isinstance(found, Refusal):
        return UnknownProfile(engine_type, version, tuple(known), found.message)
    return known[found.version]
