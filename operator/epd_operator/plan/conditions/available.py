"""Whether a text request can be served now, by the registrars' reports, not by the pods' readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.plan.conditions.diagnosis import one_line
from epd_operator.plan.conditions.health import Assessment
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.router_state import Pairing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.conditions.health import Health
    from epd_operator.plan.router_state import RouterState

_NEEDED = ("prefill", "decode", "router")


def available(
    healths: Mapping[str, Health],
    router_states: Sequence[RouterState],
    compat_key: str,
    previous: Mapping[str, Any] | None,
) -> Assessment:
    """Judge availability.

    Args:
        healths: The state of each part; a missing part counts as absent.
        router_states: What the registrars that answered say.
        compat_key: Key of the set that should serve; named first when several are routable.
        previous: The condition as it stands; True is kept while pods are ready and no registrar has answered, because
            a restarted operator that has polled nobody yet knows nothing new.
    """
    counts = _routable(router_states)
    keys = sorted((key for key, result in counts.items() if result.routable), key=lambda key: (key != compat_key, key))
    # A report is up to 15 s old, and a router that is gone sends no other: pods that do not exist outweigh it.
    idle = [part for part in _NEEDED if part not in healths or healths[part].ready == 0]
    if keys and not idle:
        result = counts[keys[0]]
        text = f"{result.prefill} prefill and {result.decode} decode routable under key {keys[0]}"
        return Assessment(True, Reason.SERVING, one_line(text))
    zero = [part for part in _NEEDED if part in healths and healths[part].target.desired == 0]
    if zero:
        text = f"spec asks for no {' and no '.join(zero)} pod: raise replicas to serve"
        return Assessment(False, Reason.SCALED_TO_ZERO, text)
    if not idle and not router_states:
        return _kept(previous) or Assessment(False, Reason.ROUTER_NOT_REPORTING, "no registrar has answered yet")
    return Assessment(False, Reason.NO_ROUTABLE_PAIR, _explain(idle, counts, router_states))


def _routable(router_states: Sequence[RouterState]) -> dict[str, Pairing]:
    # The best that any ready router offers: clients reach all of them through one Service.
    best: dict[str, Pairing] = {}
    for state in router_states:
        for key, result in state.compat_keys.items():
            known = best.get(key, Pairing())
            best[key] = Pairing(
                prefill=max(known.prefill, result.prefill),
                decode=max(known.decode, result.decode),
                routable=known.routable or (state.router.ready and result.routable),
            )
    return best


def _kept(previous: Mapping[str, Any] | None) -> Assessment | None:
    if previous is None or previous.get("status") != "True":
        return None
    return Assessment(True, Reason.SERVING, str(previous.get("message", "")))


def _explain(idle: Sequence[str], counts: Mapping[str, Pairing], router_states: Sequence[RouterState]) -> str:
    parts = [f"no ready {' and no ready '.join(idle)} pod"] if idle else []
    parts += [f"key {key}: {n.prefill} prefill, {n.decode} decode routable" for key, n in sorted(counts.items())]
    refused = {
        f"{worker.pod} {worker.state}: {worker.reason}"
        for state in router_states
        for worker in state.workers
        if worker.reason and not worker.routable
    }
    return one_line("; ".join([*parts, *sorted(refused)]) or "the router lists no worker")
