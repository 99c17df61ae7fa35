"""Where pods may run, as a user wishes it: shared by the roles and the servers of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.api.pod import PodPlacement

_FIELDS: Final = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
)


def placement(
    pod: PodPlacement, own: Mapping[str, str], tolerations: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """The part of a pod spec that says where its pods may run.

    Args:
        pod: What the user wishes.
        own: Labels that all of these pods have; a spread that selects nothing else selects them.
        tolerations: Taints that they accept besides.
    """
    written = pod.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    result = {field: written[field] for field in _FIELDS if written.get(field)}
    accepted = [*result.get("tolerations", ()), *tolerations]
    if accepted:
        result["tolerations"] = accepted
    selected = {"labelSelector": {"matchLabels": dict(own)}}
    spread = [{**selected, **constraint} for constraint in written.get("topologySpreadConstraints", ())]
    return {**result, **({"topologySpreadConstraints": spread} if spread else {})}


def metadata(pod: PodPlacement, labels: Mapping[str, str]) -> dict[str, Any]:
    """Labels and annotations of pods; ours win."""
    result: dict[str, Any] = {"labels": {**pod.labels, **labels}}
    return {**result, "annotations": dict(pod.annotations)} if pod.annotations else result
