"""What commands that need valid objects do with the others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from epd_operator.cli import document, report
from epd_operator.cli.terminal import clean, style_of
from epd_operator.cli.validate import Options, judged
from epd_operator.cli.verdict import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_operator.cli.document import Document


def accepted(paths: Sequence[str]) -> tuple[list[Document], int]:
    """The objects in files and folders that the rules accept, and the exit status so far.

    What is refused, warned of or unreadable is told on standard error.
    """
    found: list[Document] = []
    tally = Tally()
    style = style_of(sys.stderr)
    for reading in document.read(paths):
        lines: list[str] = []
        for one in reading.documents:
            verdict = judged(one, Options())
            tally.add(verdict)
            if verdict.accepted:
                found.append(one)
            if verdict.judgement.findings:
                lines += report.verdict_lines(verdict, style)
        if reading.unreadable is not None:
            tally.add(reading.unreadable)
            lines += report.unreadable_lines(reading.unreadable, style)
        for line in lines:
            print(clean(line, sys.stderr), file=sys.stderr)
    if not tally.status and not found:
        print("epd: no DeepSeekV41Deployment found: give its manifest", file=sys.stderr)
        return found, 2
    return found, tally.status
