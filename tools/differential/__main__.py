"""Compare our rules with the engine on fresh command lines: `python -m tools.differential --count 300 --seed 1`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tools.differential.answer_cache import AnswerCache
from tools.differential.comparison import Comparison, command, compare, disagreements
from tools.differential.generator import PLATFORMS, cases
from tools.differential.oracle import Oracle
from tools.differential.shrinking import Answers, shrink_all
from tools.differential.vocabulary import THEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="command lines to draw")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same lines")
    parser.add_argument("--platform", choices=PLATFORMS, help="only this one")
    parser.add_argument("--theme", choices=sorted(THEMES), help="only flags of this cluster, and a few others")
    parser.add_argument("--examples", type=int, default=2, help="shrunken lines to show of each kind")
    parser.add_argument("--json", action="store_true", help="one object a disagreement, for programs")
    return parser.parse_args()


def _grouped(result: Iterable[Comparison], kind: Callable[[Comparison], str]) -> list[tuple[str, list[Comparison]]]:
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for one in result:
        groups[kind(one)].append(one)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _verdicts(result: list[Comparison], engine: Answers, examples: int) -> list[dict[str, Any]]:
    rows = []
    for kind, members in _grouped(result, lambda one: one.kind):
        small = shrink_all(members[:examples], engine)
        rows.append({"kind": kind, "count": len(members), "examples": list(dict.fromkeys(map(str, small)))})
    return rows


def _values(compared: list[Comparison], engine: Answers, examples: int) -> list[dict[str, Any]]:
    rows = []
    for name in sorted({name for one in compared for name in one.differences}):
        members = [one for one in compared if name in one.differences]

        def kind(one: Comparison, name: str = name) -> str:
            return name if name in one.differences else ""

        shown = []
        for one in shrink_all(members[:examples], engine, kind):
            ours, theirs = one.differences[name]
            shown.append(f"  {command(one.case)}\n    engine: {theirs}\n    ours:   {ours}")
        rows.append({"kind": name, "count": len(members), "examples": list(dict.fromkeys(shown))})
    return sorted(rows, key=lambda row: -row["count"])


def main() -> int:
    """Print what disagrees, the most frequent first.

    Returns:
        0 when nothing does.
    """
    options = _options()
    platforms = (options.platform,) if options.platform else PLATFORMS
    drawn = cases(options.seed, options.count, platforms, options.theme)
    with Oracle() as oracle:
        engine = AnswerCache(oracle)
        answers = engine.ask(drawn)
        began = time.monotonic()
        compared = compare(drawn, answers)
        judged = time.monotonic() - began
        result = disagreements(compared)
        verdicts = _verdicts(result, engine, options.examples)
        values = _values(compared, engine, options.examples)
    if options.json:
        json.dump({"cases": len(drawn), "verdicts": verdicts, "values": values}, sys.stdout, indent=2)
        return bool(result)
    same = sum(one.agrees for one in compared)
    accepted = sum(bool(one.answer.accepted) for one in compared)
    lines = [
        f"{len(drawn)} command lines, {accepted} accepted by the engine; ours took {judged:.1f} s",
        f"same verdict: {same} ({same / len(drawn):.1%}); verdict and reason: {len(drawn) - len(result)}",
    ]
    for row in verdicts:
        lines += [f"\n{row['count']} x {row['kind']}", *row["examples"]]
    for row in values:
        lines += [f"\n{row['count']} x another value of {row['kind']}", *row["examples"]]
    sys.stdout.write("\n".join(lines) + "\n")
    return bool(result)


if __name__ == "__main__":
    sys.exit(main())
