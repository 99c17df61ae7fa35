"""Kubernetes Events, posted when a condition turns over and at no other time."""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api.names import API_VERSION, KIND, MANAGER
from epd_operator.kube import ApiError, Cluster
from epd_operator.kube.kind import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epd_operator.plan import Event

log = logging.getLogger(__name__)

NOTE_LIMIT: Final = 1024
"""Bytes that the API server accepts in an Event's note."""


async def post(cluster: Cluster, custom: Mapping[str, Any], events: Iterable[Event], identity: str) -> None:
    """Create the Events; a failure is logged and forgotten, because the status says the same."""
    for event in events:
        try:
            await cluster.create(EVENT, body(custom, event, identity, datetime.now(UTC)))
        except ApiError as error:
            log.warning("event not posted", extra={"reason": event.reason, "error": str(error)})


def body(custom: Mapping[str, Any], event: Event, identity: str, now: datetime) -> dict[str, Any]:
    """The Event object about a custom resource."""
    metadata = custom["metadata"]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"serving.epd.dev/{MANAGER}",
        "reportingInstance": identity[:128],
        "action": "Reconcile",
        "type": event.type,
        "reason": event.reason,
        "note": event.message.encode()[:NOTE_LIMIT].decode(errors="ignore"),
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
    }
