"""The part of a pod that a user may shape: an allow-list, never a whole pod template.

Left out on purpose: host paths, host namespaces, privileges, service accounts, init containers. Whoever may create a
DeepSeekV41Deployment must not gain more through the operator than through a pod of their own.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from epd_operator.api.marker import CelRule, ListType
from epd_operator.api.scalar import (
    AbsolutePath,
    AnnotationMap,
    AtomicTexts,
    Base,
    ImageReference,
    Key,
    Label,
    LabelMap,
    ObjectName,
    OpenObject,
    Quantity,
    RelativePath,
    Text,
)

_OWNED_PREFIXES = ("app.kubernetes.io/", "serving.epd.dev/")
_OWNED_VOLUMES = "epd-"
_SOURCES = ("configMap", "emptyDir", "image", "persistentVolumeClaim", "secret")


class Toleration(Base):
    """A taint that the pods accept."""

    key: Text | None = None
    """Taint key; absent with operator Exists accepts every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """Exists or Equal (Kubernetes' default)."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Taint value for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent accepts all effects."""
    toleration_seconds: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """Seconds that a pod stays on a node after a NoExecute taint."""


class TopologySpread(Base):
    """How evenly the pods are spread; selects the same pods unless labelSelector is given."""

    max_skew: Annotated[int, Field(ge=1, le=1000)]
    """Largest allowed difference between two domains."""
    topology_key: Text
    """Node label that names the domain, such as topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What to do when the skew cannot be kept."""
    label_selector: OpenObject | None = None
    """Pods that count (a Kubernetes LabelSelector)."""
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Smallest number of domains."""
    match_label_keys: AtomicTexts = Field(default_factory=list)
    """Pod labels whose values are added to the selector."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes excluded by affinity count."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether tainted nodes count."""


class KeyToPath(Base):
    """One key of a ConfigMap or Secret, as a file."""

    key: Key
    """Key to project."""
    path: RelativePath
    """File name below the mount."""
    mode: Annotated[int, Field(ge=0, le=0o777)] | None = None
    """Permission bits (decimal)."""


class ConfigMapVolume(Base):
    """Files from a ConfigMap of the same namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    items: Annotated[list[KeyToPath], Field(max_length=16), ListType("atomic")] = Field(default_factory=list)
    """Keys to project; all when empty."""
    default_mode: Annotated[int, Field(ge=0, le=0o777)] | None = None
    """Permission bits (decimal)."""
    optional: bool | None = None
    """Start without it when it does not exist."""


class SecretVolume(Base):
    """Files from a Secret of the same namespace; the operator never reads it."""

    secret_name: ObjectName
    """Name of the Secret."""
    items: Annotated[list[KeyToPath], Field(max_length=16), ListType("atomic")] = Field(default_factory=list)
    """Keys to project; all when empty."""
    default_mode: Annotated[int, Field(ge=0, le=0o777)] | None = None
    """Permission bits (decimal)."""
    optional: bool | None = None
    """Start without it when it does not exist."""


class EmptyDirVolume(Base):
    """Scratch space that lives as long as the pod."""

    medium: Literal["Memory"] | None = None
    """Memory for a tmpfs, which counts against the memory limit; absent for the node's disk."""
    size_limit: Quantity | None = None
    """Largest size."""


class ClaimVolume(Base):
    """A PersistentVolumeClaim of the same namespace."""

    claim_name: ObjectName
    """Name of the claim."""
    read_only: bool | None = None
    """Mount it read-only."""


class ImageVolume(Base):
    """An OCI image mounted as read-only files."""

    reference: ImageReference
    """Image reference."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When to pull it."""


class Volume(Base):
    """A volume of one of the allowed kinds."""

    name: Label
    """Name that volumeMounts refer to."""
    config_map: ConfigMapVolume | None = None
    """Files from a ConfigMap."""
    empty_dir: EmptyDirVolume | None = None
    """Scratch space."""
    image: ImageVolume | None = None
    """An OCI image as files."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim of the same namespace."""
    secret: SecretVolume | None = None
    """Files from a Secret."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            f"[{', '.join(f'has(self.{kind})' for kind in _SOURCES)}].filter(given, given).size() == 1",
            f"a volume has exactly one of {', '.join(_SOURCES)}: keep one, and use several volumes for several",
            lambda volume: sum(kind in volume for kind in _SOURCES) == 1,
        ),
        CelRule(
            f"!self.name.startsWith('{_OWNED_VOLUMES}')",
            f"volumes whose names start with '{_OWNED_VOLUMES}' belong to the operator: use another name",
            lambda volume: not volume["name"].startswith(_OWNED_VOLUMES),
        ),
    )


class VolumeMount(Base):
    """Where a volume appears in the engine's container."""

    name: Label
    """Name of a volume in `volumes`."""
    mount_path: AbsolutePath
    """Absolute path in the container."""
    sub_path: RelativePath | None = None
    """Path inside the volume; its root when absent."""
    read_only: bool | None = None
    """Mount it read-only."""


class PodPlacement(Base):
    """Where pods run, and their metadata."""

    node_selector: LabelMap = Field(default_factory=dict)
    """Node labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32), ListType("atomic")] = Field(default_factory=list)
    """Taints that the pods accept."""
    affinity: OpenObject | None = None
    """Kubernetes affinity, as in a pod spec."""
    topology_spread_constraints: Annotated[
        list[TopologySpread], Field(max_length=8), ListType("map", ("topologyKey", "whenUnsatisfiable"))
    ] = Field(default_factory=list)
    """How evenly the pods are spread."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods; the cluster's default when absent."""
    labels: Annotated[
        LabelMap,
        CelRule(
            " && ".join(f"self.all(key, !key.startsWith('{prefix}'))" for prefix in _OWNED_PREFIXES),
            f"labels under {' and '.join(_OWNED_PREFIXES)} belong to the operator: use a prefix of your own",
            lambda labels: not any(key.startswith(_OWNED_PREFIXES) for key in labels),
        ),
    ] = Field(default_factory=dict)
    """Extra pod labels."""
    annotations: AnnotationMap = Field(default_factory=dict)
    """Extra pod annotations."""


class PodOverrides(PodPlacement):
    """Scheduling, volumes and metadata of a role's pods."""

    volumes: Annotated[list[Volume], Field(max_length=32), ListType("map", ("name",))] = Field(default_factory=list)
    """Extra volumes: configMap, emptyDir, image, persistentVolumeClaim or secret."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=32), ListType("map", ("mountPath",))] = Field(
        default_factory=list
    )
    """Where the extra volumes appear."""
    termination_grace_period_seconds: Annotated[int, Field(ge=10, le=86400)] | None = None
    """Time to finish running requests after SIGTERM; default by engine (Reference: 60)."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes) && "
            "self.volumes.exists(volume, volume.name == mount.name))",
            "volumeMounts must name a volume of `volumes` beside it: add the volume, or correct the name",
            lambda pod: (
                {mount["name"] for mount in pod.get("volumeMounts", [])}
                <= {volume["name"] for volume in pod.get("volumes", [])}
            ),
        ),
    )
