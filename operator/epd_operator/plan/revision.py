"""Identity: what a compatibility key and a revision are made of.

Both hash what the *user wrote*, reduced to what differs from the profile's defaults, never a rendered template: a new
operator release renders new templates, and must not thereby roll a pod.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epd_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from epd_operator.api.deployment import DeepSeekV41Deployment
    from epd_operator.engines import Profile
    from epd_operator.engines.effective import Effective, EffectiveSwaPool

REVISION_DIGITS = 8
COMPAT_KEY_DIGITS = 16


@dataclass(frozen=True)
class Identity:
    """Names of what should serve.

    Attributes:
        compat_key: 16 hex digits over everything that prefill, decode and encode must agree on.
        revisions: Part -> 8 hex digits over everything that shapes its pods; every declared role, `router`, and what a
            pool of windows has of its own.
        set_revision: 8 hex digits over the roles' revisions.
    """

    compat_key: str
    revisions: Mapping[str, str]
    set_revision: str


def identify(document: DeepSeekV41Deployment, effective: Effective, profile: Profile) -> Identity:
    """Compute the identity of a valid resource."""
    compat_key = _digest(_agreement(document, effective, profile), COMPAT_KEY_DIGITS)
    roles: dict[str, str] = {
        name: _digest(_role_inputs(document, effective, profile, name, compat_key), REVISION_DIGITS)
        for name in effective.roles
    }
    others = {names.ROUTER: _router_inputs(document, effective), **_pool_inputs(effective.swa_pool)}
    revisions = {**roles, **{part: _digest(inputs, REVISION_DIGITS) for part, inputs in others.items()}}
    return Identity(compat_key, revisions, _digest(roles, REVISION_DIGITS))


def single_worker(effective: Effective) -> bool:
    """Whether every request meets the same prefill or the same decode pod.

    The only thing about counts that the router's flags depend on: any other change of a count must not roll a router.
    """
    return min(effective.roles["prefill"].replicas, effective.roles["decode"].replicas) <= 1


def _agreement(document: DeepSeekV41Deployment, effective: Effective, profile: Profile) -> dict[str, Any]:
    """What all roles must agree on (the K inputs)."""
    return {
        "engine": {
            "type": effective.engine_type,
            "version": effective.engine_version,
            "platform": effective.platform,
            # Absent for the release's own image: which one that is, the stored pod templates say.
            "image": effective.image,
            "pluginImage": document.spec.engine.plugin_image,
        },
        "model": {
            "path": effective.model_path,
            "revision": effective.model_revision,
            "servedName": effective.served_name,
            "source": _written(document.spec.model.source),
        },
        "transfer": {
            "backend": effective.transfer_backend,
            "bootstrapPort": effective.bootstrap_port,
            "checksum": document.spec.transfer.checksum or None,
        },
        "plugins": sorted(document.spec.engine.plugins),
        "flags": _flags(document, effective, profile),
    }


def _flags(document: DeepSeekV41Deployment, effective: Effective, profile: Profile) -> dict[str, Any]:
    """What the engine asks the roles to agree on, by name; a value that differs by role is named once for each."""
    held: dict[str, dict[str, Any]] = {}
    for role, settings in effective.roles.items():
        for name, value in profile.identity(document.spec, role, settings.args).items():
            held.setdefault(name, {})[role] = value
    return {
        name: next(iter(by_role.values())) if len(set(map(repr, by_role.values()))) == 1 else by_role
        for name, by_role in held.items()
    }


def _role_inputs(
    document: DeepSeekV41Deployment,
    effective: Effective,
    profile: Profile,
    name: names.RoleName,
    compat_key: str,
) -> dict[str, Any]:
    """What shapes one role's pods (its K and R inputs)."""
    written = document.spec.roles.declared()[name]
    catalogue = profile.args(name)
    pool = effective.swa_pool if name == "prefill" and profile.reads_pool(name, exists=True) else None
    return {
        "role": name,
        "compatKey": compat_key,
        # A flag that a profile of a lower version does not know has no default to compare with.
        "args": {
            name: value
            for name, value in written.args.items()
            if (flag := catalogue.find(name)) is None or value != flag.default
        },
        "env": dict(effective.roles[name].env),
        "secretEnv": {key: _written(value) for key, value in written.secret_env.items()},
        "resources": _written(written.resources),
        "nodes": written.nodes if written.nodes > 1 else None,
        "hostNetwork": written.host_network or None,
        "pod": _written(written.pod),
        # The mode alone: the rest of a pool's settings are in a file that the pods read again when it changes.
        "swaPool": None if pool is None else pool.mode,
    }


def _pool_inputs(pool: EffectiveSwaPool | None) -> dict[str, dict[str, Any]]:
    """What shapes the pods of a pool, by part; its lifetimes and its number of stores shape none."""
    if pool is None or pool.mode == "InProcess":
        return {}
    shared = {"mode": pool.mode, "pod": _written(pool.pod)}
    holding = {**shared, "memory": pool.memory_bytes}
    if pool.mode == "Valkey":
        return {names.SWA_POOL: holding}
    return {names.SWA_POOL: shared, names.SWA_POOL_STORE: holding}


def _router_inputs(document: DeepSeekV41Deployment, effective: Effective) -> dict[str, Any]:
    router = document.spec.router
    return {
        "image": router.image,
        "policy": [effective.router.prefill_policy, effective.router.decode_policy],
        "requestTimeoutSeconds": effective.router.request_timeout_seconds,
        "maxConcurrentRequests": effective.router.max_concurrent_requests,
        "resources": _written(router.resources),
        "apiKeySecret": _written(router.api_key_secret),
        "singleWorker": single_worker(effective),
        "drainSeconds": effective.longest_grace_seconds,
    }


def _written(model: BaseModel | None) -> Any:
    return None if model is None else model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _digest(inputs: Any, digits: int) -> str:
    canonical = json.dumps(_without_empty(inputs), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


def _without_empty(value: Any) -> Any:
    """Drop absent and empty parts, so that a field that a later release adds does not change old hashes."""
    if isinstance(value, dict):
        kept = {key: _without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None and inner not in ({}, [])}
    return value
