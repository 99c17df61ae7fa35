"""`epd render`: every child object, in the order in which the operator would apply it, without a cluster."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml
from typing_extensions import override

from epd_operator import __version__
from epd_operator.cli import refusal
from epd_operator.cli.terminal import clean, write
from epd_operator.plan import Observed, Plan, Settings, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_operator.cli.document import Document

UID: Final = "00000000-0000-0000-0000-000000000000"
"""Stands for the uid that the API server gives to the object, in the ownerReferences of its children."""

_NOTE: Final = (
    f"# Made by `epd render` {__version__} for reading and comparing. The operator makes these objects itself:\n"
    "# the uid in their ownerReferences is a placeholder here.\n"
)


@dataclass(frozen=True)
class Options:
    """What is rendered with.

    Attributes:
        output: Form of the answer.
        namespace: For objects that name none.
        router_image: Of router pods without an image of their own; default as installed.
        worker_image: Of Reference engine pods without an image of their own; default as installed.
    """

    output: Literal["yaml", "json"] = "yaml"
    namespace: str | None = None
    router_image: str | None = None
    worker_image: str | None = None


class _Dumper(yaml.CSafeDumper):
    """Writes every object in full: nobody reads through aliases."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


def show(paths: Sequence[str], options: Options) -> int:
    """Print the children of every object in files and folders; the exit status."""
    result, status = refusal.accepted(paths)
    objects: list[dict[str, Any]] = []
    for document in result:
        planned = planned_for(document, options)
        if planned.objects:
            objects += planned.objects
        else:
            status = max(status, _refused(document, planned))
    if options.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    elif objects:
        print(_NOTE + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True), end="")
    return status


def planned_for(document: Document, options: Options) -> Plan:
    """The plan for one object on a cluster that holds nothing of it yet."""
    nothing = Observed(
        children=(), pods=(), routers=(), conflicts=(), failures=(), now=datetime.fromtimestamp(0, tz=UTC)
    )
    return plan(stored(document, options), nothing, _settings(options))


def stored(document: Document, options: Options) -> dict[str, Any]:
    """The object with what the API server would have added to it."""
    metadata = document.data.get("metadata")
    named = dict(metadata) if isinstance(metadata, dict) else {}
    return {
        **document.data,
        "metadata": {
            **named,
            "namespace": options.namespace or named.get("namespace") or "default",
            "uid": named.get("uid") or UID,
            "generation": named.get("generation") or 1,
        },
    }


def _settings(options: Options) -> Settings:
    """The installation's settings, from the same variables that the operator reads."""

    def image(given: str | None, part: str) -> str:
        return given or os.environ.get(f"EPD_{part.upper()}_IMAGE") or f"epd-{part}:{__version__}"

    return Settings(
        router_image=image(options.router_image, "router"),
        worker_image=image(options.worker_image, "worker"),
        version=__version__,
    )


def _refused(document: Document, planned: Plan) -> int:
    conditions = planned.status.get("conditions") or ()
    message = next((entry["message"] for entry in conditions if entry["type"] == "Valid"), "nothing to make")
    write(clean(f"epd: {document.source.name}: {document.label}: {message}"), sys.stderr)
    return 1
