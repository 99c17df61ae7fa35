"""What this server did for its last requests: who took part, and how long each stage took."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_REQUESTS = 1024
MAX_PER_ID = 16


@dataclass
class Leg:
    """One server's share of one answer.

    Attributes:
        role: The server's role.
        pod: The server's name.
        index: Which of the request's answers.
        room: The room it met its other half in.
        peer: The other half's name or address.
        stages: Milliseconds per stage, in the order in which they ended.
        images: Per image: the encoder's name, its rows and the milliseconds from the request to their arrival.
        prompt_tokens: Tokens of the prompt, images included.
        completion_tokens: Tokens of the answer made here.
        transfer_bytes: Bytes of pages sent or received.
    """

    role: str
    pod: str
    index: int = 0
    room: int | None = None
    peer: str | None = None
    stages: dict[str, float] = field(default_factory=dict)
    images: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    transfer_bytes: int = 0

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the body, also when it fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.note(name, time.monotonic() - started)

    def note(self, name: str, seconds: float) -> None:
        """Record a stage measured elsewhere."""
        self.stages[name] = round(1000 * seconds, 3)

    def state(self) -> dict[str, Any]:
        """Return the leg as a JSON object."""
        known = {"role": self.role, "pod": self.pod, "index": self.index, "stages_ms": self.stages}
        optional = {
            "room": self.room,
            "peer": self.peer,
            "images": self.images,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "transfer_bytes": self.transfer_bytes,
        }
        return known | {name: value for name, value in optional.items() if value not in (None, 0, [])}


@dataclass
class Record:
    """One HTTP request as this server saw it.

    Attributes:
        id: ``rid``, else ``X-Request-ID``, else the room, else drawn here.
        aliases: Every name it can be asked for by.
        endpoint: Its path.
        legs: This server's share, per answer.
        others: Shares of other servers, as they reported them.
        status: 0 while it runs.
        error: Why it failed.
    """

    id: str
    aliases: tuple[str, ...]
    endpoint: str
    legs: list[Leg] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    error: str | None = None
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    _started: float = field(default_factory=time.monotonic)
    _duration: float | None = None

    def finish(self, status: int, error: str | None = None) -> None:
        """Close the record with the status of the answer; 499 stands for a client that went away."""
        self.status, self.error = status, error
        self._duration = self.age

    @property
    def age(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self._started

    def state(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        seconds = self.age if self._duration is None else self._duration
        return {
            "id": self.id,
            "endpoint": self.endpoint,
            "status": self.status or "running",
            "error": self.error,
            "started_at": self.started_at,
            "duration_ms": round(1000 * seconds, 3),
            "legs": self.all_legs(),
        }

    def all_legs(self) -> list[dict[str, Any]]:
        """Return the shares of all servers that are known here, this server's last."""
        return [*self.others, *(leg.state() for leg in self.legs)]


class RecordBook:
    """The last requests by each of their names; retries share a name."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, list[Record]] = OrderedDict()

    def add(self, record: Record) -> None:
        """Keep a record, at the cost of the oldest."""
        for name in record.aliases:
            records = self._by_id.setdefault(name, [])
            records.append(record)
            del records[:-MAX_PER_ID]
            self._by_id.move_to_end(name)
        while len(self._by_id) > MAX_REQUESTS:
            self._by_id.popitem(last=False)

    def find(self, name: str) -> list[Record]:
        """Return the records of a request and its retries, oldest first."""
        return list(self._by_id.get(name, ()))

    def recent(self, limit: int) -> list[Record]:
        """Return the newest records, newest first."""
        seen: dict[int, Record] = {}
        for records in reversed(self._by_id.values()):
            for record in reversed(records):
                seen.setdefault(id(record), record)
            if len(seen) >= limit:
                break
        return list(seen.values())[:limit]
