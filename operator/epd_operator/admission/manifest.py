"""The policies as a file of the chart, and what puts them into force where there is no chart.

The chart adds names, labels and bindings of a release by itself. The plain manifests take the chart's file through
kustomize, which adds a name's prefix and labels; the bindings are theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator import __version__
from epd_operator.admission.policy import binding, policies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

POLICIES: Final = "charts/epd-operator/files/admission.yaml"
BINDINGS: Final = "manifests/install/bindings.yaml"

_HEADER: Final = "# Generated from the rules in epd_operator.engines by `make generate`: edit those.\n"
INSTANCE: Final = "epd-operator"
"""The release that the plain manifests install."""


class _Dumper(yaml.CSafeDumper):
    """Writes text of several lines as such."""


def _represent(dumper: yaml.representer.BaseRepresenter, text: str) -> yaml.nodes.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def texts() -> Mapping[str, str]:
    """The content of both files by their paths in the repository."""
    made = policies()
    return {POLICIES: _text(made), BINDINGS: _text(map(_installed, made))}


def _text(documents: Iterable[Mapping[str, Any]]) -> str:
    dumped = (
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=2**31 - 1, allow_unicode=True)
        for document in documents
    )
    return _HEADER + "---\n".join(dumped)


def _installed(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The binding to a policy of the release that the plain manifests install."""
    bound = binding({"metadata": {"name": f"{INSTANCE}-{policy['metadata']['name']}"}})
    bound["metadata"]["labels"] = {
        "app.kubernetes.io/part-of": "epd",
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/name": "epd-operator",
        "app.kubernetes.io/instance": INSTANCE,
    }
    return bound
