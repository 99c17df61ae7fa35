"""List the mutants that survive, or grow the recorded lines: `python -m tools.mutation [--rule ID] [--grow]`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tools.differential.answer_cache import AnswerCache
from tools.differential.oracle import Oracle
from tools.mutation.collection import grow
from tools.mutation.score import Scorer


def main() -> int:
    """Print survivors, or ask the engine.

    Returns:
        0 when at least nine of ten mutants die, or when the engine agrees with the rules on every new line.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("--rule", help="only the mutants of this rule or resolved value")
    parser.add_argument("--alike", action="store_true", help="also list mutants that were never seen to differ")
    parser.add_argument("--grow", action="store_true", help="ask the engine about lines that would catch survivors")
    parser.add_argument("--quick", action="store_true", help="with --grow: only lines around rules, no long searches")
    options = parser.parse_args()

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    if options.grow:
        with Oracle() as oracle:
            collected = grow(AnswerCache(oracle), say, searching=not options.quick)
        for one in collected.wrong:
            row: dict[str, Any] = {
                "platform": one.case.platform,
                "argv": one.case.argv,
                "env": dict(one.case.env),
                "kind": one.kind,
            }
            values = {name: list(pair) for name, pair in one.differences.items()}
            row |= {"values": values, "engine": one.answer.error, "ours": sorted(one.ours)}
            sys.stdout.write(f"{json.dumps(row)}\n")
        return bool(collected.wrong)
    scorer = Scorer()
    score = scorer.all([options.rule] if options.rule else scorer.subjects())
    lines = [score.report()]
    if options.alike:
        lines += ["", "never seen to differ:", *(f"{mutant.subject}: {mutant.change}" for mutant in score.alike)]
    sys.stdout.write("\n".join(lines) + "\n")
    return score.share < 0.9


if __name__ == "__main__":
    sys.exit(main())
