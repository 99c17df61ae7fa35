"""What operator and workers both spell, since neither may import the other: each name is read here on both sides.

Other tests read command lines and the pool's file with the workers' own parsers: flags in `tests/engines/reference`,
the pool in `tests/plan/objects/test_swa_pool.py`, what a running server answers in `tests/reference/serving`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest
from pydantic import BaseModel

import epd_operator
import epd_workers
from epd_operator.api import names
from epd_operator.plan.conditions import replay_effective, swa_pool_ready
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.router_state import read
from epd_operator.runtime import registrar as poller
from epd_workers.reference.serving import cache_report
from epd_workers.reference.serving.options import parse as engine_options
from epd_workers.registrar import access, main, server, server_info, state
from epd_workers.registrar import pod as pods
from epd_workers.swapool.history import Fault, PoolReport
from epd_workers.swapool.server import options, status, store
from tests.support.world import World, resource, templates_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

ROOT = Path(__file__).parents[1]
ENGINE = Path(epd_workers.__file__).parent / "reference"
POOL = {"prefill": {"encoderReplay": True}, "decode": {}, "encode": {}}
FOR_PEOPLE = {
    *("router.version", "workers.url", "workers.compatKey", "workers.imageID", "workers.registered"),
    *("encoders.url", "encoders.compatKey", "encoders.registeredWith", "encoders.reason"),
}
"""What the registrar writes for whoever asks it, and the operator has no use for."""
READ_ALIKE = {"workers.replay.encoder.preset"}
"""Both halves are read alike, and only the decoder half has presets."""
ENVELOPE = {"schema", "pod"}
"""What the operator checks before the document is read."""


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The dotted names of a document's leaves; keys that are data count as `*`."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from fields(each, f"{path}.{'*' if path == 'compatKeys' else name}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from fields(each, path)
    elif value is not None:
        yield path


def read_fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """The same of what the operator reads."""
    for name, field in model.model_fields.items():
        alias = f"{path}.{field.alias or name}".lstrip(".")
        inner = [each for each in _types(field.annotation) if issubclass(each, BaseModel)]
        for each in inner:
            yield from read_fields(each, f"{alias}.*" if path == "" and field.alias == "compatKeys" else alias)
        if not inner:
            yield alias


def _types(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from _types(each)


def engine_words(name: str) -> tuple[str, ...]:
    """The words of a `Literal` of the engine's; off its source, because the engine loads torch."""
    tree = ast.parse((ENGINE / "engine" / "request.py").read_text(encoding="utf-8"))
    (literal,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    assert isinstance(literal, ast.Subscript)
    return tuple(ast.literal_eval(literal.slice))


def served_info(reason: str = "", fault: Fault = "") -> dict[str, Any]:
    """`GET /server_info` of a prefill pod, by the engine's own code."""
    work = SimpleNamespace(decoder=640, skipped=384, encoder=640, replayed=64)
    replay = SimpleNamespace(work=work, preset="0.5.23", spared=0, adopted=0, avoided=0)
    for half in ("decoder", "encoder"):
        setattr(replay, f"{half}_active", not reason)
        setattr(replay, f"{half}_reason", reason)
    report = cache_report.CacheReport(cast("Any", replay), cast("Any", None), cast("Any", None), encoder_layers=4)
    return {"replay": report.replay(), "swa_pool": asdict(PoolReport("valkey", fault))}


@pytest.fixture
def world() -> World:
    world = World(resource(roles=POOL, swaPool={"mode": "Mooncake"}))
    world.server_info = served_info()
    return world.settle()


def container(world: World, kind: str, component: str, name: str = "") -> dict[str, Any]:
    (maker,) = (each for each in world.makers(component) if each["kind"] == kind)
    (actual,) = (each for each in templates_of(maker)[0]["spec"]["containers"] if name in {"", each["name"]})
    return cast("dict[str, Any]", actual)


def paths(app: web.Application) -> set[str]:
    return {route.resource.canonical for route in app.router.routes() if route.resource is not None}


def test_the_labels_of_a_pod() -> None:
    written = (names.LABEL_ROLE, names.LABEL_COMPAT_KEY, names.LABEL_REVISION, names.ROLES)
    assert written == (pods.ROLE_LABEL, pods.KEY_LABEL, pods.REVISION_LABEL, pods.ROLES)


def test_the_registrar_finds_in_a_planned_pod_what_it_needs(world: World) -> None:
    seen = [pod for each in world.pods if (pod := pods.pod_of(each, names.HTTP_PORT)) is not None]
    assert sorted({pod.role for pod in seen}) == sorted(names.ROLES)
    assert all(pod.key and pod.revision and pod.image for pod in seen)
    assert {pod.role: pod.bootstrap_port for pod in seen}["prefill"] == names.BOOTSTRAP_PORT


def test_every_field_of_the_state_document_is_read_or_meant_for_people(world: World) -> None:
    document = world.routers[0]
    written = set(fields(document))
    understood = set(read_fields(type(read([document])[0])))
    counters = {path for path in written if path.rpartition(".")[2] in poller.VOLATILE}
    assert understood - written == READ_ALIKE, "the operator waits for what no registrar writes"
    assert written - understood == FOR_PEOPLE | ENVELOPE | counters
    assert {path.rpartition(".")[2] for path in counters} == poller.VOLATILE
    assert document["schema"] == state.SCHEMA == poller.SCHEMA


def test_what_a_prefill_pod_says_of_itself_arrives(world: World) -> None:
    assert server_info.parse(world.server_info).faults == ()
    (worker,) = (each for each in read(world.routers)[0].workers if each.role == "prefill")
    assert worker.replay is not None
    assert (worker.replay.decoder.active, worker.replay.decoder.preset) == (True, "0.5.23")
    assert worker.swa_pool is not None
    assert worker.swa_pool.engine == "valkey"


def test_every_fault_of_a_pool_has_a_cause_to_tell() -> None:
    faults = set(get_args(Fault)) - {""}
    assert faults == swa_pool_ready._CAUSES.keys()
    for fault in faults:
        report = server_info.parse(served_info(fault=fault))
        assert report.swa_pool is not None, fault
        assert report.swa_pool.fault == fault


def test_the_reasons_that_mean_not_yet() -> None:
    """The operator tells them by how they end; every other reason is one that somebody should look at."""
    waiting = {word for word in engine_words("ReplayReason") if word.endswith(replay_effective._WAITING)}
    assert waiting == {Reason.NO_LONG_PROMPT_YET, "NoPrefixHitYet"}


@pytest.mark.parametrize("word", [word for word in engine_words("ReplayReason") if word])
def test_every_reason_not_to_replay_is_judged(world: World, word: str) -> None:
    world.server_info = served_info(reason=word)
    world.report()
    waits = word.endswith(replay_effective._WAITING)
    expected = Reason.NO_LONG_PROMPT_YET if waits else Reason.ENGINE_DOES_NOT_REPLAY
    assert world.verdict("ReplayEffective")[1] == expected


def test_a_state_that_the_operator_knows_by_name_is_one_of_the_registrar_s() -> None:
    source = (Path(epd_operator.__file__).parent / "plan/conditions/health.py").read_text(encoding="utf-8")
    known = set(re.findall(r"\.state == \"(\w+)\"", source))
    reported = set(
        re.findall(r"Standing\(\s*\"(\w+)\"", Path(pods.__file__).with_name("membership.py").read_text("utf-8"))
    )
    assert known
    assert known <= reported


def test_ports(world: World) -> None:
    engine = engine_options(["--role", "prefill", "--model-path", "/model"])
    assert (engine.port, engine.bootstrap_port, engine.encoder_bootstrap_port) == (
        *(names.HTTP_PORT, names.BOOTSTRAP_PORT, names.ENCODER_PORT),
    )
    own = main._parser().parse_args(container(world, "Deployment", "router", "registrar")["args"])
    assert (own.engine_port, own.encoder_port, own.listen[1]) == (
        *(names.HTTP_PORT, names.ENCODER_PORT, names.REGISTRAR_PORT),
    )
    assert (*(names.VALKEY_PORT, names.MOONCAKE_PORT, names.MOONCAKE_METRICS_PORT, names.SWA_POOL_HEALTH_PORT),) == (
        options.VALKEY_PORT,
        options.MASTER_PORT,
        options.MASTER_METRICS_PORT,
        options.HEALTH_PORT,
    )
    env = {each["name"]: each.get("value") for each in container(world, "Deployment", names.SWA_POOL_STORE)["env"]}
    pinned = {name: value for name, value in env.items() if name.startswith("MC_")}
    assert len(pinned) == 4
    assert pinned == {name: store.SETTINGS[name] for name in pinned}


def test_programs(world: World) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    parts = (*names.COMPONENTS, names.SWA_POOL, names.SWA_POOL_STORE)
    specs = [templates_of(maker)[0]["spec"] for part in parts for maker in world.makers(part)]
    started = {each["command"][0] for spec in specs for each in (*spec.get("initContainers", ()), *spec["containers"])}
    assert started == {name for name in scripts if name != "epd"}


def test_probes_and_the_state_ask_for_what_is_served(world: World) -> None:
    nothing = cast("Any", None)
    registrar = server.Server(nothing, nothing, nothing, nothing, pod="", version="", engine_port=1).application()
    engine = set(re.findall(r"web\.get\(\"([^\"]+)\"", (ENGINE / "serving" / "status.py").read_text(encoding="utf-8")))
    supervised = paths(status.Status(nothing).application())
    for component, name, served in (
        *((role, "", engine) for role in names.ROLES),
        (names.ROUTER, "registrar", paths(registrar)),
        (names.SWA_POOL, "", supervised),
        (names.SWA_POOL_STORE, "", supervised),
    ):
        probed = container(world, "Deployment", component, name)
        asked = {probe["httpGet"]["path"] for key, probe in probed.items() if key.endswith("Probe")}
        assert asked
        assert asked <= served, component
    polled = re.search(r"_port}(/\w+)", Path(poller.__file__).read_text(encoding="utf-8"))
    assert polled is not None
    assert polled[1] in paths(registrar)


def test_the_registrar_s_token_is_where_it_looks(world: World) -> None:
    mounts = container(world, "Deployment", "router", "registrar")["volumeMounts"]
    assert str(access._MOUNT) in {mount["mountPath"] for mount in mounts}


def test_all_parts_are_of_one_release() -> None:
    assert epd_operator.__version__ == epd_workers.__version__
