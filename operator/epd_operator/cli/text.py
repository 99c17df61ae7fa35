"""What a person reads: findings with the lines that caused them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_operator.cli.excerpt import excerpt
from epd_operator.cli.position import Position
from epd_operator.cli.terminal import clean
from epd_operator.cli.verdict import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_operator.cli.document import Unreadable
    from epd_operator.cli.excerpt import Note
    from epd_operator.cli.terminal import Style
    from epd_operator.cli.verdict import Verdict
    from epd_operator.rules.finding import Finding, Side

_COLOURS = {"error": "red", "warning": "yellow"}


def verdict_lines(verdict: Verdict, style: Style) -> Iterator[str]:
    """One judged object: a headline, then every finding."""
    numbers = [count(number, noun) for number, noun in ((verdict.errors, "error"), (verdict.warnings, "warning"))]
    result = ", ".join(text for text in numbers if not text.startswith("0"))
    label = f"{clean(verdict.document.label)}: " if verdict.document is not None else ""
    outcome = style("green", "accepted") if verdict.accepted else style("red", "refused")
    judged = f" ({clean(verdict.judged)})" if verdict.judged else ""
    yield f"{style('bold', verdict.file)}: {label}{outcome}{f': {result}' if result else ''}{judged}"
    for finding in verdict.judgement.findings:
        yield ""
        yield from finding_lines(verdict, finding, style)
    if verdict.judgement.findings:
        yield ""


def finding_lines(verdict: Verdict, finding: Finding, style: Style) -> Iterator[str]:
    """One finding: rule, excerpt, way out."""
    role = f" {finding.role}:" if finding.role else ""
    head = style(_COLOURS[finding.severity], f"{finding.severity}[{finding.rule}]")
    yield f"  {head}{role} {clean(finding.says)}"
    place = verdict.main_place(finding)
    if place is not None:
        yield f"   {style('dim', '-->')} {clean(verdict.file)}:{place.line}:{place.column}"
    notes: list[Note] = []
    behind: list[str] = []
    for side in finding.sides:
        spot = verdict.place(side)
        if side.form == "derived":
            behind.append(f"    {clean(str(side))}")
        elif spot is None:
            yield f"    {clean(_words(verdict, side))}"
        else:
            notes.append((spot, _words(verdict, side, exact=spot.exact)))
    if notes and verdict.document is not None:
        yield from (f"    {line}" for line in excerpt(verdict.document.source, notes, style))
    yield from behind
    yield from _advice(verdict, finding, style)


def _advice(verdict: Verdict, finding: Finding, style: Style) -> Iterator[str]:
    fix = finding.fix
    if finding.may_acknowledge and verdict.document is not None:
        fix += f"{'; or ' if fix else ''}add {finding.rule} to spec.engine.acknowledge"
    if fix:
        yield f"    {style('bold', 'fix:')} {clean(fix)}"
    if finding.acknowledged:
        yield f"    {style('dim', 'acknowledged in spec.engine.acknowledge')}"
    if finding.inferred:
        yield f"    {style('dim', f'inferred for {finding.version} from a neighbouring version')}"


def unreadable_lines(unreadable: Unreadable, style: Style) -> Iterator[str]:
    """Why a file could not be used, with the line if one is to blame."""
    error = unreadable.error
    place = f":{error.line}:{error.column}" if error.column else f":{error.line}" if error.line else ""
    yield f"{style('bold', unreadable.name)}{place}: {style('red', 'unusable')}: it {clean(error.message)}"
    if error.column and unreadable.source is not None:
        spot = Position(error.line, error.column, error.column + 1)
        yield from (f"    {line}" for line in excerpt(unreadable.source, [(spot, "")], style))


def _words(verdict: Verdict, side: Side, *, exact: bool = False) -> str:
    # A field that is there without a value worth showing is an object or a list.
    text = side.field if exact and side.written is None else str(side)
    option = verdict.overrides.get(side.field)
    if option:
        return f"{text} (by {option})"
    raw = verdict.document.spelling(side.field) if verdict.document is not None and exact else None
    if isinstance(side.written, bool) and raw is not None and raw.lower() not in {"true", "false"}:
        return f"{text} (YAML takes {raw} for {str(side.written).lower()}: quote it)"
    return text
