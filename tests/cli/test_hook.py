"""The places that run `epd validate` by themselves: pre-commit, Argo CD, and the examples in the docs."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epd_operator import __version__
from epd_operator.cli.main import parser
from tests.support.kubernetes import OLDEST, require_known

if TYPE_CHECKING:
    from tests.support.cli import Epd, Write

ROOT = Path(__file__).parents[2]
PRESYNC = ROOT / "manifests" / "gitops" / "argocd" / "presync"
HOOK = "argocd.argoproj.io/hook"
WAVE = "argocd.argoproj.io/sync-wave"


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def entry() -> list[str]:
    (hook,) = loaded(ROOT / ".pre-commit-hooks.yaml")
    assert hook["id"] == "epd-validate"
    assert hook["types_or"] == ["yaml", "json"]
    program, *words = shlex.split(hook["entry"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"][program] == "epd_operator.cli.main:main"
    assert "additional_dependencies" not in hook  # what judges needs no extra: a commit must not wait for a client
    return words


def test_the_hook_takes_whatever_files_a_commit_has(entry: list[str], epd: Epd, write: Write, good: str) -> None:
    files = [
        write(good, "fleet/demo.yaml"),
        write("apiVersion: v1\nkind: ConfigMap\n", "fleet/map.yaml"),
        write("{{- if .Values.x }}\na: 1\n{{- end }}\n", "chart/templates/x.yaml"),
        write('{"name": "package" // comment\n}', "tsconfig.json"),
        write("", "empty.yaml"),
    ]
    answer = epd(*entry, *files)
    assert (answer.status, answer.err) == (0, "")


def test_the_hook_refuses_a_commit_with_a_bad_one(
    entry: list[str], epd: Epd, write: Write, good: str, bad: str
) -> None:
    answer = epd(*entry, write(good, "a.yaml"), write(bad, "b.yaml"))
    assert answer.status == 1
    assert "b.yaml:17:9" in answer.out


def test_the_hook_s_own_repository_passes_it(entry: list[str], epd: Epd) -> None:
    files = [str(path) for path in sorted((ROOT / "manifests").rglob("*.yaml"))]
    files += [str(path) for path in sorted((ROOT / "charts").rglob("*.yaml"))]
    answer = epd(*entry, *(name for name in files if "testdata" not in name))
    assert answer.status == 0, answer.out + answer.err


def test_argo_cd_checks_the_files_that_it_applies() -> None:
    whole = loaded(PRESYNC / "kustomization.yaml")
    (generator,) = whole["configMapGenerator"]
    assert set(generator["files"]) == set(whole["resources"]) - {"job.yaml"}
    assert {path.name for path in PRESYNC.glob("*.yaml")} == {*whole["resources"], "kustomization.yaml"}
    job = loaded(PRESYNC / "job.yaml")
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == generator["name"]
    # A hash would be another name than the Job's; a hook of an earlier wave is there before it.
    assert generator["options"]["disableNameSuffixHash"] is True
    notes = generator["options"]["annotations"]
    assert job["metadata"]["annotations"][HOOK] == notes[HOOK] == "PreSync"
    assert int(notes[WAVE]) < int(job["metadata"]["annotations"].get(WAVE, 0))


def test_the_job_is_valid_and_restricted() -> None:
    job = loaded(PRESYNC / "job.yaml")
    require_known(job, OLDEST)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == f"epd-operator:{__version__}"
    assert "memory" in container["resources"]["limits"]
    assert job["spec"]["backoffLimit"] == 0


def test_the_job_s_command_judges_what_is_mounted(epd: Epd, write: Write, bad: str) -> None:
    (container,) = loaded(PRESYNC / "job.yaml")["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    assert container["command"] == ["epd"]
    write((PRESYNC / "demo.yaml").read_text(encoding="utf-8"), "manifests/demo.yaml")
    words = [word.replace(mount["mountPath"], "manifests") for word in container["args"]]
    assert "manifests" in words
    answer = epd(*words)
    assert (answer.status, answer.out.splitlines()[-1]) == (0, "1 document: 1 accepted")
    write(bad, "manifests/bad.yaml")
    assert epd(*words).status == 1


def commands() -> list[str]:
    """Every command line of ours in the docs' blocks of shell."""
    text = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:console|sh|shell)\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line[line.index("epd validate") :] for line in lines if line.startswith("$ ") and "epd validate" in line]


@pytest.mark.parametrize("line", commands())
def test_the_examples_of_the_docs_are_command_lines(line: str) -> None:
    words = shlex.split(line.split(" > ", maxsplit=1)[0])
    parser().parse_args(words[1 : words.index("--")] if "--" in words else words[1:])


def test_the_docs_have_examples() -> None:
    assert len(commands()) >= 6
