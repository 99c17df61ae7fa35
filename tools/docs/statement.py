"""Counts and versions that the pages state, beside what the code says.

A fact is a pattern with one group, and the values that the group may have. Whoever states it in another form is not
found: a pattern that fits no page is an error of the tests.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator.admission import page as rules_page
from epd_operator.api import names
from epd_operator.engines import table
from tools.cluster.binaries import KUBERNETES_VERSION
from tools.docs.page import ROOT, Page
from tools.images.recipe import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NUMBERS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
_DECISION: Final = re.compile(r"^docs/adr/0")
_UNRELEASED: Final = re.compile(r"This is release|rev: v\d|\brelease \d+\.\d+(?!\.\d)")


@dataclass(frozen=True)
class Fact:
    """Something that pages state and the code knows.

    Attributes:
        pattern: Finds the statement; its group is the value.
        values: What is right.
    """

    pattern: re.Pattern[str]
    values: frozenset[str]


def fact(pattern: str, *values: str) -> Fact:
    """A fact whose words may stand on two lines."""
    return Fact(re.compile(pattern.replace(" ", r"\s+")), frozenset(values))


def facts() -> list[Fact]:
    """Everything that is checked, read from the code now."""
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart: Any = yaml.safe_load((ROOT / "charts/epd-operator/Chart.yaml").read_text(encoding="utf-8"))
    golang = (ROOT / "tools/cluster/go/kubernetes/go.mod").read_text(encoding="utf-8")
    engines = table.RULESETS["SGLang"].versions
    kubernetes = KUBERNETES_VERSION.removeprefix("v")
    # Read, not imported: with it would come torch and Triton.
    compiled = (ROOT / "kernels/epd_kernels/gate/target.py").read_text(encoding="utf-8")
    gpus = re.findall(r'(?<!GPU)Target\("(\w+)"', compiled)
    go = re.search(r"^go (\d+\.\d+)", golang, re.MULTILINE)
    rules = re.search(r"from the (\d+) rules", " ".join(rules_page.text("").split()))
    assert go is not None
    assert rules is not None
    return [
        fact(r"\b(\d[\d,]*) rules\b", rules[1]),
        fact(r"Kubernetes (\d+\.\d+\.\d+)", kubernetes),
        fact(r"Kubernetes (\d+\.\d+) or newer", chart["kubeVersion"].removeprefix(">=").rsplit(".", 1)[0]),
        fact(r"Go (\d+\.\d+)", go[1]),
        fact(r"Python (\d+\.\d+)", project["requires-python"].removeprefix(">=")),
        fact(r"SGLang (\d+\.\d+\.\d+)", *(version for version in engines if version[0].isdigit())),
        fact(r"epd-(\d+\.\d+\.\d+)-py3", project["version"]),
        fact(r"(\d[\d,]*) command lines and what SGLang", _count("tools/differential/data/verdicts.jsonl")),
        fact(r"0 of (\d+) \| lines", _count("tools/differential/data/verdicts.jsonl")),
        fact(r"first (\d[\d,]*) (?:rows|requests)", _count("bench/swapool/data/conversation.jsonl")),
        fact(r"(\w+) GPUs without one", _NUMBERS[len(gpus)]),
        fact(r"compiled for (\w+) GPUs", _NUMBERS[len(gpus)]),
        fact(r"compiled for ((?:\w+, )+\w+ and \w+) on every", " and ".join(_listed(gpus))),
        fact(r"the (\w+) images with buildah", _NUMBERS[len(NAMES)]),
        fact(r"in the order (\w+, \w+, \w+)\.", ", ".join(NAMES)),
        fact(r"\| operator \| (\d+) \|", str(names.OPERATOR_METRICS_PORT)),
        fact(r"\| encode, prefill, decode \| (\d+) \|", str(names.HTTP_PORT)),
        fact(r"\| router \| (\d+) \|", str(names.ROUTER_METRICS_PORT)),
        fact(r"servers of the SWA pool \| (\d+),", str(names.SWA_POOL_HEALTH_PORT)),
        fact(r"Mooncake master (\d+)", str(names.MOONCAKE_METRICS_PORT)),
        fact(r"on several nodes has at most (\d+) characters", str(names.MAX_GROUP_NAME)),
        fact(r"API `(v\w+)`", names.VERSION),
        fact(r"The API is `(v\w+)`", names.VERSION),
    ]


def faults(page: Page, known: Iterable[Fact]) -> Iterator[str]:
    """A line for each statement of the page that is not as the code says; decisions tell of their own time."""
    for one in known if not _DECISION.match(page.path) else ():
        for item in one.pattern.finditer(page.text):
            stated = " ".join(item[1].split())
            if stated not in one.values:
                line = page.text.count("\n", 0, item.start()) + 1
                yield f"{page.path}:{line}: {item[0]!r}: {' or '.join(sorted(one.values))} is right"


def released(page: Page, changelog: str) -> Iterator[str]:
    """A line for each place that speaks of a release, while the newest section of the changelog is unreleased."""
    newest = re.search(r"^## .*$", changelog, re.MULTILINE)
    if newest is None or "unreleased" not in newest[0] or _DECISION.match(page.path):
        return
    for item in _UNRELEASED.finditer(page.text):
        line = page.text.count("\n", 0, item.start()) + 1
        yield f"{page.path}:{line}: {item[0]!r}, and nothing is released"


def _count(path: str) -> str:
    """The number of lines of a file, as pages write it."""
    return f"{len((ROOT / path).read_text(encoding='utf-8').splitlines()):,}"


def _listed(words: Iterable[str]) -> tuple[str, str]:
    *most, last = words
    return ", ".join(most), last
