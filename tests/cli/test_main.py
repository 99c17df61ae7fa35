from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from packaging.requirements import Requirement

from epd_operator import __version__
from epd_operator.cli.main import EXTRA, IN_EXTRA, main, parser

if TYPE_CHECKING:
    from tests.support.cli import Epd

ROOT = Path(__file__).parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"epd {__version__}\n"


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
        (["completion", "bash"], ("kopf", "kubernetes", "aiohttp", "pydantic", "yaml", "rich")),
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


@pytest.mark.parametrize("command", ["run", "status", "crd", "completion", "version", "validate", "explain", "render"])
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


def test_the_modules_of_the_extra_are_those_that_it_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {Requirement(line).name.replace("-", "_") for line in project["optional-dependencies"][EXTRA]}
    assert brought == IN_EXTRA


@pytest.mark.parametrize(("command", "module"), [("status", "kubernetes"), ("run", "kopf")])
def test_a_command_without_its_packages_says_how_to_get_them(
    command: str, module: str, epd: Epd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"epd_operator.cli.main._{command}", lambda _: importlib.import_module(module))
    monkeypatch.setitem(sys.modules, module, None)
    answer = epd(command)
    assert answer.status == 2
    assert answer.err == (
        f"epd: `epd {command}` needs the extra 'operator' ({module} is not installed): "
        f"pip install 'epd-{__version__}-py3-none-any.whl[operator]'\n"
    )


def test_a_module_of_ours_that_is_missing_is_not_explained_away(epd: Epd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epd_operator.cli.main._version", lambda _: importlib.import_module("epd_operator.absent"))
    with pytest.raises(ModuleNotFoundError, match="absent"):
        epd("version")
