"""Deployments on the pages are accepted, and so are the samples; examples of refusals are refused."""

from __future__ import annotations

import pytest
import yaml

from epd_operator.engines import validation
from tools.docs import sample
from tools.docs.page import ROOT, Page

WHOLE = "```yaml\napiVersion: serving.epd.dev/v1alpha1\nkind: DeepSeekV41Deployment\nmetadata: {name: a}\nspec:\n"
ENGINE = '  engine: {type: Reference, version: "0.1"}\n'


def test_deployments_on_pages_are_accepted(every: dict[str, Page]) -> None:
    assert [fault for page in every.values() for fault in sample.faults(page)] == []
    assert sum(len(list(sample.deployments(page))) for page in every.values()) >= 3


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{WHOLE}{ENGINE}  roles: {{prefill: {{}}, decode: {{}}}}\n```\n", ""),
        (f"{WHOLE}{ENGINE}  roles: {{prefill: {{args: {{page-sise: 4}}}}, decode: {{}}}}\n```\n", "flag-unknown"),
        (f"{WHOLE}{ENGINE}  roles: {{prefill: {{}}}}\n```\n", "structure"),
        ("```yaml\nspec:\n  roles: {prefill: {encoderReplay: true}}\n  swaPool: {mode: InProcess}\n```\n", ""),
        ("```yaml\nspec:\n  swaPool: {mode: Valky}\n```\n", "structure"),
        ("```yaml\nkind: ConfigMap\nspec: nonsense\n```\n", ""),
    ],
)
def test_a_wrong_deployment_is_found(text: str, rule: str) -> None:
    faults = list(sample.faults(Page("page.md", text)))
    assert bool(faults) == bool(rule)
    assert all(f"[{rule}]" in fault for fault in faults)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_what_their_first_line_says(path: object) -> None:
    text = (ROOT / "docs/examples" / str(path)).read_text(encoding="utf-8")
    refused = text.startswith("# An example that is refused")
    assert validation.validate(yaml.safe_load(text)).accepted is not refused
