"""What stands around the project: workflows, hooks and forms name commands and files that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release import lock, source, version
from tools.release.changelog import section

ROOT = Path(__file__).resolve().parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in loaded(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_that_make_has(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", MAKEFILE))
    called = {name for step in steps(path) for name in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert called
    assert called <= targets


def test_every_change_runs_all_tests() -> None:
    test = loaded(GITHUB / "workflows" / "test.yaml")
    assert "pull_request" in test[True]  # YAML reads the key `on` as true
    assert any(step.get("run", "").endswith(" make test") for step in test["jobs"]["test"]["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_read_only(path: Path) -> None:
    assert loaded(path)["permissions"] == {"contents": "read"}
    uses = re.findall(r"(?m)uses: (.+)$", path.read_text(encoding="utf-8"))
    assert uses
    for line in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_files_that_a_workflow_reads_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert all((ROOT / name).is_file() for name in re.findall(r"go-version-file: (\S+)", text))
    for pattern in re.findall(r"hashFiles\('([^']+)'\)", text):
        assert any(path.is_file() for path in ROOT.glob(f"{pattern}/*"))


def test_dependabot_knows_every_module_in_go_and_the_lock_files() -> None:
    updates = {one["package-ecosystem"]: one for one in loaded(GITHUB / "dependabot.yml")["updates"]}
    assert set(updates) == {"pip", "gomod", "github-actions"}
    modules = {f"/{path.parent.relative_to(ROOT)}" for path in (ROOT / "tools").rglob("go.mod")}
    assert set(updates["gomod"]["directories"]) == modules
    assert (ROOT / updates["pip"]["directory"].strip("/") / "dev.txt").is_file()


def test_lock_files_agree_on_versions() -> None:
    """The images, the command line and the tests run the same packages."""
    folder = ROOT / "requirements"
    tested = {(one.name, one.version) for one in lock.read(folder / "dev.txt")}
    for name in ("cli", "operator", "router", "workers"):
        assert {(one.name, one.version) for one in lock.read(folder / f"{name}.txt")} <= tested, name


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_asks_and_names_files_that_are_there(path: Path) -> None:
    form = loaded(path)
    assert form["name"]
    assert form["description"]
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert any(field.get("validations", {}).get("required") for field in asked)
    assert len({field["id"] for field in asked}) == len(asked)
    assert all(field["attributes"]["label"] for field in asked)
    for name in re.findall(r"\b(?:docs/)?[\w-]+\.md\b", path.read_text(encoding="utf-8")):
        assert (ROOT / name).is_file(), name


def test_hooks_of_this_project_run_what_make_check_runs() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    checked = re.findall(r"(?m)^\t@\$\((?:VENV|PY)\)(?:/bin/)?(.*)$", MAKEFILE.split("\ncheck:")[1].split("\n\n")[0])
    for hook in local["hooks"]:
        program, *words = shlex.split(hook["entry"])
        assert program.startswith(".venv/bin/"), hook["id"]
        assert (Path(sys.executable).parent / Path(program).name).exists(), hook["id"]
        line = " ".join([Path(program).name, *(word for word in words if word != "--force-exclude")])
        if hook["id"] != "epd-validate":  # the hook that we offer to others, on our own samples
            assert line.removeprefix("python") in checked, hook["id"]


def test_the_hook_on_our_own_samples_passes() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    (hook,) = (one for one in local["hooks"] if one["id"] == "epd-validate")
    tracked = source.git(ROOT, "ls-files", "*.yaml", "*.json").split()
    files = [name for name in tracked if re.search(hook["files"], name) and not re.search(hook["exclude"], name)]
    program, *words = shlex.split(hook["entry"])
    command: list[str | Path] = [Path(sys.executable).parent / Path(program).name, *words, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def unbraced(pattern: str) -> list[str]:
    """The patterns that one with alternatives in braces stands for."""
    match = re.fullmatch(r"(.*?)\{(.+)\}(.*)", pattern)
    return [match[1] + each + match[3] for each in match[2].split(",")] if match else [pattern]


def style(name: str) -> dict[str, str]:
    """What .editorconfig says of a file: later sections win."""
    actual: dict[str, str] = {}
    _, *sections = re.split(r"(?m)^\[(.+)\]$", (ROOT / ".editorconfig").read_text(encoding="utf-8"))
    for pattern, lines in zip(sections[::2], sections[1::2], strict=True):
        ways = unbraced(pattern)
        if any(fnmatch(name if "/" in way else Path(name).name, way.replace("**", "*")) for way in ways):
            actual |= dict(re.findall(r"(?m)^(\w+) = (.+)$", lines))
    return actual


def test_files_are_as_editorconfig_says() -> None:
    faults = []
    for name in filter(None, source.git(ROOT, "ls-files").split("\n")):
        if name.endswith(".safetensors") or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_bytes().decode()
        wanted = style(name)
        lines = text.split("\n")
        faults += [f"{name}: carriage returns"] * ("\r" in text)
        if wanted["insert_final_newline"] == "true":
            faults += [f"{name}: no newline at the end"] * (not text.endswith("\n") and text != "")
        if wanted["trim_trailing_whitespace"] == "true":
            faults += [f"{name}: space at the end of a line"] * any(line != line.rstrip() for line in lines)
        if wanted["indent_style"] == "space":
            faults += [f"{name}: tabs"] * any(line.startswith("\t") for line in lines)
    assert not faults


def test_no_page_names_a_tag_before_its_release() -> None:
    """A `rev:` that no clone can check out sends everybody who copies it into an error."""
    released = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version.version(ROOT)).date is not None
    named = {
        f"{name}: {tag}"
        for name in source.git(ROOT, "ls-files", "*.md").split()
        if name != "RELEASING.md" and (ROOT / name).is_file()
        for tag in re.findall(r"\brev: (v\d\S*)", (ROOT / name).read_text(encoding="utf-8"))
    }
    assert released or not named


def test_the_release_recipe_names_what_is_there() -> None:
    text = (ROOT / "RELEASING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([a-z-]+):", MAKEFILE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    paths = re.findall(r"`((?:tools|images|requirements|tests)/[\w./-]+|CHANGELOG\.md|pyproject\.toml)`", text)
    assert len(paths) > 6
    assert all((ROOT / path).exists() for path in paths), paths
