"""Who the pods are: engines are nobody, a registrar may read the pods of its namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names

if TYPE_CHECKING:
    from epd_operator.plan.render_context import Scope

_RBAC = "rbac.authorization.k8s.io"


def accounts(scope: Scope) -> list[dict[str, Any]]:
    """ServiceAccounts, Role and RoleBinding, in the order in which they refer to each other."""
    return [
        _account(scope, names.engine_account(scope.name), "engine"),
        _account(scope, names.router(scope.name), names.ROUTER),
        scope.child(
            (f"{_RBAC}/v1", "Role"),
            names.router(scope.name),
            names.ROUTER,
            rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
        ),
        scope.child(
            (f"{_RBAC}/v1", "RoleBinding"),
            names.router(scope.name),
            names.ROUTER,
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": names.router(scope.name)},
            subjects=[{"kind": "ServiceAccount", "name": names.router(scope.name), "namespace": scope.namespace}],
        ),
    ]


def _account(scope: Scope, name: str, part: str) -> dict[str, Any]:
    # Pull secrets stand here and not in the pod templates: changing them rolls no pod, and new pods get them.
    secrets = [{"name": secret} for secret in scope.effective.image_pull_secrets]
    body: dict[str, Any] = {"automountServiceAccountToken": False}
    if secrets:
        body["imagePullSecrets"] = secrets
    return scope.child(("v1", "ServiceAccount"), name, part, **body)
