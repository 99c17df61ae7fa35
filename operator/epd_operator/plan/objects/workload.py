"""The pods of one role at one revision, and what makes them, from the engine's profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.engines import CommandInputs
from epd_operator.plan.objects import configuration, device, leader_worker_set, plugin, security
from epd_operator.plan.objects.expansion import literal
from epd_operator.plan.objects.placement import metadata, placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.engines.effective import EffectiveRole
    from epd_operator.plan.render_context import RenderContext

CONTAINER = "engine"
_WEIGHTS_VOLUME = "epd-weights"
_START_MARGIN_SECONDS = 300  # scheduling and pulling an image, on top of the engine's own start


def workload(context: RenderContext, role: EffectiveRole, templates: Mapping[str, Any]) -> dict[str, Any]:
    """The object that makes a role's pods: a Deployment, or a LeaderWorkerSet where an engine spans pods.

    Args:
        context: The resource.
        role: One of its roles.
        templates: What `pod_templates` gave, now or for an earlier release.
    """
    return (
        leader_worker_set.leader_worker_set(context, role, templates)
        if role.nodes > 1
        else _deployment(context, role, templates)
    )


def fields(role: EffectiveRole) -> tuple[str, ...]:
    """Names of the templates that `pod_templates` gives for a role."""
    return ("template", "workerTemplate") if role.nodes > 1 else ("template",)


def pod_templates(context: RenderContext, role: EffectiveRole) -> dict[str, Any]:
    """Every pod template of a role as this release renders it: of the pods that lead, and of those that follow."""
    return {field: _pod_template(context, role, leads=field == "template") for field in fields(role)}


def _deployment(context: RenderContext, role: EffectiveRole, templates: Mapping[str, Any]) -> dict[str, Any]:
    revision = context.identity.revisions[role.name]
    return context.revised(
        ("apps/v1", "Deployment"),
        names.workload(context.name, role.name, revision),
        role.name,
        spec={
            "replicas": role.replicas,
            "revisionHistoryLimit": 1,
            # A Deployment that loads for an hour is not stuck: Argo CD takes this deadline for a failure.
            "progressDeadlineSeconds": role.startup_minutes * 60 + _START_MARGIN_SECONDS,
            "selector": {"matchLabels": _selector(context, role.name, revision)},
            # No surge: the accelerators of a spare pod may not exist.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": dict(templates["template"]),
        },
    )


def _pod_template(context: RenderContext, role: EffectiveRole, *, leads: bool) -> dict[str, Any]:
    labels = context.pod_labels(role.name)
    if not leads:
        # The router's registrar and the headless Service take every pod with this label for an engine that answers.
        del labels[names.LABEL_ROLE]
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": names.engine_account(context.name),
        "securityContext": security.pod_security(),
        "terminationGracePeriodSeconds": role.grace_seconds,
        **device.network(role),
        **placement(role.pod, names.selector(context.name, role.name), device.tolerations(context, role)),
        **plugin.init_containers(context),
        "containers": [_container(context, role, leads=leads)],
        "volumes": _volumes(context, role),
    }
    return {"metadata": metadata(role.pod, labels), "spec": spec}


def _selector(context: RenderContext, part: str, revision: str) -> dict[str, str]:
    return {**names.selector(context.name, part), names.LABEL_REVISION: revision}


def _container(context: RenderContext, role: EffectiveRole, *, leads: bool) -> dict[str, Any]:
    effective = context.effective
    inputs = CommandInputs(
        document=literal(context.written),
        platform=effective.platform,
        served_name=literal(effective.served_name),
        model_path=literal(effective.model_path),
        bootstrap_port=effective.bootstrap_port,
        args=literal(role.args),
        layout_key=context.identity.compat_key,
        nodes=role.nodes,
        tenant=effective.tenant,
        pool=configuration.is_read(context, role.name),
    )
    program, *arguments = context.profile.command(role.name, inputs)
    return {
        "name": CONTAINER,
        "image": context.engine_image,
        "imagePullPolicy": effective.image_pull_policy,
        "command": [program],
        "args": arguments,
        "env": _environment(context, role),
        "ports": device.ports(context, role),
        "resources": device.resources(context, role),
        **context.profile.probes(role.name, role.startup_minutes, leads=leads),
        # Endpoints, router and registrar let go of the pod before the engine is told to stop.
        "lifecycle": {"preStop": {"sleep": {"seconds": context.profile.pre_stop_seconds}}},
        "securityContext": security.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(context, role),
    }


def _environment(context: RenderContext, role: EffectiveRole) -> list[dict[str, Any]]:
    given = {**role.env, **role.secret_env}
    hardware = context.profile.hardware(context.effective.platform)
    defaults = {"HOME": security.SCRATCH_PATH, **context.profile.defaults, **hardware.defaults}
    return [
        *context.profile.env(role.name, context.effective.platform),
        *configuration.environment(context, role.name),
        *plugin.environment(context),
        *({"name": key, "value": value} for key, value in defaults.items() if key not in given),
        *({"name": key, "value": literal(value)} for key, value in sorted(role.env.items())),
        *(
            {"name": key, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
            for key, secret in sorted(role.secret_env.items())
        ),
    ]


def _volumes(context: RenderContext, role: EffectiveRole) -> list[dict[str, Any]]:
    volumes = [
        security.scratch_volume(),
        *device.volumes(role),
        *configuration.volumes(context, role.name),
        *plugin.volumes(context),
    ]
    source = context.document.spec.model.source
    if source is not None and source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        volumes.append({"name": _WEIGHTS_VOLUME, "persistentVolumeClaim": claim})
    elif source is not None and source.image is not None:
        volumes.append({"name": _WEIGHTS_VOLUME, "image": {"reference": source.image.reference}})
    return [*volumes, *_dump(role)["volumes"]]


def _mounts(context: RenderContext, role: EffectiveRole) -> list[dict[str, Any]]:
    theirs: list[dict[str, Any]] = _dump(role)["volumeMounts"]
    taken = {mount["mountPath"].rstrip("/") for mount in theirs}
    ours = [
        security.scratch_mount(),
        *device.mounts(role),
        *configuration.mounts(context, role.name),
        *plugin.mounts(context),
    ]
    mounts = [mount for mount in ours if mount["mountPath"] not in taken]
    source = context.document.spec.model.source
    if source is not None:
        weights: dict[str, Any] = {
            "name": _WEIGHTS_VOLUME,
            "mountPath": context.effective.model_path,
            "readOnly": True,
        }
        if source.persistent_volume_claim is not None and source.persistent_volume_claim.sub_path:
            weights["subPath"] = source.persistent_volume_claim.sub_path
        mounts.append(weights)
    return [*mounts, *theirs]


def _dump(role: EffectiveRole) -> dict[str, Any]:
    """The overrides as Kubernetes spells them, without what the user left out."""
    written = role.pod.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"volumes": [], "volumeMounts": [], **written}
