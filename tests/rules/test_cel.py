"""Folding keeps the meaning, and what is printed is CEL that the API server takes.

Whether CEL means the same is asked of a real API server in e2e/tests/test_admission.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_operator.rules.cel import LARGEST, Program, bound, literal
from epd_operator.rules.expression import (
    NOTHING,
    PLATFORM,
    ROLE,
    Const,
    Expr,
    Leaf,
    Opaque,
    Since,
    Text,
    at,
    contains,
    declared,
    every,
    lift,
    model_of,
    named,
    number,
    size,
    some,
    spec_of,
    starts,
    variable,
    when,
)
from epd_operator.rules.fold import Folder
from epd_operator.rules.process import Process

OWNED = {"o": spec_of("transfer.bootstrapPort", "int").otherwise(7)}
CHECKPOINT = {"layers": 40}
INTS: list[Expr] = [*(Leaf("flag", name, "int") for name in ("a", "b", "o", "unknown")), model_of("layers", "int")]
BOOLS: list[Expr] = [Leaf("flag", name, "bool") for name in ("f", "g")]
WORDS: list[Expr] = [Leaf("flag", "s", "str"), variable("V"), PLATFORM, ROLE]
LISTS: list[Expr] = [Leaf("flag", "l", "list")]
WORD = st.sampled_from(["", "a", "ab", "12", "-3", "A"])


def _constant(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Expr]:
    return values.map(lift)


def _numbers(below: st.SearchStrategy[Expr], conditions: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(lambda x, y, op: getattr(x, op)(y), below, below, st.sampled_from(OPERATORS)),
        st.builds(lambda x, y: x.otherwise(y), below, below),
        st.builds(when, conditions, below, below | st.just(NOTHING)),
        st.builds(Since, st.integers(0, 2), below, below),
        st.builds(lambda x: at("decode", x), below),
    )


OPERATORS = ("__add__", "__sub__", "__mul__", "__floordiv__", "__mod__")
ORDERS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
SMALL_NUMBERS = st.sampled_from(INTS) | _constant(st.sampled_from([-2, 0, 1, 3, 64]))
SMALL_CONDITIONS = st.one_of(
    st.sampled_from(BOOLS).map(lambda leaf: leaf == True),  # noqa: E712 - an expression
    st.sampled_from(BOOLS).map(lambda leaf: leaf.otherwise(True)),
    st.sampled_from([*INTS, *WORDS, *LISTS]).map(lambda leaf: leaf.given),
    st.builds(lambda leaf, word: leaf == word, st.sampled_from(WORDS), WORD),
    st.builds(lambda leaf, words: leaf.isin(words), st.sampled_from(WORDS), st.lists(WORD, max_size=2)),
    st.builds(starts, st.sampled_from(WORDS), WORD),
    st.builds(contains, st.sampled_from([*WORDS, *LISTS]), WORD),
    st.builds(lambda leaf, least: size(leaf) >= least, st.sampled_from([*WORDS, *LISTS]), st.integers(0, 2)),
    st.builds(lambda leaf, other: number(leaf) == other, st.sampled_from(WORDS), st.sampled_from([12, -3])),
    st.just(declared("encode")),
)


def _conditions(below: st.SearchStrategy[Expr], numbers: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(lambda x, y, op: getattr(x, op)(y), numbers, numbers, st.sampled_from(ORDERS)),
        st.builds(lambda x, values: x.isin(values), numbers, st.lists(st.integers(-1, 3), max_size=2)),
        st.builds(every, below, below, below),
        st.builds(some, below, below, below),
        st.builds(lambda term: ~term, below),
        st.builds(when, below, below, below),
        st.builds(lambda x: at("decode", x), below),
    )


def _deeper(level: int) -> tuple[st.SearchStrategy[Expr], st.SearchStrategy[Expr]]:
    if level == 0:
        return SMALL_NUMBERS, SMALL_CONDITIONS
    numbers, conditions = _deeper(level - 1)
    more = numbers | _numbers(numbers, conditions)
    return more, conditions | _conditions(conditions, numbers)


NUMBERS, CONDITIONS = _deeper(3)
ARGS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-5, 5),
        "b": st.sampled_from([-64, 0, 1, 64]),
        "f": st.booleans(),
        "g": st.booleans(),
        "s": WORD,
        "l": st.lists(WORD, max_size=2),
    },
)
ENVIRONMENTS: st.SearchStrategy[dict[str, str]] = st.fixed_dictionaries({}, optional={"V": WORD})
SPECS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"roles": st.fixed_dictionaries({"prefill": st.just({}), "decode": st.just({})}, optional={"encode": st.just({})})},
    optional={"transfer": st.just({"bootstrapPort": 9})},
)


def _folder(rank: int | None) -> Folder:
    return Folder(rank, CHECKPOINT, OWNED, lambda _role, name: name != "unknown")


@st.composite
def processes(draw: st.DrawFn) -> Process:
    siblings: dict[str, Process] = {}
    spec, rank = draw(SPECS), draw(st.integers(0, 2))
    platform = draw(st.sampled_from(["cuda-sm90", "hip-gfx950"]))
    for role in ("prefill", "decode"):
        siblings[role] = Process(
            role, platform, rank, draw(ARGS), draw(ENVIRONMENTS), CHECKPOINT, OWNED, spec, siblings
        )
    return siblings["prefill"]


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and (left is None) == (right is None)


@settings(max_examples=300)
@given(NUMBERS | CONDITIONS, processes())
def test_folding_keeps_the_meaning_in_every_scope(expression: Expr, process: Process) -> None:
    for rank in (process.rank, None):
        folded = _folder(rank).fold(expression, "prefill")
        process.memo.clear()
        assert not folded.blind
        assert _same(folded.expr.value(process), expression.value(process))
        assert folded.expr.nullable <= expression.nullable


@given(NUMBERS | CONDITIONS, processes())
def test_names_are_kept_apart_by_role(expression: Expr, process: Process) -> None:
    value = named("value", expression)
    both = every(value == expression, at("decode", value) == at("decode", expression))
    folded = _folder(None).fold(both, "prefill").expr
    assert folded.value(process) is both.value(process)


def _program(expression: Expr) -> tuple[Program, str]:
    folded = _folder(None).fold(expression, "prefill").expr
    program = Program(lambda role, leaf: f"dyn(leaf('{role}', '{leaf.name}'))", {"prefill": "p", "decode": "d"})
    program.expect(folded)
    return program, program.text(folded)


@settings(max_examples=200)
@given(NUMBERS | CONDITIONS)
def test_what_is_printed_asks_only_for_what_was_defined_before(expression: Expr) -> None:
    program, text = _program(expression)
    known = {"platform", "rank"}
    for name, body in [*program.variables.items(), ("", text)]:
        assert set(re.findall(r"variables\.(\w+)", body)) <= known
        bare = re.sub(r"'(\\.|[^'\\])*'", "''", body)
        assert bare.count("(") == bare.count(")")
        assert not re.search(r"\b(None|True|False)\b", bare)
        known.add(name)


def test_the_folder_shares_what_is_equal_and_the_program_names_it_once() -> None:
    long = " and ".join(["a long text"] * 5)
    twice = [Leaf("flag", "s", "str") == long for _ in range(3)]
    program, text = _program(some(every(twice[0], BOOLS[0] == True), every(twice[1], BOOLS[1] == True)))  # noqa: E712
    assert sum(body.count(long) for body in program.variables.values()) + text.count(long) == 1


def test_a_version_left_open_stays_a_question_only_where_versions_differ() -> None:
    leaf = Leaf("flag", "a", "int")
    folder = _folder(None)
    assert _folder(1).fold(Since(1, lift(5), leaf), "prefill").expr.value(Process("prefill", "", 1, {}, {}, {})) == 5
    assert folder.fold(Since(0, lift(5), leaf), "prefill").expr is folder.const(5)
    program, text = _program(Since(2, leaf == 1, leaf == 3))
    assert text == "variables.rank >= 2 ? variables.pf_a == 1 : variables.pf_a == 3"
    assert list(program.variables) == ["pf_a"]


def test_an_opaque_is_exact_where_nothing_is_written_and_a_recorded_guess_elsewhere() -> None:
    leaf = Leaf("flag", "s", "str")
    opaque = Opaque("first letter", lambda text: "none" if text is None else text[:1], (leaf,), "str", blind="?")
    folder = _folder(None)
    folded = folder.fold(opaque == "none", "prefill")
    (blind,) = folded.blind
    assert blind.name == "first letter"
    assert folded.expr is folder.absent(folder.fold(leaf, "prefill").expr)
    assert blind.when is folder.negate(folded.expr)
    sure = folder.fold(every(opaque == "x", lift(False)), "prefill")
    assert sure.expr is folder.const(False)
    assert not sure.blind


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "dyn(null)"),
        (True, "true"),
        (-3, "-3"),
        (0.5, "0.5"),
        ("it's \\ a\nline\t", "'it\\'s \\\\ a\\nline\\t'"),
        (("a", "b"), "['a', 'b']"),
    ],
)
def test_literals(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (INTS[0] < INTS[1], "variables.pf_a != null && variables.pf_b != null && variables.pf_a < variables.pf_b"),
        (INTS[0] == None, "variables.pf_a == null"),  # noqa: E711 - an expression
        (INTS[0].otherwise(1) > 3, "variables.pf_a != null && variables.pf_a > 3"),
        (INTS[0].otherwise(8) > 3, "variables.pf_a == null || variables.pf_a != null && variables.pf_a > 3"),
        (BOOLS[0].otherwise(False), "variables.pf_f == true"),
        (BOOLS[0].otherwise(True), "variables.pf_f != false"),
        (INTS[0].isin([1]), "variables.pf_a == 1"),
        (WORDS[0].isin(["a", "b"]), "variables.pf_s in ['a', 'b']"),
        (contains(LISTS[0], "a"), "variables.pf_l != null && 'a' in variables.pf_l"),
        (size(LISTS[0]), "variables.pf_l == null ? 0 : size(variables.pf_l)"),
        (at("decode", WORDS[1]) == "x", "variables.dv_V == 'x'"),
        (~(PLATFORM == "cuda-sm90"), "variables.platform != 'cuda-sm90'"),
        (declared("encode"), "has(object.spec.roles.encode)"),
        (declared("decode"), "true"),
    ],
)
def test_expressions(expression: Expr, text: str) -> None:
    assert _program(expression)[1] == text


def test_products_are_cut_only_where_they_might_leave_64_bits() -> None:
    leaf = size(LISTS[0])
    program, text = _program(INTS[0].otherwise(1) * INTS[1].otherwise(1))
    assert str(LARGEST) in " ".join(program.variables.values())
    program, text = _program(leaf % 4 * 4 + 1)
    assert str(LARGEST) not in " ".join([*program.variables.values(), text])


@given(st.integers(-(2**31), 2**31), st.integers(-(2**31), 2**31))
def test_a_bound_holds(left: int, right: int) -> None:
    for symbol in OPERATORS:
        expression = getattr(lift(left), symbol)(lift(right))
        value = expression.value(Process("prefill", "", 0, {}, {}, {}))
        assert abs(value) <= bound(expression, {})


def test_what_was_not_folded_is_not_printed() -> None:
    program = Program(lambda _role, _leaf: "leaf", {})
    with pytest.raises(TypeError, match="not folded"):
        program.text(at("decode", Const(1, "int")))
    with pytest.raises(ValueError, match="two variables"):
        program.define("x", program.define("x", "1"))


def test_a_text_that_spells_a_number_is_read_as_such() -> None:
    program, text = _program(Text("number", WORDS[0]))
    assert text.startswith("variables.pf_s != null && variables.pf_s.matches('^-?[0-9]{1,18}$') ? dyn(int(")
    assert list(program.variables) == ["pf_s"]
