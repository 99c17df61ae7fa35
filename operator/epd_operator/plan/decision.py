"""From a resource and the cluster to the objects, deletions and status that follow: total, and without a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epd_operator.api import names, parse
from epd_operator.engines import lookup
from epd_operator.engines.effective import effective
from epd_operator.engines.validation import validate
from epd_operator.plan.conditions import condition, replay_effective
from epd_operator.plan.conditions.health import Assessment, Health, Target, component_of, live_targets, measure
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.conditions.status import StatusInputs, judge, numbers
from epd_operator.plan.conditions.swa_pool_ready import PoolState, readiness
from epd_operator.plan.conditions.valid import accepted, acknowledged, refused
from epd_operator.plan.objects import access, disruption, network, router, service, snapshot, swa_pool, workload
from epd_operator.plan.observation import name_of
from epd_operator.plan.render_context import RenderContext
from epd_operator.plan.revision import identify
from epd_operator.plan.rollout import Ref, leftovers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.conditions.condition import Event
    from epd_operator.plan.conditions.swa_pool_ready import PoolReadiness
    from epd_operator.plan.observation import Object, Observed, Settings


@dataclass(frozen=True)
class Plan:
    """What should be done for one resource now.

    Attributes:
        objects: Every object that should exist, in the order to apply them.
        prune: Live objects to delete, with their uid as precondition.
        status: The complete status to apply.
        moving: Whether registrars should be polled every 2 seconds, else every 15.
        events: What changed since the status that the resource carries.
        after: Seconds until time alone changes the status; None when it never does.
    """

    objects: tuple[dict[str, Any], ...]
    prune: tuple[Ref, ...]
    status: dict[str, Any]
    moving: bool
    events: tuple[Event, ...]
    after: float | None = None


def plan(cr: Mapping[str, Any], observed: Observed, settings: Settings) -> Plan:
    """Decide; the same arguments always give the same plan.

    Args:
        cr: The custom resource as the API server has it.
        observed: The cluster around it.
        settings: The operator installation.
    """
    if cr["metadata"].get("deletionTimestamp"):
        # The garbage collector is at work: whatever we made now, it would have to delete again.
        return Plan((), (), dict(cr.get("status") or {}), moving=False, events=())
    admitted = _admit(cr, observed, settings)
    return _refused(cr, observed, admitted) if isinstance(admitted, Assessment) else _planned(cr, observed, admitted)


def _admit(cr: Mapping[str, Any], observed: Observed, settings: Settings) -> RenderContext | Assessment:
    judgement = validate(cr, advisories=settings.advisories)
    if not judgement.accepted:
        return refused(judgement.errors)
    document = parse(cr)
    profile = lookup(document.spec.engine.type, judgement.version, document.spec.engine.plugins)
    meaning = effective(document, profile)
    identity = identify(document, meaning, profile)
    image = (
        meaning.image
        or snapshot.stored_image(observed.children, identity.compat_key)
        or profile.default_image(settings)
    )
    if image is None:
        field = "spec.engine.image"
        return Assessment(False, Reason.INVALID_SPEC, f"{field}: is required for {profile.engine_type}: add it")
    return RenderContext(document, meaning, profile, identity, settings, image, judgement)


def _planned(cr: Mapping[str, Any], observed: Observed, context: RenderContext) -> Plan:
    objects = _objects(context, observed.children)
    healths = {part: measure(target, observed) for part, target in _targets(context).items()}
    uid = context.document.metadata.uid
    rest = leftovers(uid, objects, observed, healths, policies=context.effective.network_policy)
    windows = _pool(context, objects, observed, condition.current(cr.get("status") or {}).get("SwaPoolReady"))
    inputs = StatusInputs(
        accepted(context.profile, context.effective.platform, context.judgement),
        healths,
        context.identity.compat_key,
        rest.held,
        replay_effective.requested(context),
        None if windows is None else windows.assessment,
    )
    static = {
        "revision": context.identity.set_revision,
        "compatKey": context.identity.compat_key,
        "acknowledged": acknowledged(context.judgement),
        "effective": context.effective.published(),
        **numbers(healths, service.url(context)),
    }
    planned = _conclude(cr, observed, inputs, static, objects=objects, prune=rest.prune)
    if windows is None or windows.until is None:
        return planned
    return replace(planned, after=(windows.until - observed.now).total_seconds())


def _pool(
    context: RenderContext, objects: Sequence[Object], observed: Observed, previous: Mapping[str, Any] | None
) -> PoolReadiness | None:
    declared = context.effective.swa_pool
    if declared is None:
        return None
    revisions = context.identity.revisions
    healths: dict[str, Health] = {
        part.program: measure(
            Target(part.component, "Deployment", part.name, part.replicas, revisions[part.component]), observed
        )
        for part in swa_pool.parts(context)
    }
    made_of = frozenset(
        f"{obj['kind']}/{name_of(obj)}"
        for obj in objects
        if component_of(obj) in {names.SWA_POOL, names.SWA_POOL_STORE}
    )
    return readiness(
        PoolState(timedelta(seconds=declared.ttl), healths, revisions["prefill"], made_of), observed, previous
    )


def _refused(cr: Mapping[str, Any], observed: Observed, valid: Assessment) -> Plan:
    """A plan for a spec that cannot be planned: an earlier generation, if any, is watched and left alone."""
    status = cr.get("status") or {}
    healths = {part: measure(target, observed) for part, target in live_targets(observed, status).items()}
    windows = condition.current(status).get("SwaPoolReady")
    kept = None if windows is None else Assessment.of(windows)
    inputs = StatusInputs(valid, healths, str(status.get("compatKey", "")), held=(), replay=None, pool=kept)
    static = {key: status[key] for key in ("revision", "compatKey", "acknowledged", "effective") if key in status}
    url = str((status.get("router") or {}).get("url", ""))
    return _conclude(cr, observed, inputs, {**static, **numbers(healths, url)}, objects=[], prune=())


def _conclude(
    cr: Mapping[str, Any],
    observed: Observed,
    inputs: StatusInputs,
    static: Mapping[str, Any],
    *,
    objects: Sequence[dict[str, Any]],
    prune: tuple[Ref, ...],
) -> Plan:
    generation = int(cr["metadata"].get("generation") or 0)
    before = condition.current(cr.get("status") or {})
    assessments = judge(inputs, observed, before)
    status = {
        "observedGeneration": generation,
        **static,
        "conditions": condition.write(assessments, before, generation, observed.now),
    }
    events = condition.transitions(assessments, before)
    moving = assessments["Reconciling"].status is True
    return Plan(tuple(objects), prune, status, moving=moving, events=events)


def _targets(context: RenderContext) -> dict[str, Target]:
    revisions = context.identity.revisions
    targets: dict[str, Target] = {
        name: Target(
            name,
            "LeaderWorkerSet" if role.nodes > 1 else "Deployment",
            names.workload(context.name, name, revisions[name]),
            role.replicas,
            revisions[name],
        )
        for name, role in context.effective.roles.items()
    }
    replicas = context.effective.router.replicas
    targets[names.ROUTER] = Target(
        names.ROUTER, "Deployment", names.router(context.name), replicas, revisions[names.ROUTER]
    )
    return targets


def _objects(context: RenderContext, children: Sequence[Object]) -> list[dict[str, Any]]:
    """Everything that should exist: what pods refer to comes before them, and a template before its user."""
    snapshots, makers = [], []
    for name, role in context.effective.roles.items():
        stored_as = names.workload(context.name, name, context.identity.revisions[name])
        templates = snapshot.stored_templates(children, stored_as, workload.fields(role)) or workload.pod_templates(
            context, role
        )
        snapshots.append(snapshot.controller_revision(context, name, stored_as, templates))
        makers.append(workload.workload(context, role, templates))
    stored_as = names.workload(context.name, names.ROUTER, context.identity.revisions[names.ROUTER])
    templates = snapshot.stored_templates(children, stored_as, ("template",)) or {
        "template": router.pod_template(context)
    }
    snapshots.append(snapshot.controller_revision(context, names.ROUTER, stored_as, templates))
    makers.append(router.deployment(context, templates["template"]))
    return [
        *access.accounts(context),
        *network.policies(context),
        *service.services(context),
        *disruption.budgets(context),
        *swa_pool.objects(context, children),
        *snapshots,
        *makers,
    ]
