"""Whether prefill pods run bounded replay, and how many rows it saved, read from the pods themselves.

The tricky idea: this runs beside the membership loop and never inside it. An engine in the middle of a long step
answers late or not at all, and who is a member must not wait for that; so what is known here is as old as it may be,
and a pod that does not answer keeps what it said last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from epd_workers.registrar.metrics import Metrics
    from epd_workers.registrar.pod import Pod

log = logging.getLogger(__name__)

TICK = 1.0
# Between two questions to one pod; its counters need not be fresher than the operator's look at rest.
PERIOD = 15.0
# After an answer without a report: an engine that has none does not learn it while the pod lives, but an image may.
ABSENT_PERIOD = 300.0
TIMEOUT = aiohttp.ClientTimeout(total=2, connect=1)
SIZE_LIMIT = 1 << 20
CONCURRENCY = 4
_LARGEST = 2**63 - 1
_REASON = re.compile(r"([A-Z][A-Za-z0-9]{0,63})?")
_PRESET = re.compile(r"[A-Za-z0-9._-]{0,64}")


class ReplayError(Exception):
    """A pod's report of replay cannot be used; the message says which part of it."""


class PodSource(Protocol):
    """Where the pods come from."""

    @property
    def pods(self) -> list[Pod] | None:
        """The pods as last seen, None before anything was seen."""


@dataclass(frozen=True)
class Decoder:
    """Replay of the decoder half in one pod.

    Attributes:
        active: it runs.
        reason: why it does not, in one word; empty when it does.
        preset: which split and window floor it follows.
        rows_run: rows times layers computed since the engine's start.
        rows_skipped: rows times layers that replay spared since then.
    """

    active: bool
    reason: str
    preset: str
    rows_run: int
    rows_skipped: int


@dataclass(frozen=True)
class Encoder:
    """Replay of the encoder half in one pod.

    Attributes:
        active: it runs.
        reason: why it does not, in one word; empty when it does.
        rows_replayed: rows before the ends of prefix hits that ran again since the engine's start.
    """

    active: bool
    reason: str
    rows_replayed: int


@dataclass(frozen=True)
class Replay:
    """What one pod says of replay."""

    decoder: Decoder
    encoder: Encoder

    def document(self) -> dict[str, Any]:
        """The report as `GET /state` spells it."""
        decoder, encoder = self.decoder, self.encoder
        return {
            "decoder": {
                "active": decoder.active,
                "reason": decoder.reason,
                "preset": decoder.preset,
                "rowsRun": decoder.rows_run,
                "rowsSkipped": decoder.rows_skipped,
            },
            "encoder": {
                "active": encoder.active,
                "reason": encoder.reason,
                "rowsReplayed": encoder.rows_replayed,
            },
        }


def parse(info: object) -> Replay | None:
    """Read the report out of `GET /server_info`; unknown keys are left out.

    Args:
        info: the whole answer.

    Returns:
        The report; None when there is none.

    Raises:
        ReplayError: there is one, with a part missing, of the wrong type or beyond its bounds.
    """
    if not isinstance(info, dict) or info.get("replay") is None:
        return None
    decoder, encoder = _part(info["replay"], "decoder"), _part(info["replay"], "encoder")
    return Replay(
        Decoder(
            active=_truth(decoder, "decoder"),
            reason=_text(decoder, "decoder", "reason", _REASON),
            preset=_text(decoder, "decoder", "preset", _PRESET),
            rows_run=_count(decoder, "decoder", "rows_run"),
            rows_skipped=_count(decoder, "decoder", "rows_skipped"),
        ),
        Encoder(
            active=_truth(encoder, "encoder"),
            reason=_text(encoder, "encoder", "reason", _REASON),
            rows_replayed=_count(encoder, "encoder", "rows_replayed"),
        ),
    )


def _part(report: object, half: str) -> dict[str, Any]:
    part = report.get(half) if isinstance(report, dict) else None
    if not isinstance(part, dict):
        raise ReplayError(f"replay.{half} must be an object")
    return part


def _truth(part: Mapping[str, Any], half: str) -> bool:
    value = part.get("active")
    if not isinstance(value, bool):
        raise ReplayError(f"replay.{half}.active must be true or false")
    return value


def _text(part: Mapping[str, Any], half: str, name: str, form: re.Pattern[str]) -> str:
    value = part.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ReplayError(f"replay.{half}.{name} must match {form.pattern}")
    return value


def _count(part: Mapping[str, Any], half: str, name: str) -> int:
    value = part.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ReplayError(f"replay.{half}.{name} must be a whole number from 0 to {_LARGEST}")
    return value


class ReplayWatch:
    """Asks every prefill pod that is Ready, each at its own pace.

    Args:
        session: shared HTTP session.
        source: the pods.
        metrics: where to count.
        engine_port: port of the engines' HTTP servers.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        source: PodSource,
        metrics: Metrics,
        *,
        engine_port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._source = source
        self._metrics = metrics
        self._engine_port = engine_port
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._due: dict[str, float] = {}
        self._known: dict[str, Replay] = {}
        self._complained: set[str] = set()

    @property
    def known(self) -> Mapping[str, Replay]:
        """Pod uid to what it said last; absent where it said nothing, or nothing of use."""
        return self._known

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(TICK)

    async def look(self) -> None:
        """Ask every pod whose turn it is."""
        pods = self._source.pods or []
        self._forget({pod.uid for pod in pods})
        now = self._clock()
        turn = [pod for pod in pods if _answers(pod) and self._due.get(pod.uid, now) <= now]
        await asyncio.gather(*(self._ask(pod) for pod in turn))

    async def _ask(self, pod: Pod) -> None:
        self._due[pod.uid] = self._clock() + PERIOD
        try:
            async with self._slots:
                found = parse(await self._info(f"{pod.url(self._engine_port)}/server_info"))
        except ReplayError as error:
            self._known.pop(pod.uid, None)
            self._complain(pod, str(error))
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            # What it said last stands: a busy engine has not changed its mind.
            self._complain(pod, str(error) or repr(error))
        else:
            self._complained.discard(pod.uid)
            if found is None:
                self._known.pop(pod.uid, None)
                self._due[pod.uid] = self._clock() + ABSENT_PERIOD
            else:
                self._known[pod.uid] = found

    async def _info(self, url: str) -> object:
        async with self._session.get(url, timeout=TIMEOUT, allow_redirects=False) as response:
            if HTTPStatus.BAD_REQUEST <= response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return None  # an engine that has no such page, or wants a key for it, reports nothing
            response.raise_for_status()
            raw = await response.content.read(SIZE_LIMIT + 1)
            while len(raw) <= SIZE_LIMIT and (more := await response.content.read(SIZE_LIMIT)):
                raw += more
        if len(raw) > SIZE_LIMIT:
            raise ValueError(f"the answer is longer than {SIZE_LIMIT} bytes")
        return json.loads(raw)

    def _complain(self, pod: Pod, why: str) -> None:
        self._metrics.error("engine")
        if pod.uid not in self._complained:
            self._complained.add(pod.uid)
            log.warning("replay of %s is not known: GET /server_info: %s; asking on", pod.name, why)

    def _forget(self, uids: Collection[str]) -> None:
        for uid in self._due.keys() - uids:
            del self._due[uid]
            self._known.pop(uid, None)
            self._complained.discard(uid)


def _answers(pod: Pod) -> bool:
    return pod.role == "prefill" and pod.ready and not pod.deleting and bool(pod.ip)
