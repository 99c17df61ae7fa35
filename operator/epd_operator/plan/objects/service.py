"""Services: one for clients, one headless over the prefill pods, one for the server of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.plan.objects import swa_pool, swa_pool_server

if TYPE_CHECKING:
    from epd_operator.plan.render_context import Scope

_KIND = ("v1", "Service")


def services(scope: Scope) -> list[dict[str, Any]]:
    """Every Service of a resource."""
    return [_client(scope), _bootstrap(scope), *_pool(scope)]


def url(scope: Scope) -> str:
    """Address of the client Service inside the cluster, whatever the cluster's DNS domain is."""
    port = scope.effective.router.service_port
    return f"http://{names.client_service(scope.name)}.{scope.namespace}.svc:{port}"


def _client(scope: Scope) -> dict[str, Any]:
    router = scope.effective.router
    return scope.child(
        _KIND,
        names.client_service(scope.name),
        names.ROUTER,
        annotations=router.service_annotations,
        spec={
            "type": router.service_type,
            "selector": names.selector(scope.name, names.ROUTER),
            "ports": [_port("http", router.service_port, "http")],
        },
    )


def _bootstrap(scope: Scope) -> dict[str, Any]:
    ports = scope.profile.ports("prefill", scope.effective.bootstrap_port)
    return scope.child(
        _KIND,
        names.bootstrap_service(scope.name),
        "prefill",
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            # Decode pods and registrars look at a prefill while it still starts.
            "publishNotReadyAddresses": True,
            # Those that follow a leader have no such label: they answer nobody.
            "selector": {**names.selector(scope.name, "prefill"), names.LABEL_ROLE: "prefill"},
            "ports": [_port(port.name, port.number, port.name) for port in ports],
        },
    )


def _pool(scope: Scope) -> list[dict[str, Any]]:
    """Where the engines find Valkey, or engines and stores their master; stores they find through the master."""
    return [
        scope.child(
            _KIND,
            part.name,
            part.component,
            spec={
                "type": "ClusterIP",
                "selector": names.selector(scope.name, part.component),
                "ports": [_port(port.name, port.first, port.name) for port in swa_pool_server.PORTS[part.program]],
            },
        )
        for part in swa_pool.parts(scope)
        if part.component == names.SWA_POOL
    ]


def _port(name: str, number: int, target: str) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": target, "protocol": "TCP"}
