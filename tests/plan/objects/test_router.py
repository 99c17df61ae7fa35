"""The router's command line, held against the real program's help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.reference.serving import options
from epd_workers.registrar import launch, main

if TYPE_CHECKING:
    from tests.support.world import World


@pytest.fixture(scope="module")
def help_text() -> str:
    program = Path(sys.executable).with_name("smg")
    return subprocess.run([program, "launch", "--help"], check=True, capture_output=True, text=True).stdout


def flags(world: World) -> list[str]:
    template = next(
        o for o in world.plan().objects if o["metadata"]["name"] == "demo-router" and o["kind"] == "Deployment"
    )
    container = template["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][0] == "--"
    return list(container["args"][1:])


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


SEVERAL = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}
LIMITED = {"maxConcurrentRequests": 7, "requestTimeoutSeconds": 90}


@pytest.mark.parametrize("edit", [{}, {"roles": SEVERAL}, {"router": LIMITED}], ids=["single", "several", "limited"])
def test_the_real_router_knows_every_flag(world: World, help_text: str, edit: dict[str, Any]) -> None:
    words = flags(world.edit(**edit))
    used = [word for word in words if word.startswith("--")]
    assert len(used) == len(set(used))
    known = set(re.findall(r"(?<![\w-])--[a-z][-a-z0-9]*", help_text))
    assert set(used) <= known


def test_the_real_router_accepts_the_command_line(world: World) -> None:
    """Its own parser reads the words; an unknown policy, flag or type would end it with an error."""
    script = (
        "import sys; from smg.launch_router import parse_router_args as parse; args = parse(sys.argv[1:]);"
        "print(args.pd_disaggregation, args.port, args.decode_policy, args.disable_circuit_breaker)"
    )
    run = subprocess.run([sys.executable, "-c", script, *flags(world)], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True", "8000", "least_load", "True"]


@pytest.mark.parametrize(("edit", "attempts"), [({}, "2"), ({"roles": SEVERAL}, "3")], ids=["single", "several"])
def test_attempts_follow_the_counts_and_there_is_no_breaker(world: World, edit: Any, attempts: str) -> None:
    words = flags(world.edit(**edit))
    assert "--disable-circuit-breaker" in words
    assert value(words, "--retry-max-retries") == attempts


def test_a_pod_outlives_its_drain(world: World) -> None:
    words = flags(world)
    pod = next(o for o in world.plan().objects if o["metadata"]["name"] == "demo-router" and o["kind"] == "Deployment")
    spec = pod["spec"]["template"]["spec"]
    pre_stop = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] >= pre_stop + int(value(words, "--shutdown-grace-period-secs")) + 10


def test_no_limit_of_requests_is_left_to_the_router(world: World) -> None:
    assert "--max-concurrent-requests" not in flags(world.edit(router={"maxConcurrentRequests": 0}))
    assert value(flags(world.edit(router=LIMITED)), "--max-concurrent-requests") == "7"


def test_the_client_key_is_mounted_for_the_router_alone(world: World) -> None:
    world.edit(router={"apiKeySecret": {"name": "client", "key": "token"}})
    world.reconcile()
    spec = world.maker("router")["spec"]["template"]["spec"]
    mounting = [c["name"] for c in spec["containers"] if any(m["name"] == "epd-api-key" for m in c["volumeMounts"])]
    assert mounting == ["router"]
    command = spec["containers"][0]["command"]
    assert command[command.index("--api-key-file") + 1] == "/api-key/key"
    rules = [o["rules"] for o in world.plan().objects if o["kind"] == "Role"]
    assert rules == [[{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]]


def test_the_registrar_understands_its_own_command_lines(world: World, tmp_path: Path) -> None:
    world.edit(router={"apiKeySecret": {"name": "client", "key": "token"}})
    world.reconcile()
    spec = world.maker("router")["spec"]["template"]["spec"]
    router, registrar = spec["containers"]
    parse = main._parser().parse_args
    assert registrar["command"] == ["epd-registrar"]
    read = parse(registrar["args"])
    assert (read.namespace, read.selector) == ("llm", "app.kubernetes.io/instance=demo")
    assert (read.encoder_port, read.listen) == (8997, ("0.0.0.0", 8081))
    assert read.control_key_file == parse(spec["initContainers"][0]["command"][1:]).file
    route = parse(router["command"][1:])
    assert route.control_key_file == read.control_key_file
    keys = [tmp_path / "control", tmp_path / "client"]
    for key in keys:
        key.write_text("a-key-of-some-length-0123456789\n", encoding="utf-8")
    assert launch.arguments(router["args"][1:], *keys)[1 : len(router["args"])] == router["args"][1:]


def test_no_body_is_larger_than_an_engine_takes(world: World) -> None:
    """A few of them must fit into the router's memory, or a single client ends it for all."""
    assert value(flags(world), "--max-payload-size") == str(options.parse(["--role", "prefill"]).max_body_bytes)


def test_the_last_attempt_outlives_the_listing_of_a_killed_worker(world: World) -> None:
    words = flags(world.edit(roles=SEVERAL))
    first = float(value(words, "--retry-initial-backoff-ms")) / 1000
    factor = float(value(words, "--retry-backoff-multiplier"))
    pauses = [first * factor**attempt for attempt in range(int(value(words, "--retry-max-retries")) - 1)]
    assert sum(pauses) * 0.8 > 0.9  # less the router's jitter; about a second was seen
