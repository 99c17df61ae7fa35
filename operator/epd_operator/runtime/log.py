"""Log lines: JSON for machines, one aligned line for people, never a secret.

Only our own loggers' extra fields are written; a library's could hold anything.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

from typing_extensions import override

Format = Literal["json", "text"]
OURS: Final = "epd_operator"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup(form: Format, level: str) -> None:
    """Configure the root logger, once a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":  # kopf logs every event at INFO
        logging.getLogger("kopf").setLevel(logging.WARNING)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    if not record.name.startswith(OURS):
        return {}
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}


class Json(logging.Formatter):
    """One JSON object a line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Text(logging.Formatter):
    """One line for people."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback below it when there is one."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        extras = " ".join(f"{name}={value}" for name, value in _extras(record).items())
        line = f"{time} {record.levelname:<7} {record.getMessage()}{'  ' + extras if extras else ''}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
