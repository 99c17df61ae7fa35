"""NetworkPolicies: clients reach the router only, the roles of one resource talk among themselves and to their pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names
from epd_operator.plan.objects import configuration, swa_pool, swa_pool_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.render_context import RenderContext

SCRAPE_LABEL = f"{names.GROUP}/scrape"
"""Namespaces labelled with this key and the value "true" may read metrics."""

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# An image URL must not reach a cloud's instance metadata, which hands out credentials.
_LINK_LOCAL_4 = "169.254.0.0/16"
_LINK_LOCAL_6 = ("fe80::/10", "fd00:ec2::/32")

# An encoder fetches whatever address it is handed, so only those may hand it one that clients cannot speak to.
_PEERS: Final[Mapping[names.RoleName, tuple[names.RoleName, ...]]] = {
    "encode": ("prefill",),
    "prefill": ("encode", "prefill", "decode"),
    "decode": ("prefill", "decode"),
}


def policies(context: RenderContext) -> list[dict[str, Any]]:
    """One policy for each declared role, each server of a pool and the router; none when the spec turns them off.

    Pods on their nodes' network are beyond the reach of a policy, on both sides: it neither holds them nor can it name
    them as peers. So once a role is there, neither the roles nor their pool have policies, or they could not talk to
    it.
    """
    if not context.effective.network_policy:
        return []
    inner = [] if context.effective.host_network else [*_roles(context), *_pool(context)]
    return [*inner, _policy(context, names.ROUTER, _router_rules(context))]


def _roles(context: RenderContext) -> list[dict[str, Any]]:
    return [_policy(context, role, _engine_rules(context, role)) for role in context.effective.roles]


def _pool(context: RenderContext) -> list[dict[str, Any]]:
    """A pool has neither passwords nor encryption: that nobody else reaches it is all that guards it."""
    parts = swa_pool.parts(context)
    among = _pods(context, [part.component for part in parts])
    users = _pods(context, _users(context))
    return [
        _policy(
            context,
            part.component,
            {
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [
                    # A single server has no other to talk to.
                    {"from": [users, among] if len(parts) > 1 else [users], "ports": _reached(part)},
                    {
                        "from": [_scrapers()],
                        "ports": [_tcp(number) for number in swa_pool_server.METRICS[part.program]],
                    },
                ],
                "egress": [_DNS, {"to": [among]}] if len(parts) > 1 else [],
            },
        )
        for part in parts
    ]


def _users(context: RenderContext) -> list[names.RoleName]:
    """Roles whose pods may use the pool, in their usual order."""
    return [role for role in context.effective.roles if configuration.is_read(context, role)]


def _policy(context: RenderContext, part: str, rules: dict[str, Any]) -> dict[str, Any]:
    return context.child(
        ("networking.k8s.io/v1", "NetworkPolicy"),
        names.component(context.name, part),
        part,
        spec={"podSelector": {"matchLabels": names.selector(context.name, part)}, **rules},
    )


def _router_rules(context: RenderContext) -> dict[str, Any]:
    operator = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: context.settings.operator_namespace}}}
    return {
        # No egress rules: the address and port of the API server, which the registrar watches, differ by cluster.
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [_tcp(names.CLIENT_PORT)]},
            {"from": [operator], "ports": [_tcp(names.REGISTRAR_PORT)]},
            {"from": [_scrapers()], "ports": [_tcp(names.ROUTER_METRICS_PORT), _tcp(names.REGISTRAR_PORT)]},
        ],
    }


def _engine_rules(context: RenderContext, role: names.RoleName) -> dict[str, Any]:
    ports = context.profile.ports(role, context.effective.bootstrap_port)
    router = {"podSelector": {"matchLabels": names.selector(context.name, names.ROUTER)}}
    engines = _pods(context, [peer for peer in context.effective.roles if peer in _PEERS[role]])
    egress: list[dict[str, Any]] = [_DNS, {"to": [engines]}]
    if role in _users(context):
        egress += [
            {"to": [_pods(context, [part.component])], "ports": _reached(part)} for part in swa_pool.parts(context)
        ]
    if context.effective.fetches:
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


def _pods(context: RenderContext, parts: Sequence[str]) -> dict[str, Any]:
    """The pods of some parts of this resource."""
    chosen = {"key": names.LABEL_COMPONENT, "operator": "In", "values": list(parts)}
    return {"podSelector": {"matchLabels": names.selector(context.name), "matchExpressions": [chosen]}}


def _reached(part: swa_pool.Part) -> list[dict[str, Any]]:
    return [
        _tcp(port.first) if port.first == port.last else {**_tcp(port.first), "endPort": port.last}
        for port in swa_pool_server.PORTS[part.program]
    ]


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


_DNS: Final = {"ports": [{"port": 53, "protocol": "UDP"}, _tcp(53)]}
