"""A mistake in a rule does not pass unnoticed: nine of ten mutants die, all of them by night and a sample by day."""

from __future__ import annotations

import os
import random
import sys

import pytest

from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.validation import validate, validate_command_line
from epd_operator.rules.expression import Const, every, named
from epd_operator.rules.rule import Rule
from tools.corpus.field_cases import field_cases
from tools.differential.comparison import VERSION
from tools.mutation.experiment import Effect
from tools.mutation.mutant import ValueMutant, changes, mutants, rule_mutants, show, through
from tools.mutation.record import BOUNDARIES, recorded, rows
from tools.mutation.recorded_case import SGLANG
from tools.mutation.score import Scorer

SAMPLE = 400
ENOUGH = 0.9


@pytest.fixture(scope="session")
def scorer() -> Scorer:
    return Scorer()


def test_nothing_recorded_fails_without_a_mutant(scorer: Scorer) -> None:
    experiment = scorer.experiment
    failing = [one.name for one in recorded() if Effect(one, frozenset(), experiment.broken(one), {}).noticed]
    assert failing == []


def test_settings_are_as_recorded() -> None:
    for recording in recorded():
        if recording.settings:
            (role,) = recording.judged
            ours = {value.name: value.value(recording.processes[role]) for value in SGLANG.resolved}
            assert {name: ours[name] for name in recording.settings if name in ours} == {
                name: value for name, value in recording.settings.items() if name in ours
            }, recording.name


def test_stands_find_what_the_judgement_finds() -> None:
    """Guards the experiment: it must judge as users are judged."""
    by_name = {recording.name: recording for recording in recorded()}
    for case in field_cases():
        if case.name in by_name:
            recording = by_name[case.name]
            actual = {(one.rule, one.severity) for one in recording.constant}
            actual |= {(one.rule, one.severity) for one in map(recording.finding_of, recording.broken(SGLANG.rules))}
            judged = {(finding.rule, finding.severity) for finding in validate(case.document).findings}
            assert actual == judged, case.name
    for row in rows(BOUNDARIES)[::20]:
        judgement = validate_command_line(VERSION, row["platform"], row["argv"], row["env"], config=row.get("config"))
        recording = by_name[row["id"]]
        rules = {one.rule for one in recording.constant} | {rule.id for rule in recording.broken(SGLANG.rules)}
        assert rules == {finding.rule for finding in judgement.findings}, row["id"]


def test_mistakes_of_every_kind_are_made() -> None:
    size = flag("tp-size")
    made = [change for change, _ in changes(every(size > 1, size.isin((2, 4)), ~(written("page-size") == None)))]  # noqa: E711
    expected = [
        "&& becomes ||",
        "without (tp-size or 1 > 1)",
        "not (tp-size or 1 > 1)",
        "> becomes >=",
        "> becomes <",
        "1 becomes 2",
        "1 becomes 0",
        "never given: tp-size",
        "2 is not a choice of",
        "no longer negated",
        "always: (page-size == None)",
    ]
    assert [kind for kind in expected if not any(change.startswith(kind) for change in made)] == []


def test_rules_are_widened_and_narrowed() -> None:
    rule = Rule("a-rule", flag("enable-mixed-chunk"), (written("enable-mixed-chunk"),), "a", "b", "c", since="0.5.23")
    made = {mutant.change for mutant in rule_mutants(rule, SGLANG.versions)}
    assert {"also for encode", "not for prefill", "since one version earlier"} <= made


def test_a_wrong_value_reaches_the_rules_that_go_by_it() -> None:
    inner = named("inner", flag("tp-size"), written("tp-size"))
    outer = named("outer", inner + 1, written("tp-size"))
    rule = Rule("a-rule", outer > 4, (outer,), "a", "b", "c")
    mutant = through(ValueMutant("", inner, Const(9, "int")), rule)
    assert show(mutant.rule.when) == "(outer' > 4)"
    recording = recorded()[0]
    process = next(iter(recording.processes.values()))
    assert not rule.when.value(process) or process.args.get("tp-size", 1) != 2
    assert mutant.rule.when.value(process)


def test_mutants_are_many() -> None:
    subjects = {mutant.subject for mutant in mutants(SGLANG)}
    assert {rule.id for rule in SGLANG.rules} <= subjects


def test_a_sample_of_mutants_dies(scorer: Scorer) -> None:
    # All mutants are counted by night; the seed is fixed, so that the same rules always give the same share by day.
    seed = int(os.environ.get("EPD_SEED") or 1)
    score = scorer.sample(SAMPLE, random.Random(seed))
    assert score.share >= ENOUGH, f"EPD_SEED={seed} draws the same sample\n{score.report()}"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_nine_of_ten_mutants_die(scorer: Scorer) -> None:
    score = scorer.all(scorer.subjects())
    sys.stdout.write(f"{score.report()}\n")  # shown by `pytest -rP`
    assert score.share >= ENOUGH, score.report()
