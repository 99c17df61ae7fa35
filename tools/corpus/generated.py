"""Specs drawn at random, for comparing those who judge them: the same seed gives the same specs.

Drawn flags are those that rules read, with the values that rules compare them to, so that rules are hit; few at a time,
so that a good part of the specs is accepted. Some specs have what a person gets wrong: a misspelt flag, a flag of
another version, a string for a number, an unknown version, a rule to acknowledge that does not exist.
"""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines import table
from epd_operator.rules.expression import Compare, Const, Expr, Leaf, OneOf, leaves_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epd_operator.rules.flag import FlagSpec
    from epd_operator.rules.ruleset import Ruleset

_NUMBERS: Final = (0, 1, 1, 2, 2, 4, 4, 5, 8, 16, 64, 256, 1024, 2048, 8192, 2**31, -1)
_VERSIONS: Final = ("dsv41-2026-09", "dsv41-37ae292e", *("0.5.23",) * 4)
_OTHER_VERSIONS: Final = (
    ("0.5.24", "Nearest"),
    ("0.5.23.post1", "Nearest"),
    ("0.6.0rc1", "Nearest"),
    ("1.0.0", "Nearest"),
    ("0.5.23rc2", "Nearest"),
    ("0.5.22", "Nearest"),
    ("0.4.99", "Strict"),
    ("0.5.24", "Strict"),
    ("v0.5.23", "Strict"),
    ("latest", "Nearest"),
)
_SURROUNDINGS: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("roles.prefill.resources.gpu", (0, 1, 2, 8)),
    ("roles.decode.resources.gpu", (1, 8)),
    ("roles.prefill.resources.rdma", (0, 2)),
    ("roles.decode.resources.memory", ("64Gi", "1Ti", 2**38)),
    ("roles.prefill.resources.shm", ("600Gi", "1Gi", "500M")),
    ("roles.prefill.nodes", (2, 4)),
    ("roles.decode.nodes", (2,)),
    ("roles.prefill.hostNetwork", (True,)),
    ("roles.decode.hostNetwork", (True,)),
    ("roles.prefill.decoderReplay", ("On", "Off", "Auto")),
    ("roles.prefill.encoderReplay", (True, False)),
    ("transfer.backend", ("nixl", "mooncake_tcp", "mooncake", "mori", "fake", "carrier-pigeon")),
    ("transfer.bootstrapPort", (30000, 8997, 9000)),
    ("transfer.checksum", (True,)),
    ("model.weightsGiBPerGpu", (40, 117, 200)),
    ("engine.gpuMemoryGiB", (80, 141)),
    ("swaPool.mode", ("InProcess", "Valkey", "Mooncake", "Disabled")),
)
_POOL: Final[Mapping[str, tuple[Any, ...]]] = {
    "memory": ("64Ki", "2M", "512Mi", "1.5Gi", 2**29, 2**36),
    "ttl": ("5s", "29999ms", "30s", "1h30m"),
    "deadline": ("1ms", "4ms", "5ms", "0.5s"),
}
_AROUND_A_POOL: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("roles.prefill.replicas", (0, 1, 3)),
    ("roles.prefill.resources.memory", ("768Mi", "1Gi", 2**31)),
    ("roles.prefill.hostNetwork", (True, False)),
    ("roles.decode.hostNetwork", (True,)),
    ("transfer.bootstrapPort", (14999, 15000, 17000, 17001)),
    ("networkPolicy.enabled", (True, False)),
    ("model", ({"path": "/model"},)),
)


def generated(seed: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Named documents.

    Args:
        seed: Of the drawing.
        count: How many.
    """
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        reference = draw.random() < 0.2
        document = _reference(draw) if reference else _sglang(draw)
        _distort(draw, document["spec"], table.RULESETS["Reference" if reference else "SGLang"])
        yield f"generated-{seed}-{number}", document


def _sglang(draw: random.Random) -> dict[str, Any]:
    version, policy = draw.choice(_VERSIONS), draw.choice(("Strict", "Strict", "Strict", "Nearest"))
    if draw.random() < 0.1:
        version, policy = draw.choice(_OTHER_VERSIONS)
    platform = draw.choice(("cuda-sm90", "cuda-sm100", "hip-gfx950"))
    role = {"resources": {"gpu": 4, "memory": "512Gi", "shm": "32Gi", "rdma": 1}}
    spec: dict[str, Any] = {
        "model": {"path": "/weights", "servedName": "dsv41"},
        "engine": {
            "type": "SGLang",
            "version": version,
            "versionPolicy": policy,
            "platform": platform,
            "image": "registry.example/sglang:1",
        },
        "roles": {
            name: {**role, "resources": dict(role["resources"]), "args": {"tp-size": 4}}
            for name in ("prefill", "decode")
        },
    }
    for path, values in draw.sample(_SURROUNDINGS, draw.choice((0, 0, 0, 1, 2))):
        _put(spec, path, draw.choice(values))
    if draw.random() < 0.04:
        spec["roles"]["encode"] = {"args": _flags(draw, "SGLang", draw.choice((0, 1)))}
    _fill(draw, spec, "SGLang")
    return _whole(spec)


def _reference(draw: random.Random) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "engine": {"type": "Reference", "version": draw.choice(("0.1", "0.1", "0.1", "0.2"))},
        "roles": {"prefill": {}, "decode": {}},
    }
    if draw.random() < 0.5:
        spec["roles"]["encode"] = {}
    if draw.random() < 0.2:
        spec["transfer"] = {"backend": draw.choice(("tcp", "mooncake"))}
    if draw.random() < 0.4:
        fields = {"decoderReplay": draw.choice(("Auto", "On", "Off")), "encoderReplay": draw.choice((True, False))}
        spec["roles"]["prefill"] = fields
    if draw.random() < 0.6:
        _pool(draw, spec)
    _fill(draw, spec, "Reference")
    return _whole(spec)


def _pool(draw: random.Random, spec: dict[str, Any]) -> None:
    """A pool, mostly with what it needs, and what else rules about it read."""
    mode = draw.choice(("InProcess", "InProcess", "Valkey", "Mooncake", "Mooncake", "Disabled"))
    fields = draw.sample(sorted(_POOL), draw.choice((0, 0, 1, 2)))
    spec["swaPool"] = {"mode": mode, **{name: draw.choice(_POOL[name]) for name in fields}}
    if draw.random() < 0.8:
        spec["roles"]["prefill"]["encoderReplay"] = True
    for path, values in draw.sample(_AROUND_A_POOL, draw.choice((0, 0, 1, 2))):
        _put(spec, path, draw.choice(values))


def _whole(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "drawn"},
        "spec": spec,
    }


def _fill(draw: random.Random, spec: dict[str, Any], engine: str) -> None:
    shared = _flags(draw, engine, draw.choice((0, 0, 0, 1)))
    for name, role in spec["roles"].items():
        own = _flags(draw, engine, draw.choice((0, 0, 0, 1, 1, 2)))
        role["args"] = {**role.get("args", {}), **(shared if name != "encode" else {}), **own}
        if draw.random() < 0.06:
            _misplace(draw, role, table.RULESETS[engine])
        variables = _variables(engine)
        if variables and draw.random() < 0.25:
            variable = draw.choice(sorted(variables))
            role["env"] = {**role.get("env", {}), variable: draw.choice(variables[variable])}


def _misplace(draw: random.Random, role: dict[str, Any], ruleset: Ruleset) -> None:
    """A variable that the operator sets, or one in a Secret that a rule reads."""
    owned = sorted(ruleset.environment | ruleset.group_environment)
    if draw.random() < 0.5:
        role["env"] = {draw.choice(owned): "x"}
    else:
        name = draw.choice([*owned, *sorted(ruleset.variables), "HF_TOKEN"])
        role["secretEnv"] = {name: {"name": "held", "key": "value"}}


def _flags(draw: random.Random, engine: str, count: int) -> dict[str, Any]:
    vocabulary = _vocabulary(engine)
    return {name: draw.choice(vocabulary[name]) for name in draw.sample(sorted(vocabulary), count)}


def _distort(draw: random.Random, spec: dict[str, Any], ruleset: Ruleset) -> None:
    """What a person gets wrong, in every third spec."""
    role = spec["roles"][draw.choice(sorted(spec["roles"]))]
    catalogue = ruleset.catalogue(ruleset.versions[-1], "prefill")
    name = draw.choice(sorted(catalogue))
    match draw.randrange(24):
        case 0:
            role["args"][f"{name[:-1]}-z"] = True
        case 1 if catalogue.removed:
            role["args"][draw.choice(sorted(catalogue.removed))] = 1
        case 2:
            role["args"][draw.choice([flag for flag in catalogue if catalogue[flag].owner] or [name])] = "x"
        case 3 | 4:
            role["args"][name] = draw.choice(
                (True, 3, 0.5, "text", "--", "-x", "1k", [], [1], ["a"], [["a"]], {"a": 1})
            )
        case 5 | 6:
            known = sorted(rule.id for rule in ruleset.rules)
            overridable = sorted(rule.id for rule in ruleset.rules if rule.overridable) or known
            spec["engine"]["acknowledge"] = sorted(
                {draw.choice(overridable), draw.choice((*overridable, *known, "no-such-rule"))}
            )
        case 7:
            role["args"].pop("tp-size", None)
        case _:
            pass


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *parts, last = path.split(".")
    for part in parts:
        spec = spec.setdefault(part, {})
    spec[last] = value


@cache
def _vocabulary(engine: str) -> dict[str, list[Any]]:
    """Values for every flag that a rule of the engine reads and a user may give."""
    ruleset = table.RULESETS[engine]
    catalogue = ruleset.catalogue(ruleset.versions[-1], "prefill")
    result: dict[str, list[Any]] = {}
    for leaf, compared in _compared(ruleset).items():
        spec = catalogue.find(leaf[1]) if leaf[0] == "flag" else None
        if spec is not None and spec.owner is None:
            result[spec.name] = _values(spec, compared)
    for spec in catalogue.flags.values():
        if engine == "Reference" and spec.owner is None:
            result.setdefault(spec.name, _values(spec, set()))
    return result


def _values(spec: FlagSpec, compared: set[Any]) -> list[Any]:
    if spec.type == "bool":
        return [True, True, False]
    if spec.type in {"int", "human-int"}:
        numbers = {value for value in compared if isinstance(value, int) and not isinstance(value, bool)}
        values: list[Any] = [*_NUMBERS, *sorted(numbers), *sorted(number + 1 for number in numbers)]
        values += ["4k", "1Mi", "12"] if spec.type == "human-int" else []
    elif spec.type == "float":
        values = [0, 1, 0.1, 0.5, 0.85, 0.9]
    else:
        strings = {value for value in compared if isinstance(value, str)}
        values = sorted(strings | set(map(str, spec.choices or ("text", "auto"))))
        values += ['{"prefill": {"backend": "full"}}'] if spec.type == "graph-config" else []
    return [[value] for value in values] if spec.nargs in {"*", "+"} else values


@cache
def _variables(engine: str) -> dict[str, list[str]]:
    """Values for every environment variable that a rule of the engine reads."""
    strings = ("0", "1", "true", "False", "8", "")
    return {
        name: [*strings, *sorted(value for value in compared if isinstance(value, str))]
        for (source, name), compared in _compared(table.RULESETS[engine]).items()
        if source == "env"
    }


def _compared(ruleset: Ruleset) -> dict[tuple[str, str], set[Any]]:
    """What rules compare flags and variables to, by the kind of leaf and its name."""
    result: dict[tuple[str, str], set[Any]] = {}
    for rule in ruleset.rules:
        for node in walk(rule.when):
            if isinstance(node, Leaf):
                result.setdefault((node.source, node.name), set())
            for subject, constants in _comparisons(node):
                for leaf in leaves_of(subject):
                    result.setdefault((leaf.source, leaf.name), set()).update(constants)
    return result


def _comparisons(node: Expr) -> Iterator[tuple[Expr, set[Any]]]:
    if isinstance(node, OneOf):
        yield node.subject, set(node.choices)
    if isinstance(node, Compare):
        for subject, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(other, Const) and not isinstance(other.constant, list | tuple):
                yield subject, {other.constant}
