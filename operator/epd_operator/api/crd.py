"""The CustomResourceDefinition, generated from the models and checked in as a file of the chart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator.api.deployment import DeepSeekV41Deployment
from epd_operator.api.names import CRD_NAME, GROUP, KIND, LIST_KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from epd_operator.api.schema import schema_of
from epd_operator.api.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE: Final = "charts/epd-operator/files/crd.yaml"
"""The checked-in file. Helm reads no folder outside of its chart, so it lies there; the plain manifests refer to it."""

_HEADER: Final = "# Generated from the models in epd_operator.api by `make generate`: edit those.\n"


def crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition as an object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": LIST_KIND,
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["epd"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def schema() -> dict[str, Any]:
    """The schema of the one version: spec as the user's models say it, status as the operator's."""
    root = schema_of(DeepSeekV41Deployment)
    properties = root["properties"]
    properties["apiVersion"] = {
        "type": "string",
        "description": "serving.epd.dev/v1alpha1",
    }
    properties["kind"] = {"type": "string", "description": KIND}
    # The API server owns metadata: a schema may only say that it is there, and restrict it by rules on the root.
    properties["metadata"] = {"type": "object"}
    # kstatus calls an object ready when nothing says otherwise; -1 differs from every generation.
    properties["status"] = {**schema_of(Status), "default": {"observedGeneration": -1}}
    root["required"] = ["metadata", "spec"]
    return root


def text() -> str:
    """The checked-in file."""
    return _HEADER + yaml.safe_dump(crd(), sort_keys=False, width=110, allow_unicode=True)


def _columns() -> list[dict[str, Any]]:
    ready = ".status.conditions[?(@.type=='Ready')]"
    return [
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason"},
        {"name": "Model", "type": "string", "jsonPath": ".status.effective.servedName"},
        {"name": "Encode", "type": "string", "jsonPath": ".status.roles.encode.summary"},
        {"name": "Prefill", "type": "string", "jsonPath": ".status.roles.prefill.summary"},
        {"name": "Decode", "type": "string", "jsonPath": ".status.roles.decode.summary"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def main(paths: Sequence[str]) -> None:
    """Write the file to every path, or to standard output when there is none."""
    for path in paths:
        Path(path).write_text(text(), encoding="utf-8")
    if not paths:
        sys.stdout.write(text())


if __name__ == "__main__":
    main(sys.argv[1:])
