"""The algebra is total, and absence has one meaning in every operation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_operator.rules.expression import (
    FALSE,
    NOTHING,
    PLATFORM,
    ROLE,
    TRUE,
    Expr,
    Leaf,
    Opaque,
    at,
    contains,
    declared,
    every,
    field_of,
    leaves_of,
    lift,
    lower,
    model_of,
    named,
    number,
    size,
    some,
    spec_of,
    starts,
    variable,
    walk,
    when,
)
from epd_operator.rules.process import Process


def _process(role: str = "prefill", **given_: Any) -> Process:
    parts: dict[str, Any] = {"args": {}, "env": {}, "checkpoint": {}, "document": {}, **given_}
    return Process(role, "cuda-sm90", 2, **parts)


def _int(name: str = "n") -> Leaf:
    return Leaf("flag", name, "int")


NUMBERS = st.none() | st.integers(-(10**6), 10**6)


@given(NUMBERS, NUMBERS)
def test_absence_has_no_order_and_equals_only_itself(left: int | None, right: int | None) -> None:
    scope = _process(args={"a": left, "b": right})
    a, b = _int("a"), _int("b")
    both = left is not None and right is not None
    assert (a < b).value(scope) == (both and left < right)  # type: ignore[operator] # both are there
    assert (a <= b).value(scope) == (both and left <= right)  # type: ignore[operator] # both are there
    assert (a > b).value(scope) == (both and left > right)  # type: ignore[operator] # both are there
    assert (a >= b).value(scope) == (both and left >= right)  # type: ignore[operator] # both are there
    assert (a == b).value(scope) == (left == right)
    assert (a != b).value(scope) == (left != right)
    assert a.given.value(scope) == (left is not None)


@given(NUMBERS, NUMBERS)
def test_arithmetic_is_python_and_total(left: int | None, right: int | None) -> None:
    scope = _process(args={"a": left, "b": right})
    a, b = _int("a"), _int("b")
    if left is None or right is None:
        assert all(x.value(scope) is None for x in (a + b, a - b, a * b, a // b, a % b, a / b))
        return
    assert (a + b).value(scope) == left + right
    assert (a - b).value(scope) == left - right
    assert (a * b).value(scope) == left * right
    assert (a // b).value(scope) == (left // right if right else 0)
    assert (a % b).value(scope) == (left % right if right else 0)
    assert (a / b).value(scope) == (left / right if right else 0)


@given(st.none() | st.text(max_size=30))
def test_texts_are_total(text: str | None) -> None:
    scope = _process(env={} if text is None else {"X": text})
    x = variable("X")
    assert lower(x).value(scope) == (None if text is None else text.lower())
    assert starts(x, "a").value(scope) == (text or "").startswith("a")
    assert contains(x, "b").value(scope) == ("b" in (text or ""))
    assert size(x).value(scope) == len(text or "")
    value = number(x).value(scope)
    assert value is None or (isinstance(value, int) and int(text or "") == value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("0012", 12),
        ("1.5", None),
        ("", None),
        ("1e3", None),
        ("\uff11\uff12", None),
        ("9" * 19, None),
    ],
)
def test_only_plain_whole_numbers_are_numbers(text: str, value: int | None) -> None:
    assert number(variable("X")).value(_process(env={"X": text})) == value


def test_a_condition_must_be_plain() -> None:
    three_state = Leaf("flag", "on", "bool")
    with pytest.raises(TypeError, match="plain true or false"):
        three_state & TRUE
    with pytest.raises(TypeError, match="plain true or false"):
        ~three_state  # noqa: B018 - building it raises
    with pytest.raises(TypeError, match="plain true or false"):
        when(three_state, 1, 2)
    assert (three_state == True).value(_process(args={"on": True})) is True  # noqa: E712 - builds an expression


def test_what_can_never_hold_is_refused_when_it_is_built() -> None:
    with pytest.raises(TypeError, match="never equal"):
        _int() == "four"  # noqa: B015 - building it raises
    with pytest.raises(TypeError, match="order"):
        variable("X") < 3  # noqa: B015 - building it raises
    with pytest.raises(TypeError, match="two kinds"):
        when(TRUE, 1, "one")
    with pytest.raises(TypeError, match="no arithmetic"):
        variable("X") + 1
    with pytest.raises(TypeError, match="no text"):
        lower(_int())
    with pytest.raises(TypeError, match="truth value"):
        bool(TRUE)
    with pytest.raises(TypeError, match="not a value"):
        lift(object())


def test_defaults_choices_and_combinations() -> None:
    scope = _process(args={"n": 3})
    assert _int("m").otherwise(7).value(scope) == 7
    assert _int("n").otherwise(7).value(scope) == 3
    assert not _int("m").otherwise(7).nullable
    assert _int("m").otherwise(_int("k")).nullable
    assert _int("n").isin((1, 3)).value(scope) is True
    assert _int("m").isin((1, 3)).value(scope) is False
    assert every().value(scope) is True
    assert some().value(scope) is False
    assert every(TRUE, _int("n") == 3).value(scope) is True
    assert some(FALSE, _int("n") == 4).value(scope) is False
    assert when(_int("n") == 3, "three", None).value(scope) == "three"
    assert when(_int("n") == 4, "four", None).value(scope) is None
    assert (NOTHING == None).value(scope) is True  # noqa: E711 - builds an expression


def test_what_is_read_where() -> None:
    document = {
        "transfer": {"backend": "nixl"},
        "roles": {"prefill": {"nodes": 2, "resources": {"memory": "2Gi"}}, "decode": {"nodes": "two"}},
    }
    prefill = _process(document=document, checkpoint={"layers": 40})
    decode = _process("decode", document=document, args={"n": 9})
    siblings = {"prefill": prefill, "decode": decode}
    prefill.siblings = decode.siblings = siblings
    assert spec_of("transfer.backend", "str").value(prefill) == "nixl"
    assert field_of("nodes", "int").value(prefill) == 2
    assert field_of("nodes", "int").value(decode) is None, "a value of the wrong type counts as absent"
    assert field_of("nodes", "float").value(prefill) == 2.0
    assert field_of("resources.memory", "float", unit="bytes").value(prefill) == 2.0 * 2**30
    assert model_of("layers", "int").value(prefill) == 40
    assert at("decode", _int("n")).value(prefill) == 9
    assert at("encode", _int("n")).value(prefill) is None
    assert declared("decode").value(prefill) is True
    assert declared("encode").value(prefill) is False
    assert (ROLE.value(decode), PLATFORM.value(decode)) == ("decode", "cuda-sm90")


@pytest.mark.parametrize(
    ("written", "seconds"), [("1h30m", 5400.0), ("20ms", 0.02), ("300", None), (300, None), (None, None)]
)
def test_a_duration_is_read_as_seconds(written: Any, seconds: float | None) -> None:
    ttl = spec_of("swaPool.ttl", "float", unit="seconds")
    assert ttl.value(_process(document={"swaPool": {"ttl": written}})) == seconds


def test_a_named_value_is_computed_once_a_process() -> None:
    calls: list[int] = []
    counted = Opaque("counts", lambda: calls.append(1) or 5, (), "int")  # type: ignore[func-returns-value] # to count
    value = named("five", counted)
    scope = _process()
    assert (value + value).value(scope) == 10
    assert len(calls) == 1


def test_walk_lists_what_is_used_before_what_uses_it() -> None:
    inner: Expr = named("inner", _int() + 1)
    whole = (inner > 2) & (inner < 9)
    order = [id(node) for node in walk(whole)]
    assert order.index(id(inner)) < order.index(id(whole))
    assert order.count(id(inner)) == 1
    assert [leaf.name for leaf in leaves_of(whole)] == ["n"]
