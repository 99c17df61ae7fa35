"""The policies as files: for the chart, which adds names and bindings of a release, and for plain manifests."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator import __version__
from epd_operator.admission.policy import binding, policies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILES: Final = {
    "charts/epd-operator/files/admission.yaml": "chart",
    "manifests/install/admission.yaml": "install",
}
"""Where the files are in the repository."""

_HEADER: Final = "# Generated from the rules in epd_operator.engines by `make generate`: edit those.\n"
_INSTANCE: Final = "epd-operator"


class _Dumper(yaml.CSafeDumper):
    """Writes text of several lines as such."""


def _represent(dumper: yaml.representer.BaseRepresenter, text: str) -> yaml.nodes.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def texts() -> Mapping[str, str]:
    """The content of every file by its path."""
    made = policies()
    return {path: _text(made if kind == "chart" else _installed(made)) for path, kind in FILES.items()}


def _text(documents: Iterable[Mapping[str, Any]]) -> str:
    dumped = (
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=2**31 - 1, allow_unicode=True)
        for document in documents
    )
    return _HEADER + "---\n".join(dumped)


def _installed(made: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects of the release that the plain manifests install."""
    documents = []
    for one in made:
        policy = copy.deepcopy(one)
        policy["metadata"]["name"] = f"{_INSTANCE}-{one['metadata']['name']}"
        documents += [policy, binding(policy)]
    for document in documents:
        document["metadata"]["labels"] = {
            "app.kubernetes.io/part-of": "epd",
            "app.kubernetes.io/version": __version__,
            "app.kubernetes.io/name": "epd-operator",
            "app.kubernetes.io/instance": _INSTANCE,
        }
    return documents
