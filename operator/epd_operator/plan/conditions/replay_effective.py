"""Whether prefill really runs bounded replay: what its pods report to the registrars, not what the flag says.

The tricky idea: a pod that counts rows reports new counts every time, and a status must not change with them. So only
the few fields that a pod changes once in its life are judged, and the message holds nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from epd_operator.engines.profile import REPLAY_REPORT
from epd_operator.plan.conditions.diagnosis import one_line
from epd_operator.plan.conditions.health import Assessment
from epd_operator.plan.conditions.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.plan.render_context import RenderContext
    from epd_operator.plan.router_state import Half, Replay, RouterState

HalfName: TypeAlias = Literal["decoder", "encoder"]

_FIELDS: Final[Mapping[HalfName, str]] = {
    "decoder": "spec.roles.prefill.decoderReplay",
    "encoder": "spec.roles.prefill.encoderReplay",
}
_WAITING: Final = "Yet"
"""End of the reason of a half that would replay and has had nothing to replay."""
_OBSERVED: Final = frozenset(
    {Reason.REPLAYING, Reason.ENGINE_DOES_NOT_REPLAY, Reason.NO_LONG_PROMPT_YET, Reason.NOT_REPORTED}
)
"""Reasons that follow from reports; the others follow from the spec alone."""


@dataclass(frozen=True)
class ReplayRequest:
    """What a spec wants replayed, and whom to ask about it.

    Attributes:
        engine: Type and version.
        halves: What should be replayed, as the engine resolves it.
        left_off: The spec leaves the decoder half to the engine, and the engine does not replay it.
        reported: Pods of this engine say whether they replay.
        revision: Of the prefill pods that should serve.
    """

    engine: str
    halves: tuple[HalfName, ...]
    left_off: bool
    reported: bool
    revision: str


def requested(context: RenderContext) -> ReplayRequest:
    """What the spec wants replayed."""
    prefill, resolved = context.document.spec.roles.prefill, context.effective.facts.replay
    wanted = {"decoder": resolved == "On", "encoder": prefill.encoder_replay}
    return ReplayRequest(
        engine=f"{context.effective.engine_type} {context.effective.engine_version}",
        halves=tuple(half for half in get_args(HalfName) if wanted[half]),
        left_off=resolved == "Off" and prefill.decoder_replay != "Off",
        reported=REPLAY_REPORT in context.profile.capabilities,
        revision=context.identity.revisions["prefill"],
    )


def effective(
    request: ReplayRequest | None, router_states: Sequence[RouterState], previous: Mapping[str, Any] | None
) -> Assessment | None:
    """Judge replay.

    Args:
        request: What should be replayed; None for a spec that cannot be planned.
        router_states: What the registrars that answered say.
        previous: The condition as it stands. It is kept where nothing new is known: with a spec that cannot be planned,
            and while no registrar has answered a restarted operator.

    Returns:
        The assessment; None when there is no spec to judge by and there never was.
    """
    if request is None:
        return None if previous is None else Assessment.of(previous)
    if not request.halves:
        return _off(request)
    if request.reported and not router_states and previous is not None and previous.get("reason") in _OBSERVED:
        return Assessment.of(previous)
    pods = _routable(router_states, request.revision)
    known = {pod: replay for pod, replay in pods.items() if replay is not None}
    if request.reported and known:
        return _reported(request, known)
    wanted = " and ".join(f"{_FIELDS[half]} is on" for half in request.halves)
    return Assessment(None, Reason.NOT_REPORTED, f"{wanted}; {_silence(request, pods)}")


def _silence(request: ReplayRequest, pods: Mapping[str, Replay | None]) -> str:
    if not request.reported:
        return f"{request.engine} does not say whether it replays"
    if not pods:
        return f"no prefill pod of revision {request.revision} is routable yet"
    return "no prefill pod has said yet whether it replays"


def _off(request: ReplayRequest) -> Assessment:
    if request.left_off:
        text = f"{_FIELDS['decoder']} is Auto, which {request.engine} resolves to off with these settings"
        return Assessment(False, Reason.ENGINE_DOES_NOT_REPLAY, text)
    return Assessment(False, Reason.TURNED_OFF, f"{_FIELDS['decoder']} is Off: every layer runs on every row")


def _reported(request: ReplayRequest, known: Mapping[str, Replay]) -> Assessment:
    stopped, running, waiting = [], [], []
    for half in request.halves:
        reported = {pod: _half(replay, half) for pod, replay in known.items()}
        stopped += [
            f"{pod} runs without replay of the {half} half: {one.reason or 'no reason given'}"
            for pod, one in sorted(reported.items())
            if not one.active and not one.reason.endswith(_WAITING)
        ]
        active = [one for _, one in sorted(reported.items()) if one.active]
        if active:
            presets = sorted({one.preset for one in active if one.preset})
            running.append(f"{half} half" + (f", preset {' and '.join(presets)}" if presets else ""))
        else:
            waiting.append(f"{half} half")
    if stopped:
        return Assessment(False, Reason.ENGINE_DOES_NOT_REPLAY, one_line("; ".join(stopped)))
    if not running:
        text = f"no prompt has come yet that lets prefill replay the {' or the '.join(waiting)}"
        return Assessment(None, Reason.NO_LONG_PROMPT_YET, text)
    idle = [f"{half}: nothing to replay yet" for half in waiting]
    return Assessment(True, Reason.REPLAYING, one_line("; ".join([*running, *idle])))


def _half(replay: Replay, half: HalfName) -> Half:
    return replay.decoder if half == "decoder" else replay.encoder


def _routable(router_states: Iterable[RouterState], revision: str) -> dict[str, Replay | None]:
    """Routable prefill pods with what they say; every router asks by itself, and one that has not yet says nothing."""
    result: dict[str, Replay | None] = {}
    for state in router_states:
        for worker in state.workers:
            if worker.role == "prefill" and worker.routable and worker.revision == revision:
                result[worker.pod] = result.get(worker.pod) or worker.replay
    return result
