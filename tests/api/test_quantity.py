from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from epd_operator.api.quantity import parse, stored


@pytest.mark.parametrize(
    ("one", "other"),
    [("1000m", "1"), (1, "1"), ("0.5", "500m"), ("1Gi", "1024Mi"), ("1e3", "1k"), ("1E", "1000P"), ("2048Mi", "2Gi")],
)
def test_equal_amounts(one: Any, other: Any) -> None:
    assert parse(one) == parse(other) is not None


@pytest.mark.parametrize("value", ["", "abc", "1 Gi", None, True, [], "1KiB", "--1"])
def test_no_quantity(value: Any) -> None:
    assert parse(value) is None


def test_amounts_are_exact() -> None:
    assert parse("0.1") == Decimal("0.1")
    assert parse("16Ei") == Decimal(2**64)


@pytest.mark.parametrize(
    ("written", "kept"),
    [("1", "1"), ("1500m", "1500m"), ("1.00001", "1001m"), ("0.0001", "1m"), ("1.5Gi", "1.5Gi"), ("0.1k", "0.1k")],
)
def test_what_is_finer_than_a_milli_is_rounded_up_as_the_api_server_does(written: str, kept: str) -> None:
    assert stored(written) == kept
