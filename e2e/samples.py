"""The repository's sample, under other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from e2e.kube import is_true, until
from e2e.stack import ROOT

if TYPE_CHECKING:
    from e2e.kube import Kube, Object

SAMPLE = ROOT / "manifests" / "samples" / "reference.yaml"


def sample(name: str, namespace: str) -> Object:
    """The sample of the repository under another name."""
    deployment: Object = yaml.safe_load(SAMPLE.read_text())
    deployment["metadata"] = {"name": name, "namespace": namespace}
    return deployment


def ready(kube: Kube, namespace: str, name: str, seconds: float = 150) -> Object:
    """Wait until a deployment is Ready for its newest generation, and return it."""

    def probe() -> Object | None:
        live = kube.deployment(namespace, name)
        return live if is_true(live, "Ready") else None

    try:
        actual: Object = until(f"{namespace}/{name} to be Ready", probe, seconds=seconds)
    except TimeoutError as error:
        status = (kube.deployment(namespace, name) or {}).get("status")
        raise TimeoutError(f"{error}; status: {yaml.safe_dump(status)}") from None
    return actual
