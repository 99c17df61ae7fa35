from __future__ import annotations

import pytest

from epd_sglang.doctor import name_faults
from epd_sglang.hook import Target

SOURCE = """
from a import taken
if True:
    def guarded(x, *, y=1): ...
else:
    guarded = None
class Outer:
    limit = 3
    noted: int = 4
    async def method(self, first, /, second, *rest, key): ...
"""


@pytest.mark.parametrize(
    ("path", "signature"),
    [
        ("taken", None),
        ("guarded", ("x", "y")),
        ("Outer", None),
        ("Outer.limit", None),
        ("Outer.noted", None),
        ("Outer.method", ("self", "first", "second", "key")),
    ],
)
def test_what_is_there_has_no_fault(path: str, signature: tuple[str, ...] | None) -> None:
    assert not list(name_faults(Target("sglang.m", path), signature, SOURCE))


@pytest.mark.parametrize(
    ("path", "signature", "fault"),
    [
        ("absent", None, "m.py has no absent"),
        ("Nobody.method", None, "m.py has no class Nobody"),
        ("Outer.absent", None, "m.py has no Outer.absent"),
        ("guarded", ("x",), "guarded has other parameters: x, y"),
        ("Outer.limit", ("x",), "Outer.limit has other parameters: none"),
    ],
)
def test_what_is_missing_or_other_is_named(path: str, signature: tuple[str, ...] | None, fault: str) -> None:
    assert list(name_faults(Target("sglang.m", path), signature, SOURCE)) == [fault]
