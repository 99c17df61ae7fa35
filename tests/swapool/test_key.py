from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epd_workers.swapool.key import Key, Namespace
from tests.support.swapool.windows import SPACE, key, spaces, texts


@given(spaces, spaces)
def test_two_namespaces_never_share(one: Namespace, other: Namespace) -> None:
    assume(one != other)
    assert one.digest != other.digest


@pytest.mark.parametrize("name", list(asdict(SPACE)))
def test_every_fact_counts(name: str) -> None:
    old: Any = getattr(SPACE, name)
    changes: dict[str, Any] = {name: old + (1 if isinstance(old, int) else "x")}
    assert replace(SPACE, **changes).digest != SPACE.digest


def test_facts_do_not_run_into_each_other() -> None:
    """What one fact loses and its neighbour gains is a difference."""
    one = replace(SPACE, model="a", checkpoint="bc")
    assert one.digest != replace(SPACE, model="ab", checkpoint="c").digest
    assert replace(SPACE, tenant="a").salted("bc").digest != replace(SPACE, tenant="ab").salted("c").digest
    quoting = replace(SPACE, model='a","checkpoint":"bc', checkpoint="")
    assert quoting.digest != one.digest


@given(texts, texts, texts, texts)
def test_salts_part_tenants(tenant: str, salt: str, other: str, pepper: str) -> None:
    """D14: the salt of a request separates what it stores, and never makes up for another deployment's name."""
    one, two = replace(SPACE, tenant=tenant).salted(salt), replace(SPACE, tenant=other).salted(pepper)
    assert (one.digest == two.digest) == ((tenant, salt) == (other, pepper))


@given(spaces, st.binary(min_size=16, max_size=64), st.integers(1, 2**32 - 1))
def test_names_are_plain(space: Namespace, chain: bytes, position: int) -> None:
    """No field of a namespace, however odd, gets into the name that goes over the wire."""
    text = Key(space, chain, position).text
    assert re.fullmatch(r"swa1/[0-9a-f]{32}/[0-9]{1,10}/[0-9a-f]{32,128}", text)


@given(st.integers(1, 10**6))
def test_rows_are_those_there_are(position: int) -> None:
    name = key(0, position=position)
    assert name.rows == min(128, position)
    assert name.size == 4 * name.rows * 528


@pytest.mark.parametrize(("chain", "position"), [(b"short", 1), (b"x" * 65, 1), (b"x" * 32, 0), (b"x" * 32, 2**32)])
def test_what_cannot_be_a_key(chain: bytes, position: int) -> None:
    with pytest.raises(ValueError, match=r"chain of|position is"):
        Key(SPACE, chain, position)


@pytest.mark.parametrize("changes", [{"layers": 0}, {"layers": 2**16}, {"row_bytes": 2**31}, {"window": -1}])
def test_what_cannot_be_a_window(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no windows of this size"):
        replace(SPACE, **changes)
