from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epd_sglang.window_pool.exactness import ExactPages

names = st.binary(min_size=1, max_size=1)
changes = st.lists(st.tuples(st.sampled_from(["add", "discard"]), st.lists(names, max_size=4)))


@given(changes, st.lists(names, max_size=4))
def test_only_what_was_added_last_is_exact(steps: list[tuple[str, list[bytes]]], asked: list[bytes]) -> None:
    pages, model = ExactPages(1000), set[bytes]()
    for what, some in steps:
        if what == "add":
            pages.add(some)
            model |= set(some)
        else:
            pages.discard(some)
            model -= set(some)
    assert pages.holds(asked) == (set(asked) <= model)


def test_what_was_used_last_stays() -> None:
    pages = ExactPages(3)
    pages.add([b"a", b"b", b"c"])
    assert pages.holds([b"a"])
    pages.add([b"d"])
    assert len(pages) == 3
    assert pages.holds([b"a", b"c", b"d"])
    assert not pages.holds([b"b"])
