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
from epd_operator.plan.conditions.health import Health, Target, Verdict, component_of, live_targets, measure
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.conditions.status import Picture, judge, numbers
from epd_operator.plan.conditions.swa_pool_ready import Pool, outlook
from epd_operator.plan.conditions.valid import accepted, acknowledged, refused
from epd_operator.plan.objects import access, disruption, network, router, service, snapshot, swa_pool, workload
from epd_operator.plan.observation import name_of
from epd_operator.plan.render_context import Scope
from epd_operator.plan.revision import identify
from epd_operator.plan.rollout import Ref, leftovers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.conditions.condition import Event
    from epd_operator.plan.conditions.swa_pool_ready import Outlook
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
    return _refused(cr, observed, admitted) if isinstance(admitted, Verdict) else _planned(cr, observed, admitted)


def _admit(cr: Mapping[str, Any], observed: Observed, settings: Settings) -> Scope | Verdict:
    judgement = validate(cr, advisories=settings.advisories)
    if not judgement.accepted:
        return refused(judgement.errors)
    document = parse(cr)
    profile = lookup(document.spec.engine.type, judgement.version)
    meaning = effective(document, profile)
    identity = identify(document, meaning, profile)
    image = (
        meaning.image
        or snapshot.stored_image(observed.children, identity.compat_key)
        or profile.default_image(settings)
    )
    if image is None:
        field = "spec.engine.image"
        return Verdict(False, Reason.INVALID_SPEC, f"{field}: is required for {profile.engine_type}: add it")
    return Scope(document, meaning, profile, identity, settings, image, judgement)


def _planned(cr: Mapping[str, Any], observed: Observed, scope: Scope) -> Plan:
    objects = _objects(scope, observed.children)
    healths = {part: measure(target, observed) for part, target in _targets(scope).items()}
    uid = scope.document.metadata.uid
    rest = leftovers(uid, objects, observed, healths, policies=scope.effective.network_policy)
    windows = _pool(scope, objects, observed, condition.current(cr.get("status") or {}).get("SwaPoolReady"))
    picture = Picture(
        accepted(scope.profile, scope.judgement),
        healths,
        scope.identity.compat_key,
        rest.held,
        replay_effective.asked_of(scope),
        None if windows is None else windows.verdict,
    )
    static = {
        "revision": scope.identity.set_revision,
        "compatKey": scope.identity.compat_key,
        "acknowledged": acknowledged(scope.judgement),
        "effective": scope.effective.published(),
        **numbers(healths, service.url(scope)),
    }
    planned = _conclude(cr, observed, picture, static, objects=objects, prune=rest.prune)
    if windows is None or windows.until is None:
        return planned
    return replace(planned, after=(windows.until - observed.now).total_seconds())


def _pool(
    scope: Scope, objects: Sequence[Object], observed: Observed, previous: Mapping[str, Any] | None
) -> Outlook | None:
    wished = scope.effective.swa_pool
    if wished is None:
        return None
    revisions = scope.identity.revisions
    healths: dict[str, Health] = {
        part.program: measure(
            Target(part.component, "Deployment", part.name, part.replicas, revisions[part.component]), observed
        )
        for part in swa_pool.parts(scope)
    }
    made_of = frozenset(
        f"{obj['kind']}/{name_of(obj)}"
        for obj in objects
        if component_of(obj) in {names.SWA_POOL, names.SWA_POOL_STORE}
    )
    return outlook(Pool(timedelta(seconds=wished.ttl), healths, revisions["prefill"], made_of), observed, previous)


def _refused(cr: Mapping[str, Any], observed: Observed, valid: Verdict) -> Plan:
    """A plan for a spec that cannot be planned: an earlier generation, if any, is watched and left alone."""
    status = cr.get("status") or {}
    healths = {part: measure(target, observed) for part, target in live_targets(observed, status).items()}
    windows = condition.current(status).get("SwaPoolReady")
    kept = None if windows is None else Verdict.of(windows)
    picture = Picture(valid, healths, str(status.get("compatKey", "")), held=(), asked=None, pool=kept)
    static = {key: status[key] for key in ("revision", "compatKey", "acknowledged", "effective") if key in status}
    url = str((status.get("router") or {}).get("url", ""))
    return _conclude(cr, observed, picture, {**static, **numbers(healths, url)}, objects=[], prune=())


def _conclude(
    cr: Mapping[str, Any],
    observed: Observed,
    picture: Picture,
    static: Mapping[str, Any],
    *,
    objects: Sequence[dict[str, Any]],
    prune: tuple[Ref, ...],
) -> Plan:
    generation = int(cr["metadata"].get("generation") or 0)
    before = condition.current(cr.get("status") or {})
    verdicts = judge(picture, observed, before)
    status = {
        "observedGeneration": generation,
        **static,
        "conditions": condition.write(verdicts, before, generation, observed.now),
    }
    events = condition.transitions(verdicts, before)
    moving = verdicts["Reconciling"].status is True
    return Plan(tuple(objects), prune, status, moving=moving, events=events)


def _targets(scope: Scope) -> dict[str, Target]:
    revisions = scope.identity.revisions
    targets: dict[str, Target] = {
        name: Target(
            name,
            "LeaderWorkerSet" if role.nodes > 1 else "Deployment",
            names.workload(scope.name, name, revisions[name]),
            role.replicas,
            revisions[name],
        )
        for name, role in scope.effective.roles.items()
    }
    replicas = scope.effective.router.replicas
    targets[names.ROUTER] = Target(
        names.ROUTER, "Deployment", names.router(scope.name), replicas, revisions[names.ROUTER]
    )
    return targets


def _objects(scope: Scope, children: Sequence[Object]) -> list[dict[str, Any]]:
    """Everything that should exist: what pods refer to comes before them, and a template before its user."""
    snapshots, makers = [], []
    for name, role in scope.effective.roles.items():
        stored_as = names.workload(scope.name, name, scope.identity.revisions[name])
        templates = snapshot.stored_templates(children, stored_as, workload.fields(role)) or workload.pod_templates(
            scope, role
        )
        snapshots.append(snapshot.controller_revision(scope, name, stored_as, templates))
        makers.append(workload.workload(scope, role, templates))
    stored_as = names.workload(scope.name, names.ROUTER, scope.identity.revisions[names.ROUTER])
    templates = snapshot.stored_templates(children, stored_as, ("template",)) or {
        "template": router.pod_template(scope)
    }
    snapshots.append(snapshot.controller_revision(scope, names.ROUTER, stored_as, templates))
    makers.append(router.deployment(scope, templates["template"]))
    return [
        *access.accounts(scope),
        *network.policies(scope),
        *service.services(scope),
        *disruption.budgets(scope),
        *swa_pool.objects(scope, children),
        *snapshots,
        *makers,
    ]
