"""Whether a text request can be served now: the registrars' word, not the pods' readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.plan.diagnosis import one_line
from epd_operator.plan.health import Verdict
from epd_operator.plan.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.health import Health
    from epd_operator.plan.observation import Object

_NEEDED = ("prefill", "decode", "router")


def available(
    healths: Mapping[str, Health],
    routers: Sequence[Object],
    compat_key: str,
    previous: Mapping[str, Any] | None,
) -> Verdict:
    """Judge availability.

    Args:
        healths: what each part has come to; a missing part counts as absent.
        routers: state documents of the registrars that answered.
        compat_key: key of the set that should serve; named first when several are routable.
        previous: the condition as it stands; True is kept while pods are ready and no registrar has answered, because
            a restarted operator that has polled nobody yet knows nothing new.
    """
    counts = _routable(routers)
    keys = sorted((key for key, (_, _, pair) in counts.items() if pair), key=lambda key: (key != compat_key, key))
    if keys:
        prefill, decode, _ = counts[keys[0]]
        return Verdict(True, Reason.SERVING, f"{prefill} prefill and {decode} decode routable under key {keys[0]}")
    zero = [part for part in _NEEDED if part in healths and healths[part].target.desired == 0]
    if zero:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"spec asks for no {' and no '.join(zero)} pod")
    idle = [part for part in _NEEDED if part not in healths or healths[part].ready == 0]
    if not idle and not routers:
        return _kept(previous) or Verdict(False, Reason.ROUTER_NOT_REPORTING, "no registrar has answered yet")
    return Verdict(False, Reason.NO_ROUTABLE_PAIR, _explain(idle, counts, routers))


def _routable(routers: Sequence[Object]) -> dict[str, tuple[int, int, bool]]:
    # The best that any ready router offers: clients reach all of them through one Service.
    best: dict[str, tuple[int, int, bool]] = {}
    for document in routers:
        ready = bool((document.get("router") or {}).get("ready"))
        for key, found in (document.get("compatKeys") or {}).items():
            prefill, decode, pair = best.get(key, (0, 0, False))
            best[key] = (
                max(prefill, int(found.get("prefill", 0))),
                max(decode, int(found.get("decode", 0))),
                pair or (ready and bool(found.get("routable"))),
            )
    return best


def _kept(previous: Mapping[str, Any] | None) -> Verdict | None:
    if previous is None or previous.get("status") != "True":
        return None
    return Verdict(True, Reason.SERVING, str(previous.get("message", "")))


def _explain(idle: Sequence[str], counts: Mapping[str, tuple[int, int, bool]], routers: Sequence[Object]) -> str:
    parts = [f"no ready {' and no ready '.join(idle)} pod"] if idle else []
    parts += [
        f"key {key}: {prefill} prefill, {decode} decode routable"
        for key, (prefill, decode, _) in sorted(counts.items())
    ]
    refused = {
        f"{worker.get('pod')} {worker.get('state')}: {worker['reason']}"
        for document in routers
        for worker in document.get("workers") or ()
        if worker.get("reason") and not worker.get("routable")
    }
    return one_line("; ".join([*parts, *sorted(refused)]) or "the router lists no worker")
