from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_operator.api.duration import parse

UNITS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


@pytest.mark.parametrize(
    ("one", "other"),
    [("1h30m", "90m"), ("300s", "5m"), ("0.5s", "500ms"), ("1m0.001s", "60s1ms"), ("1.5h", "5400s"), ("0s", "0ms")],
)
def test_equal_lengths(one: str, other: str) -> None:
    assert parse(one) == parse(other) is not None


@pytest.mark.parametrize(
    "value",
    ["", "300", 300, 0.02, None, True, [], "-1s", "1 s", "1s1s", "1s1m", "20us", "1.5ms", "1d", "1234567s"],
)
def test_no_duration(value: Any) -> None:
    assert parse(value) is None


@given(st.fixed_dictionaries({}, optional={unit: st.integers(0, 999_999) for unit in UNITS}))
def test_a_duration_is_the_sum_of_its_parts(parts: dict[str, int]) -> None:
    text = "".join(f"{parts[unit]}{unit}" for unit in UNITS if unit in parts)
    milliseconds = sum(UNITS[unit] * count for unit, count in parts.items())
    assert parse(text) == (Decimal(milliseconds) / 1000 if parts else None)
