"""Every command that a page names exists, with the flags that it names."""

from __future__ import annotations

import re
import tomllib

import pytest

from tools.docs import command
from tools.docs.page import ROOT, Page


def test_commands_and_flags_exist(every: dict[str, Page]) -> None:
    assert [fault for page in every.values() for fault in command.faults(page)] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`make demo`, `make images && make kernel-report`", None),
        ("`make love`", "make has no target love"),
        ("`make check && make war`", "make has no target war"),
        ("`epd validate --strict -o json FILE`", None),
        ("`epd validate --engine-version=0.5.23 -- --tp 4 --no-such-flag`", None),
        ("`kustomize build prod | epd validate -`", None),
        ("`epd validat FILE`", "epd has no command validat"),
        ("`epd validate --colour FILE`", "epd validate has no flag --colour"),
        ("`kustomize build prod | epd explain --loud -`", "epd explain has no flag --loud"),
        ("`python -m bench.replay --quick`", None),
        ("`.venv/bin/python -m tools.cluster up --kwok 20`", None),
        ("`python3 -m sglang.launch_server --whatever`", None),
        ("`python -m bench.nothing`", "there is no program bench.nothing"),
        ("`python -m bench.replay --slow`", "bench.replay has no flag --slow"),
        ("`helm upgrade x --set images.operator=A`", None),
        ("`helm upgrade x --set images.oprator=A`", "the chart has no value images.oprator"),
        ("`.venv/bin/pytest tests/plan -k name`", None),
        ("`pytest tests/plans`", "there is no tests/plans to test"),
        ("`.venv/bin/epd-reference evaluate --model-path DIR`", None),
        ("`epd-reference evaluate --resume`", "epd-reference evaluate has no flag --resume"),
        ("`epd-reference learn --out DIR`", "epd-reference has no command learn"),
        ("`epd-registrar --listen A`, `epd-swapool`, `epd-reference --role prefill`", None),
        ("`epd-registrar --loud`", "epd-registrar has no flag --loud"),
        ("```console\n$ make love   with everybody\n```", "make has no target love"),
        ("```console\n# python -m tools.cluster up --kwok 2     make sure of it\n```", None),
        ("```console\n$ helm upgrade x \\\n    --set nothing=1\n```", "the chart has no value nothing"),
    ],
)
def test_a_wrong_command_is_found(text: str, fault: str | None) -> None:
    faults = [line.split(": ", 1)[1] for line in command.faults(Page("page.md", text + "\n"))]
    assert faults == ([fault] if fault else [])


def test_commands_of_the_issue_templates_exist() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    codes = {form.name: re.findall(r"`[^`\n]+`", form.read_text(encoding="utf-8")) for form in forms}
    assert "`epd status NAME -o json`" in codes["bug.yml"]
    faults = [fault for name, each in codes.items() for fault in command.faults(Page(name, "\n\n".join(each)))]
    assert faults == []


def test_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = {line.split(":")[0] for line in text.splitlines() if ": " in line and " ## " in line}
    assert command.targets(ROOT) == listed


def test_console_scripts_are_documented(every: dict[str, Page]) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    message = "\n".join(page.text for page in every.values())
    assert [name for name in scripts if f"`{name}" not in message] == []


def test_every_command_of_epd_is_documented(every: dict[str, Page]) -> None:
    message = "\n".join(page.text for page in every.values())
    assert [name for name in command.commands() if f"epd {name}" not in message and f"`{name}`" not in message] == []


def test_the_chart_s_values_are_documented(every: dict[str, Page]) -> None:
    (_, rows), *_ = every["charts/epd-operator/README.md"].tables
    cells = [name.strip("` ") for row in rows[1:] for name in row[0].split(",")]
    shared = {"images": ("router", "worker")}
    named = {f"{lead}.{name}" for lead, names in shared.items() for name in names}
    named |= {cell for cell in cells if not cell.startswith(".")}
    values = command.chart_values(ROOT)
    groups = {value for value in values if any(other.startswith(f"{value}.") for other in values)}
    assert named - values == set()
    leaves = {value for value in values - groups if not any(value.startswith(f"{name}.") for name in named)}
    assert leaves - named == set()
