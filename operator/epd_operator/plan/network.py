"""NetworkPolicies: clients reach the router only, the roles of one resource talk among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names

if TYPE_CHECKING:
    from epd_operator.plan.scope import Scope

SCRAPE_LABEL = f"{names.GROUP}/scrape"
"""Namespaces labelled with this key and the value "true" may read metrics."""

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# An image URL must not reach a cloud's instance metadata, which hands out credentials.
_LINK_LOCAL_4 = "169.254.0.0/16"
_LINK_LOCAL_6 = ("fe80::/10", "fd00:ec2::/32")


def policies(scope: Scope) -> list[dict[str, Any]]:
    """One policy for each declared role and one for the router; none when the spec turns them off.

    Pods on their nodes' network are beyond the reach of a policy, on both sides: it neither holds them nor can it name
    them as peers. So once a role is there, the roles have no policies, or the others could not talk to it.
    """
    if not scope.effective.network_policy:
        return []
    roles = (
        []
        if scope.effective.host_network
        else [_policy(scope, role, _engine_rules(scope, role)) for role in scope.effective.roles]
    )
    return [*roles, _policy(scope, names.ROUTER, _router_rules(scope))]


def _policy(scope: Scope, part: str, rules: dict[str, Any]) -> dict[str, Any]:
    return scope.child(
        ("networking.k8s.io/v1", "NetworkPolicy"),
        names.component(scope.name, part),
        part,
        spec={"podSelector": {"matchLabels": names.selector(scope.name, part)}, **rules},
    )


def _router_rules(scope: Scope) -> dict[str, Any]:
    operator = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: scope.settings.operator_namespace}}}
    return {
        # No egress rules: the address and port of the API server, which the registrar watches, differ by cluster.
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [_tcp(names.CLIENT_PORT)]},
            {"from": [operator], "ports": [_tcp(names.REGISTRAR_PORT)]},
            {"from": [_scrapers()], "ports": [_tcp(names.ROUTER_METRICS_PORT), _tcp(names.REGISTRAR_PORT)]},
        ],
    }


def _engine_rules(scope: Scope, role: names.RoleName) -> dict[str, Any]:
    ports = scope.profile.ports(role, scope.effective.bootstrap_port)
    router = {"podSelector": {"matchLabels": names.selector(scope.name, names.ROUTER)}}
    engines = {
        "podSelector": {
            "matchLabels": names.selector(scope.name),
            "matchExpressions": [
                {"key": names.LABEL_COMPONENT, "operator": "In", "values": list(scope.effective.roles)}
            ],
        }
    }
    egress: list[dict[str, Any]] = [
        {"ports": [{"port": 53, "protocol": "UDP"}, _tcp(53)]},
        {"to": [engines]},
    ]
    if scope.effective.fetches:
        egress.append(_web())
    return {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [router], "ports": [_tcp(port.number) for port in ports]},
            # Any port: transfer back ends choose theirs when they bind.
            {"from": [engines]},
            {"from": [_scrapers()], "ports": [_tcp(names.HTTP_PORT)]},
        ],
        "egress": egress,
    }


def _web() -> dict[str, Any]:
    """Out to the addresses of pictures and to a hub with weights."""
    return {
        "to": [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": [_LINK_LOCAL_4]}},
            {"ipBlock": {"cidr": "::/0", "except": list(_LINK_LOCAL_6)}},
        ],
        "ports": [_tcp(80), _tcp(443)],
    }


def _scrapers() -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {SCRAPE_LABEL: "true"}}}


def _tcp(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
