from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from epd_operator.cli.main import main, parser

ROOT = Path(__file__).parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == "epd 0.1.0\n"


def test_crd_is_yaml_that_can_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    captured = yaml.load(capsys.readouterr().out, yaml.CSafeLoader)
    assert captured["kind"] == "CustomResourceDefinition"
    assert captured["metadata"]["name"] == "deepseekv41deployments.serving.epd.dev"


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        (["version"], ("kopf", "kubernetes", "aiohttp", "pydantic", "rich")),
        (["crd"], ("kopf", "kubernetes", "aiohttp", "rich")),
        (["status", "--help"], ("kopf", "kubernetes", "aiohttp", "pydantic")),
        (["validate", "--help"], ("kopf", "kubernetes", "aiohttp", "pydantic", "yaml")),
        (["validate", "manifests/samples"], ("torch", "kopf", "kubernetes", "aiohttp", "rich")),
        (["validate", "--", "--tp", "4"], ("torch", "kopf", "kubernetes", "aiohttp", "rich")),
        (["explain", "manifests/samples"], ("torch", "kopf", "kubernetes", "aiohttp", "rich")),
        (["render", "manifests/samples"], ("torch", "kopf", "kubernetes", "aiohttp", "rich")),
    ],
)
def test_a_command_loads_only_what_it_needs(command: list[str], heavy: tuple[str, ...]) -> None:
    code = (
        "import sys, contextlib\n"
        "from epd_operator.cli.main import main\n"
        f"with contextlib.suppress(SystemExit): main({command!r})\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip() == "[]"


def test_status_does_not_load_kopf() -> None:
    code = "import sys\nimport epd_operator.cli.status\nprint('kopf' in sys.modules, 'aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


@pytest.mark.parametrize("command", ["run", "status", "crd", "version", "validate", "explain", "render"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([command, "--help"])
    assert caught.value.code == 0
    assert f"epd {command}" in capsys.readouterr().out


def test_help_of_run_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--help"])
    text = capsys.readouterr().out
    for name in ("EPD_WATCH_NAMESPACE", "EPD_ROUTER_IMAGE", "EPD_WORKER_IMAGE", "POD_NAMESPACE"):
        assert name in text


def test_a_wrong_environment_is_told_and_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPD_WATCH_NAMESPACE", "Not_Ok")
    monkeypatch.setattr("epd_operator.runtime.log.setup", lambda *_: None)
    assert main(["run"]) == 2
    assert "EPD_WATCH_NAMESPACE: 'Not_Ok'" in capsys.readouterr().err


def test_namespace_and_all_namespaces_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["status", "-A", "-n", "x"])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "explain", "render"])
def test_help_has_examples_and_says_what_the_exit_status_means(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    text = capsys.readouterr().out
    assert f"  epd {command} deploy.yaml" in text
    assert "exit status: 0 " in text
