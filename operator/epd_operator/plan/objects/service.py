"""Services: one for clients, one headless over the prefill pods, one for the server of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.plan.objects import swa_pool, swa_pool_server

if TYPE_CHECKING:
    from epd_operator.plan.render_context import RenderContext

_KIND = ("v1", "Service")


def services(context: RenderContext) -> list[dict[str, Any]]:
    """Every Service of a resource."""
    return [_client(context), _bootstrap(context), *_pool(context)]


def url(context: RenderContext) -> str:
    """Address of the client Service inside the cluster, independent of the cluster's DNS domain."""
    port = context.effective.router.service_port
    return f"http://{names.client_service(context.name)}.{context.namespace}.svc:{port}"


def _client(context: RenderContext) -> dict[str, Any]:
    router = context.effective.router
    return context.child(
        _KIND,
        names.client_service(context.name),
        names.ROUTER,
        annotations=router.service_annotations,
        spec={
            "type": router.service_type,
            "selector": names.selector(context.name, names.ROUTER),
            "ports": [_port("http", router.service_port, "http")],
        },
    )


def _bootstrap(context: RenderContext) -> dict[str, Any]:
    ports = context.profile.ports("prefill", context.effective.bootstrap_port)
    return context.child(
        _KIND,
        names.bootstrap_service(context.name),
        "prefill",
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            # Decode pods and registrars look at a prefill while it still starts.
            "publishNotReadyAddresses": True,
            # Those that follow a leader have no such label: they answer nobody.
            "selector": {**names.selector(context.name, "prefill"), names.LABEL_ROLE: "prefill"},
            "ports": [_port(port.name, port.number, port.name) for port in ports],
        },
    )


def _pool(context: RenderContext) -> list[dict[str, Any]]:
    """Where the engines find Valkey, or engines and stores their master; stores they find through the master."""
    return [
        context.child(
            _KIND,
            part.name,
            part.component,
            spec={
                "type": "ClusterIP",
                "selector": names.selector(context.name, part.component),
                "ports": [_port(port.name, port.first, port.name) for port in swa_pool_server.PORTS[part.program]],
            },
        )
        for part in swa_pool.parts(context)
        if part.component == names.SWA_POOL
    ]


def _port(name: str, number: int, target: str) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": target, "protocol": "TCP"}
