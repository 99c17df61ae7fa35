"""The harness itself: what it draws, what it finds, and what it makes of a find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from epd_operator.rules.finding import Finding
from epd_operator.rules.judgement import Judgement
from tools.differential import comparison, environment
from tools.differential.answer_cache import AnswerCache
from tools.differential.comparison import compare, disagreements
from tools.differential.generator import PLATFORMS, Case, case, cases
from tools.differential.oracle import Answer, Oracle
from tools.differential.shrinking import shrink_all
from tools.differential.vocabulary import ALIASES, COMPANIONS, ENV, FLAGS, RECIPES, RISKY, RISKY_ON, THEMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REFUSED = Answer(accepted=False, error="no", stage="resolve", raised_by="sglang.srt.arg_groups.a_hook.check")
LONG = Case(
    "long",
    "cuda-sm90",
    ("--model-path", "m", "--tp-size=4", "--pp-size", "2", "--encoder-urls", "a", "b", "--enable-lora"),
    {"SGLANG_RAGGED_VERIFY_MODE": "static"},
)


class Strict:
    """An engine that refuses two flags together."""

    def ask(self, cases: Sequence[Case]) -> list[Answer]:
        return [
            REFUSED if {"--pp-size", "--enable-lora"} <= set(case.argv) else Answer(accepted=True) for case in cases
        ]


def test_a_seed_draws_the_same_lines_again() -> None:
    assert cases(4, 60) == cases(4, 60)
    assert cases(4, 60) != cases(5, 60)
    assert [drawn.platform for drawn in cases(4, 4)] == [*PLATFORMS, PLATFORMS[0]]


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_a_theme_draws_its_own_flags(theme: str) -> None:
    words = {word.partition("=")[0] for seed in range(200) for word in case(seed, "cuda-sm90", theme).argv}
    variables = {name for seed in range(200) for name in case(seed, "cuda-sm90", theme).env}
    spelt = words | variables
    missed = [name for name in THEMES[theme] if not spelt & {name, *ALIASES.get(name, ())}]
    assert not missed


def test_the_vocabulary_is_one_piece() -> None:
    known = {*FLAGS, *ENV, "--model-path"}
    named = {name for theme in THEMES.values() for name in theme} | {*COMPANIONS, *ALIASES}
    named |= {name for companions in COMPANIONS.values() for name, _ in companions}
    named |= {word.partition("=")[0] for word in RISKY.union(*RISKY_ON.values())}
    named |= {word for recipe in RECIPES for word in recipe.split() if word.startswith(("--", "SGLANG_"))}
    assert named <= known


def test_a_disagreement_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "judge", lambda _: Judgement(()))
    engine = Strict()
    actual = disagreements(compare([LONG, replace(LONG, argv=("--enable-lora",))], engine.ask([LONG]) * 2))
    assert [one.kind for one in actual] == ["a_hook.check refuses, we accept"] * 2
    small = shrink_all(actual[:1], engine)
    assert small[0].case.argv == ("--pp-size", "2", "--enable-lora")
    assert not small[0].case.env
    assert "[cuda-sm90] --pp-size 2 --enable-lora" in str(small[0])
    assert "resolve: no (a_hook.check)" in str(small[0])
    assert "ours:   accepts" in str(small[0])


def test_a_refusal_for_another_reason_is_a_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("some-rule", "error", "prefill", (), "says", "fix", decided_by="b_hook.check")
    monkeypatch.setattr(comparison, "judge", lambda _: Judgement((finding,)))
    actual = disagreements(compare([LONG, LONG], [REFUSED, Answer(accepted=True)]))
    assert [one.kind for one in actual] == [
        "a_hook.check refuses, we refuse for another reason",
        "the engine accepts, we refuse by some-rule",
    ]
    monkeypatch.setattr(comparison, "judge", lambda _: Judgement((replace(finding, decided_by="a_hook.check"),)))
    assert not disagreements(compare([LONG], [REFUSED]))


def test_no_verdict_is_a_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "judge", lambda _: Judgement(()))
    assert disagreements(compare([LONG], [Answer(accepted=None, stage="crash")]))


def test_other_values_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Judgement((), resolved={"prefill": {"page_size": 64, "tp_size": 4, "ours_alone": 1}})
    monkeypatch.setattr(comparison, "judge", lambda _: ours)
    answer = Answer(accepted=True, resolved={"page_size": 256, "tp_size": 4, "theirs_alone": 1})
    assert compare([LONG], [answer])[0].differences == {"page_size": (64, 256)}


class Counting(Oracle):
    """Counts what it is asked, and cannot say a thing about platform `slow`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    @override
    def ask(self, cases: Sequence[Case]) -> list[Answer]:
        self.asked += len(cases)
        return [Answer(accepted=None if case.platform == "slow" else True) for case in cases]


def test_answers_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = replace(LONG, platform="slow")
    first, later = Counting(), Counting()
    assert [answer.accepted for answer in AnswerCache(first).ask([LONG, LONG, slow])] == [True, True, None]
    assert [answer.accepted for answer in AnswerCache(later).ask([slow, LONG])] == [None, True]
    assert (first.asked, later.asked) == (2, 1)


def test_an_environment_that_cannot_be_made_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "engine.txt"
    lock.write_text("sglang==0.5.23\n")  # without a hash
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "LOCK", lock)
    with pytest.raises(RuntimeError, match="must have a hash"):
        environment.interpreter()
    assert not environment.folder().exists()


def test_an_engine_that_ends_says_why(oracle: Oracle) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'abacus'"):
        oracle.ask([replace(LONG, platform="abacus")])
