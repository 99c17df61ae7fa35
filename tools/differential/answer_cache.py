"""A cache of the engine's answers, so that a developer waits for each only once."""

from __future__ import annotations

import fcntl
import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from tools.differential import environment
from tools.differential.oracle import ENGINE, Answer, Oracle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.differential.generator import Case


class AnswerCache:
    """The engine behind a file of its earlier answers; another engine or another harness gets another file.

    The tests ask the engine itself.

    Args:
        oracle: Asked what the file does not hold.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        source = environment.LOCK.read_bytes() + ENGINE.read_bytes()
        self._file = environment.cache() / f"answers-{hashlib.sha256(source).hexdigest()[:16]}.jsonl"
        self._known: dict[str, Answer] = {}
        if self._file.exists():
            with self._file.open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                self._known = {key: Answer(**answer) for key, answer in map(json.loads, file)}

    def ask(self, cases: Sequence[Case]) -> list[Answer]:
        """Answer from the file where that is possible, and add the rest to it."""
        keys = [_key(case) for case in cases]
        missing = {key: case for key, case in zip(keys, cases, strict=True) if key not in self._known}
        fresh = dict(zip(missing, self._oracle.ask(list(missing.values())), strict=True)) if missing else {}
        # No verdict is the machine's fault, not the line's: worth another try.
        self._remember({key: answer for key, answer in fresh.items() if answer.accepted is not None})
        return [fresh[key] if key in fresh else self._known[key] for key in keys]

    def _remember(self, answers: Mapping[str, Answer]) -> None:
        self._known |= answers
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.writelines(json.dumps([key, asdict(answer)]) + "\n" for key, answer in answers.items())


def _key(case: Case) -> str:
    return json.dumps([case.platform, case.argv, dict(case.env), case.config], sort_keys=True)
