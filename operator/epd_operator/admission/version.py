"""Which rules judge which engine version, in CEL: the meaning is that of `engines.table.resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines import table
from epd_operator.engines.validation import VERSION
from epd_operator.rules.cel import literal, quoted
from epd_operator.rules.version import NUMBER, Refusal, release_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_operator.rules.ruleset import Ruleset
    from epd_operator.rules.version import ReleaseKey

_ENGINE: Final = "object.spec.engine"
_WRITTEN: Final = f"{_ENGINE}.version"
_RELEASE: Final = rf"{NUMBER}\.{NUMBER}\.{NUMBER}"
_RELEASE_LIKE: Final = rf"^{_RELEASE}((a|b|rc){NUMBER})?(\.post{NUMBER})?$"
_IS_RELEASE: Final = f"{_WRITTEN}.matches({quoted(_RELEASE_LIKE)})"
_NEAREST: Final = f"has({_ENGINE}.versionPolicy) && {_ENGINE}.versionPolicy == 'Nearest'"


def of_engine(ruleset: Ruleset) -> str:
    """CEL of whether a spec is for this engine."""
    return f"{_ENGINE}.type == {quoted(ruleset.engine_type)}"


def judged(ruleset: Ruleset) -> str:
    """CEL of whether any rules of this engine judge a spec of it."""
    return " || ".join(f"({judged_by(ruleset, version)})" for version in ruleset.versions)


def rank(ruleset: Ruleset) -> str:
    """CEL of the place of the version whose rules judge a spec of this engine, for one that is judged."""
    *others, last = range(len(ruleset.versions))
    return "".join(f"({judged_by(ruleset, ruleset.versions[place])}) ? {place} : " for place in others) + str(last)


def judged_by(ruleset: Ruleset, version: str) -> str:
    """CEL of whether the rules of this version judge a spec of this engine."""
    exact = f"{_WRITTEN} == {quoted(version)}"
    releases = _releases(ruleset)
    if version not in releases:
        return exact
    newer = [f"{_NEAREST} && !({_WRITTEN} in {literal(ruleset.versions)}) && {_IS_RELEASE} && ({_above(version)})"]
    newer += [f"!({_above(later)})" for later in releases[releases.index(version) + 1 :][:1]]
    return f"{exact} || ({' && '.join(newer)})"


def refusals(ruleset: Ruleset) -> str:
    """CEL of the list of what is wrong with the version that a spec names."""
    known = f"{_WRITTEN} in {literal(ruleset.versions)}"
    releases = _releases(ruleset)
    line = f"'[{VERSION}] spec.engine.version = ' + {_WRITTEN} + ':'"
    if not releases:
        return f"{known} ? [] : [{line} + {_words(ruleset, '-')}]"
    low, strict, neither = (
        f"[{line} + {_words(ruleset, example)}]" for example in ("0.0.1", "999.0.0", "no-such-version")
    )
    return f"{known} ? [] : !{_IS_RELEASE} ? {neither} : !({_above(releases[0])}) ? {low} : {_NEAREST} ? [] : {strict}"


def _words(ruleset: Ruleset, example: str) -> str:
    """What is said about a version like this example, as a literal without its beginning."""
    refusal = table.resolve(ruleset, example, "Strict")
    if not isinstance(refusal, Refusal):
        raise TypeError(f"{example} is a version of {ruleset.engine_type}")
    return quoted(refusal.message.removeprefix(f'spec.engine.version "{example}"'))


def _releases(ruleset: Ruleset) -> Sequence[str]:
    keys: dict[str, ReleaseKey] = {}
    for version in ruleset.versions:
        key = release_key(version)
        # Only an engine that resolves newer releases has releases here: `Reference` has versions of its own.
        if key is not None and not isinstance(table.resolve(ruleset, "999.0.0", "Nearest"), Refusal):
            keys[version] = key
    return sorted(keys, key=lambda version: keys[version])


def _above(version: str) -> str:
    """CEL of whether the written release comes after this one.

    Raises:
        ValueError: The release is a pre- or post-release.
    """
    key = release_key(version)
    if key is None or any(key[3:]):
        raise ValueError(f"not a plain release: {version}")
    parts = [f"int({_WRITTEN}.split('.')[{place}].find('^[0-9]+'))" for place in range(3)]
    later = f"{_WRITTEN}.matches({quoted(rf'^{_RELEASE}[.]post[0-9]*[1-9]')})"
    for part, number in reversed(list(zip(parts, key[:3], strict=True))):
        later = f"{part} > {number} || ({part} == {number} && ({later}))"
    return later
