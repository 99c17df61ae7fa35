"""Make a disagreement as small as it can be: the fewest flags and variables that still show it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from tools.differential.comparison import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tools.differential.comparison import Comparison
    from tools.differential.generator import Case
    from tools.differential.oracle import Answer


class Answers(Protocol):
    """The engine, or a stand-in for it."""

    def ask(self, cases: Sequence[Case]) -> list[Answer]:
        """An answer for each case."""
        ...


def shrink_all(
    result: Sequence[Comparison], engine: Answers, kind: Callable[[Comparison], str] = lambda seen: seen.kind
) -> list[Comparison]:
    """Shrink some disagreements side by side.

    Args:
        result: What disagrees.
        engine: Who answers for smaller cases.
        kind: What must stay the same while a case shrinks.
    """
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda one: shrink(one, engine, kind), result))


def shrink(result: Comparison, engine: Answers, kind: Callable[[Comparison], str]) -> Comparison:
    """Drop and simplify one thing after the other, until no single step leaves the disagreement as it was."""
    wanted = kind(result)
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(result.case):
            seen = compare([candidate], engine.ask([candidate]))[0]
            if kind(seen) == wanted:
                result, smaller = seen, True
                break
    return result


def candidates(case: Case) -> Iterator[Case]:
    """Every case that is one step simpler: something left out, then something written plainly."""
    parts = _parts(case.argv)
    half = len(parts) // 2
    steps = [(parts[:half]), (parts[half:])] if half > 1 else []
    steps += [parts[:i] + parts[i + 1 :] for i in range(len(parts))]
    for i, part in enumerate(parts):
        flag, equals, value = part[0].partition("=")
        if equals and len(part) == 1:
            steps.append([*parts[:i], (flag, value), *parts[i + 1 :]])
        if len(part) > 2:
            steps.append([*parts[:i], part[:2], *parts[i + 1 :]])
    for step in steps:
        yield replace(case, argv=tuple(argument for part in step for argument in part))
    for name in case.env:
        yield replace(case, env={key: value for key, value in case.env.items() if key != name})


def _parts(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """A command line as flags with their values."""
    parts: list[tuple[str, ...]] = []
    for argument in argv:
        if argument.startswith("--") or not parts:
            parts.append((argument,))
        else:
            parts[-1] = (*parts[-1], argument)
    return parts
