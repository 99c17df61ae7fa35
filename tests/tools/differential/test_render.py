"""Every command line that the plan makes for SGLang 0.5.23 is one that the engine itself accepts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from epd_operator.engines.sglang.storage import TAG
from epd_operator.engines.validation import validate
from tests.support.rendered import containers, line
from tools.corpus.field_cases import field_cases
from tools.differential.generator import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.differential.oracle import Oracle

ROOT = Path(__file__).parents[3]
RELEASE = "0.5.23"


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    folders = (ROOT / "manifests/samples", ROOT / "tests/plan/golden")
    for path in sorted(path for folder in folders for path in folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document.get("kind") == "DeepSeekV41Deployment":
                yield path.name, document
    for case in field_cases():
        yield case.name, case.document


def lines() -> Iterator[Case]:
    for name, document in documents():
        engine = document["spec"]["engine"]
        if (engine["type"], engine["version"]) != ("SGLang", RELEASE) or not validate(document).accepted:
            continue
        if engine.get("plugins"):
            continue  # the engine that is asked here loads none
        for maker, container in containers(document):
            env = {entry["name"]: entry["value"] for entry in container["env"] if entry.get("value", "$")[:1] != "$"}
            yield Case(f"{name}: {maker}", engine["platform"], line(container), env)


def test_the_engine_accepts_every_rendered_command_line(oracle: Oracle) -> None:
    asked = list(lines())
    assert len(asked) > 60
    # Among them those that tell a storage whose pages it keeps.
    assert sum(TAG in " ".join(case.argv) for case in asked) > 3
    answers = oracle.ask(asked)
    refused = {
        case.id: (answer.error, case.argv) for case, answer in zip(asked, answers, strict=True) if not answer.accepted
    }
    assert not refused, refused
