"""Whether prefill really runs bounded replay: its own word, not the flag's, as the registrars pass it on.

The tricky idea: a pod that counts rows tells its counts every time, and a status must not move with them. So what is
judged are the few words that a pod changes once in its life, and the message has nothing else in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from epd_operator.engines.profile import REPLAY_REPORT
from epd_operator.plan.conditions.diagnosis import one_line
from epd_operator.plan.conditions.health import Verdict
from epd_operator.plan.conditions.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.plan.render_context import Scope
    from epd_operator.plan.router_state import Half, Replay, Report

HalfName: TypeAlias = Literal["decoder", "encoder"]

_FIELDS: Final[Mapping[HalfName, str]] = {
    "decoder": "spec.roles.prefill.decoderReplay",
    "encoder": "spec.roles.prefill.encoderReplay",
}
_WAITING: Final = "Yet"
"""How the reason of a half ends that would replay and has had nothing to replay."""
_OBSERVED: Final = frozenset(
    {Reason.REPLAYING, Reason.ENGINE_DOES_NOT_REPLAY, Reason.NO_LONG_PROMPT_YET, Reason.NOT_REPORTED}
)
"""Reasons that follow from reports; the others follow from the spec alone."""


@dataclass(frozen=True)
class Asked:
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


def asked_of(scope: Scope) -> Asked:
    """What the spec wants replayed."""
    prefill, resolved = scope.document.spec.roles.prefill, scope.effective.facts.replay
    wanted = {"decoder": resolved == "On", "encoder": prefill.encoder_replay}
    return Asked(
        engine=f"{scope.effective.engine_type} {scope.effective.engine_version}",
        halves=tuple(half for half in get_args(HalfName) if wanted[half]),
        left_off=resolved == "Off" and prefill.decoder_replay != "Off",
        reported=REPLAY_REPORT in scope.profile.capabilities,
        revision=scope.identity.revisions["prefill"],
    )


def effective(asked: Asked | None, reports: Sequence[Report], previous: Mapping[str, Any] | None) -> Verdict | None:
    """Judge replay.

    Args:
        asked: What should be replayed; None for a spec that cannot be planned.
        reports: What the registrars that answered say.
        previous: The condition as it stands. It is kept where nothing new is known: with a spec that cannot be planned,
            and while no registrar has answered a restarted operator.

    Returns:
        The verdict; None when there is no spec to judge by and there never was.
    """
    if asked is None:
        return None if previous is None else Verdict.of(previous)
    if not asked.halves:
        return _off(asked)
    if asked.reported and not reports and previous is not None and previous.get("reason") in _OBSERVED:
        return Verdict.of(previous)
    pods = _routable(reports, asked.revision)
    known = {pod: replay for pod, replay in pods.items() if replay is not None}
    if asked.reported and known:
        return _told(asked, known)
    wanted = " and ".join(f"{_FIELDS[half]} is on" for half in asked.halves)
    return Verdict(None, Reason.NOT_REPORTED, f"{wanted}; {_silence(asked, pods)}")


def _silence(asked: Asked, pods: Mapping[str, Replay | None]) -> str:
    if not asked.reported:
        return f"{asked.engine} does not say whether it replays"
    if not pods:
        return f"no prefill pod of revision {asked.revision} is routable yet"
    return "no prefill pod has said yet whether it replays"


def _off(asked: Asked) -> Verdict:
    if asked.left_off:
        text = f"{_FIELDS['decoder']} is Auto, which {asked.engine} resolves to off with these settings"
        return Verdict(False, Reason.ENGINE_DOES_NOT_REPLAY, text)
    return Verdict(False, Reason.TURNED_OFF, f"{_FIELDS['decoder']} is Off: every layer runs on every row")


def _told(asked: Asked, known: Mapping[str, Replay]) -> Verdict:
    stopped, running, waiting = [], [], []
    for half in asked.halves:
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
        return Verdict(False, Reason.ENGINE_DOES_NOT_REPLAY, one_line("; ".join(stopped)))
    if not running:
        text = f"no prompt has come yet that lets prefill replay the {' or the '.join(waiting)}"
        return Verdict(None, Reason.NO_LONG_PROMPT_YET, text)
    idle = [f"{half}: nothing to replay yet" for half in waiting]
    return Verdict(True, Reason.REPLAYING, one_line("; ".join([*running, *idle])))


def _half(replay: Replay, half: HalfName) -> Half:
    return replay.decoder if half == "decoder" else replay.encoder


def _routable(reports: Iterable[Report], revision: str) -> dict[str, Replay | None]:
    """Routable prefill pods with what they say; every router asks by itself, and one that has not yet says nothing."""
    result: dict[str, Replay | None] = {}
    for report in reports:
        for worker in report.workers:
            if worker.role == "prefill" and worker.routable and worker.revision == revision:
                result[worker.pod] = result.get(worker.pod) or worker.replay
    return result
