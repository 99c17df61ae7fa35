"""Processes that outlive the command that starts them, found again by pid file.

A pid alone names nothing: the kernel hands it out again. A record therefore holds the start time in clock ticks
since boot (`/proc/PID/stat`, field 22) and the boot's id; signals go through a pidfd opened *before* the check.
"""

from __future__ import annotations

import json
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOG_KEEP_BYTES = 16 * 1024 * 1024
KILL_SECONDS = 10.0


@dataclass(frozen=True)
class Record:
    """What a pid file says.

    Attributes:
        pid: Process id in the machine's pid namespace.
        start_ticks: Start time in clock ticks since boot.
        boot: The kernel's boot id, so that no record survives a reboot.
        fingerprint: Hash over everything the process was started with; another value means "start it again".
    """

    pid: int
    start_ticks: int
    boot: str
    fingerprint: str


def boot_id() -> str:
    """Return the id the kernel draws at every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot.

    Returns:
        None when there is no such process or it has ended and only waits to be reaped.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the command may hold blanks and brackets; it ends at the last ")"
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def read(file: Path) -> Record | None:
    """Read a pid file; None when it is missing or not one of ours."""
    try:
        return Record(**json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def alive(record: Record | None) -> bool:
    """Say whether the very process of the record still runs."""
    return record is not None and record.boot == boot_id() and start_ticks(record.pid) == record.start_ticks


def start(file: Path, argv: Sequence[str], *, log: Path, fingerprint: str, env: Mapping[str, str]) -> Record:
    """Start a process in a session of its own and write its pid file.

    Args:
        file: Pid file, replaced atomically.
        argv: Program (absolute path) and arguments.
        log: Receives stdout and stderr, appended; a log over 16 MiB becomes ``<log>.1`` first.
        fingerprint: Stored in the record.
        env: The whole environment.

    Returns:
        The record.

    Raises:
        OSError: The program cannot be started, or ended at once.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_KEEP_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    program.check(argv[0])
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    ticks = start_ticks(pid)
    if ticks is None:
        raise OSError(f"{argv[0]} ended at once; see {log}")
    record = Record(pid, ticks, boot_id(), fingerprint)
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
    fresh.replace(file)
    return record


def stop(file: Path, *, grace_seconds: float) -> bool:
    """End the process of a pid file and remove the file.

    Args:
        file: Pid file; a missing or foreign one is no error.
        grace_seconds: Time between SIGTERM and SIGKILL.

    Returns:
        Whether a process of ours was running.

    Raises:
        TimeoutError: Not even SIGKILL ended it within ten seconds.
    """
    record = read(file)
    was_running = record is not None and _end(record, grace_seconds)
    file.unlink(missing_ok=True)
    return was_running


def _end(record: Record, grace_seconds: float) -> bool:
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(record):
            return False
        if not (_ends_on(signal.SIGTERM, handle, grace_seconds) or _ends_on(signal.SIGKILL, handle, KILL_SECONDS)):
            raise TimeoutError(f"process {record.pid} does not end on SIGKILL: it waits inside the kernel")
        _reap(record.pid)
    finally:
        os.close(handle)
    return True


def _ends_on(number: signal.Signals, handle: int, seconds: float) -> bool:
    """Send a signal to a pidfd; True once its process has ended, within the given seconds."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return True
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
