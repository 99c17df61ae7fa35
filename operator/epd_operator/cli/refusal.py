"""What commands that need valid objects do with the others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from epd_operator.cli import document, text
from epd_operator.cli.terminal import style_of, write
from epd_operator.cli.validate import Options, judged
from epd_operator.cli.verdict import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_operator.cli.document import Document
    from epd_operator.rules.advisory import Advisory


def accepted(paths: Sequence[str], advisories: tuple[Advisory, ...] = ()) -> tuple[list[Document], int]:
    """The objects in files and folders that the rules accept, and the exit status so far.

    Findings and unreadable files are reported on standard error, with what is known of single builds.

    Args:
        paths: Files, folders, or `-` for standard input.
        advisories: What is known of single builds.
    """
    result: list[Document] = []
    tally = Tally()
    style = style_of(sys.stderr)
    for reading in document.read(paths):
        lines: list[str] = []
        for one in reading.documents:
            verdict = judged(one, Options(), advisories)
            tally.add(verdict)
            if verdict.accepted:
                result.append(one)
            if verdict.judgement.findings:
                lines += text.verdict_lines(verdict, style)
        if reading.unreadable is not None:
            tally.add(reading.unreadable)
            lines += text.unreadable_lines(reading.unreadable, style)
        for line in lines:
            write(line, sys.stderr)
    if not tally.status and not result:
        print("epd: no DeepSeekV41Deployment found: give its manifest", file=sys.stderr)
        return result, 2
    return result, tally.status
