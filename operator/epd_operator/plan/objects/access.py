"""Who the pods are: engines are nobody, a registrar may read the pods of its namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names

if TYPE_CHECKING:
    from epd_operator.plan.render_context import RenderContext

_RBAC = "rbac.authorization.k8s.io"


def accounts(context: RenderContext) -> list[dict[str, Any]]:
    """ServiceAccounts, Role and RoleBinding, in the order in which they refer to each other."""
    return [
        _account(context, names.engine_account(context.name), "engine"),
        _account(context, names.router(context.name), names.ROUTER),
        context.child(
            (f"{_RBAC}/v1", "Role"),
            names.router(context.name),
            names.ROUTER,
            rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
        ),
        context.child(
            (f"{_RBAC}/v1", "RoleBinding"),
            names.router(context.name),
            names.ROUTER,
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": names.router(context.name)},
            subjects=[{"kind": "ServiceAccount", "name": names.router(context.name), "namespace": context.namespace}],
        ),
    ]


def _account(context: RenderContext, name: str, part: str) -> dict[str, Any]:
    # Pull secrets stand here and not in the pod templates: changing them rolls no pod, and new pods get them.
    secrets = [{"name": secret} for secret in context.effective.image_pull_secrets]
    body: dict[str, Any] = {"automountServiceAccountToken": False}
    if secrets:
        body["imagePullSecrets"] = secrets
    return context.child(("v1", "ServiceAccount"), name, part, **body)
