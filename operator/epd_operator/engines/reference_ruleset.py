"""What the Reference engine would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines import hosting
from epd_operator.engines.expression import Leaf, at, declared, spec_of, starts
from epd_operator.engines.reference import REFERENCE
from epd_operator.engines.rule import Rule
from epd_operator.engines.ruleset import Ruleset
from epd_operator.engines.shared import RULES, differ, transfer_backend

if TYPE_CHECKING:
    from epd_operator.engines.expression import Expr
    from epd_operator.engines.flag import Catalogue

_SOURCE: Final = "docs/reference/reference-engine.md"
_PATH: Final = spec_of("model.path", "str")


def _written(name: str) -> Leaf:
    return Leaf("flag", name, "int")


def _flag(name: str) -> Expr:
    default: int = REFERENCE.catalogue["prefill"][name].default
    return _written(name).otherwise(default)


def _pair(name: str, roles: tuple[str, str], condition: Expr) -> Rule:
    one, other = roles
    suffix = "" if "encode" not in roles else "-encode"
    return Rule(
        id=f"pair-{name}{suffix}",
        when=condition & differ(_flag(name), one, other),
        sides=(at(one, _flag(name)), at(other, _flag(name))),
        says=f"{one} and {other} must have the same {name}, or they cannot read what they hand over",
        fix=f"set {name} alike, or leave it out on both",
        source=_SOURCE,
        roles=(),
    )


_RULES: Final = (
    Rule(
        id="reference-model-path",
        when=_PATH.given & ~starts(_PATH, "/"),
        sides=(_PATH,),
        says="the Reference engine loads a directory, not a hub id",
        fix="give an absolute path, or leave it out to serve the checkpoint in the image",
        source=_SOURCE,
        roles=(),
    ),
    Rule(
        id="reference-total-tokens",
        when=_flag("max-total-tokens")
        < _flag("page-size").otherwise(REFERENCE.catalogue["prefill"]["page-size"].default),
        sides=(_flag("max-total-tokens"), _flag("page-size")),
        says="all pages together must hold at least one page",
        fix="raise max-total-tokens or lower page-size",
        source=_SOURCE,
        roles=("prefill", "decode"),
    ),
    _pair("page-size", ("prefill", "decode"), declared("decode")),
    _pair("seed", ("prefill", "decode"), declared("decode")),
    _pair("seed", ("encode", "prefill"), declared("encode")),
    transfer_backend(REFERENCE.transfers, "the Reference engine"),
)


def _catalogue(_version: str, role: str) -> Catalogue:
    return next(flags for name, flags in REFERENCE.catalogue.items() if name == role)


RULESET: Final = Ruleset(
    engine_type=REFERENCE.engine_type,
    versions=(REFERENCE.version,),
    catalogue=_catalogue,
    owned={},
    rules=(*RULES, *hosting.rules("the Reference engine", REFERENCE.pre_stop_seconds), *_RULES),
    resolved=(),
    checkpoint={},
    default_platform=REFERENCE.default_platform,
    environment=frozenset(str(entry["name"]) for entry in REFERENCE.environment),
)
