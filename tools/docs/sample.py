"""Whether `epd validate` accepts the deployments that the pages show.

A block of YAML that holds a whole `DeepSeekV41Deployment` is judged as it is. One with `spec:` alone shows a part: it
is laid over the least deployment of the Reference engine, and the whole is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator.api.names import API_VERSION, KIND
from epd_operator.engines import validation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.docs.page import Page

LEAST: Final[dict[str, Any]] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "demo"},
    "spec": {"engine": {"type": "Reference", "version": "0.1"}, "roles": {"prefill": {}, "decode": {}}},
}


def deployments(page: Page) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and object of each deployment on the page."""
    for fence in page.fences:
        if fence.language != "yaml":
            continue
        for item in yaml.safe_load_all(fence.text):
            if isinstance(item, dict) and item.get("kind") == KIND:
                yield fence.line, item
            elif isinstance(item, dict) and set(item) == {"spec"} and not _is_excerpt(item["spec"]):
                yield fence.line, laid(LEAST, item)


def _is_excerpt(spec: Any) -> bool:
    """Whether it only shows where a placeholder belongs."""
    return "rule-id" in str(spec)


def laid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One object over another: what is above wins, mappings are joined."""
    joined = {
        name: laid(below[name], value) if isinstance(value, dict) and isinstance(below.get(name), dict) else value
        for name, value in above.items()
    }
    return {**below, **joined}


def faults(page: Page) -> Iterator[str]:
    """A line for each error in a deployment of the page."""
    for line, deployment in deployments(page):
        for finding in validation.validate(deployment).errors:
            yield f"{page.path}:{line}: {finding}"
