"""Everything that a renderer may read, in one value: the resource, its effective meaning and its identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epd_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.deployment import DeepSeekV41Deployment
    from epd_operator.engines import Profile
    from epd_operator.engines.effective import Effective
    from epd_operator.plan.observation import Settings
    from epd_operator.plan.revision import Identity
    from epd_operator.rules.judgement import Judgement


@dataclass(frozen=True)
class RenderContext:
    """One resource under one profile, ready to be rendered.

    Attributes:
        document: What the user wrote.
        effective: What it means once defaults are filled in.
        profile: Facts about its engine.
        identity: Compatibility key and revisions.
        settings: The operator installation.
        engine_image: Image of the engine containers: the user's, the one a running set has, or the release's.
        judgement: What the rules said of the spec.
    """

    document: DeepSeekV41Deployment
    effective: Effective
    profile: Profile
    identity: Identity
    settings: Settings
    engine_image: str
    judgement: Judgement

    @property
    def name(self) -> str:
        """Name of the custom resource, and label value of everything that belongs to it."""
        return self.document.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the custom resource and of every child."""
        return self.document.metadata.namespace

    def child(
        self,
        kind: tuple[str, str],
        name: str,
        part: str,
        *,
        annotations: Mapping[str, str] | None = None,
        **body: Any,
    ) -> dict[str, Any]:
        """A child that belongs to no revision.

        Args:
            kind: ApiVersion and kind.
            name: Its name.
            part: A role, `router`, or another name for what it serves.
            annotations: Its annotations, if any.
            body: Everything beside apiVersion, kind and metadata.
        """
        child = self._object(kind, name, names.labels(self.name, part), body)
        if annotations:
            child["metadata"]["annotations"] = dict(annotations)
        return child

    @property
    def written(self) -> dict[str, Any]:
        """The spec as the user wrote it, with `metadata.name` beside it."""
        spec = self.document.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**spec, "metadata": {"name": self.name}}

    def revised(self, kind: tuple[str, str], name: str, part: str, **body: Any) -> dict[str, Any]:
        """A child that carries the part's revision; arguments as for `child`."""
        return self._object(kind, name, self.pod_labels(part), body)

    def pod_labels(self, part: str) -> dict[str, str]:
        """Labels of a part's pods and of what makes them."""
        compat_key = self.identity.compat_key if part in names.ROLES else ""
        return names.labels(self.name, part, revision=self.identity.revisions[part], compat_key=compat_key)

    def _object(
        self, kind: tuple[str, str], name: str, labels: Mapping[str, str], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(labels),
            "ownerReferences": [dict(names.owner_reference(self.name, self.document.metadata.uid))],
        }
        return {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, **body}
