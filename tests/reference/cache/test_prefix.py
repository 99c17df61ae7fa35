from __future__ import annotations

import pytest

from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.prefix import PrefixTree
from epd_workers.reference.cache.sequence import Sequence
from tests.support.reference.rows import WINDOW, check_entries, check_windows, geometry, write_rows

PAGE = 4
KEY = tuple(range(100, 126))  # six pages and a half


def fresh(pages: int = 20, windows: int = 20) -> KvPool:
    return KvPool(geometry(PAGE), pages, windows)


def ran(tree: PrefixTree, pool: KvPool, key: tuple[int, ...] = KEY, salt: str = "") -> Sequence:
    """A request that computed all of its key but what `usable` allows to skip."""
    sequence, match = Sequence(pool), tree.match(key, salt)
    tree.acquire(sequence, match, tree.usable(match))
    sequence.reserve(len(key))
    write_rows(sequence, key, sequence.length, len(key))
    sequence.advance(len(key) - sequence.length)
    return sequence


def leave(tree: PrefixTree, pool: KvPool, key: tuple[int, ...] = KEY, salt: str = "") -> None:
    sequence = ran(tree, pool, key, salt)
    tree.insert(key, sequence, salt)
    sequence.release()


def test_a_second_request_finds_the_whole_pages_of_the_first() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    assert tree.match(KEY).tokens == 0
    leave(tree, pool)
    match = tree.match((*KEY[:21], 7, 7, 7))
    assert (match.tokens, match.window_tokens_from, match.key_tokens) == (20, 0, 24)
    check_entries(pool, KEY, match.pages, 20)
    check_windows(pool, KEY, match.window_pages, 0, 20)
    second = ran(tree, pool)
    assert (second.borrowed, second.length) == (6, 26)
    stats = tree.stats
    assert (stats.hits, stats.misses, stats.hit_tokens) == (1, 1, 24)
    assert pool.pages.count - pool.pages.free_count == 7


@pytest.mark.parametrize(
    ("gone", "rerun", "with_window", "without"),
    [
        ((), 1, 24, 24),
        ((), 2, 24, 24),
        ((), 3, 20, 20),
        ((), WINDOW, 16, 16),
        ((), 100, 0, 0),
        ((5,), 1, 20, 24),
        ((4,), 1, 16, 24),
        ((3,), 1, 24, 24),
        ((2, 5), 1, 20, 24),
        ((2, 4), 1, 8, 24),
        ((0,), 1, 24, 24),
        ((0, 2, 4), 1, 0, 24),
        ((0, 1, 2, 3, 4, 5), 1, 0, 24),
    ],
)
def test_a_hit_ends_where_its_window_is_there(
    gone: tuple[int, ...], rerun: int, with_window: int, without: int
) -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    sequence = ran(tree, pool)
    for index in gone:
        pool.window_pages.free(sequence.window_pages[index])
        sequence.window_pages[index] = -1
    tree.insert(KEY, sequence)
    match = tree.match(KEY)
    assert tree.usable(match, rerun=rerun) == with_window
    assert tree.usable(match, need_window=False, rerun=rerun) == without
    assert match.window_tokens_from == 4 * (max(gone) + 1 if gone else 0)


def test_windows_age_out_alone() -> None:
    pool = fresh()
    tree = PrefixTree(pool, window_cap=2 * pool.geometry.window_page_bytes)
    leave(tree, pool)
    match = tree.match(KEY)
    assert (match.tokens, match.window_pages[:4], match.window_tokens_from) == (24, (-1,) * 4, 16)
    assert all(page >= 0 for page in match.window_pages[4:])  # those that the same prompt needs
    check_entries(pool, KEY, match.pages, 24)
    assert tree.usable(match) == 24
    assert tree.stats.evicted_windows == 4
    assert tree.stats.evicted_pages == 0


def test_windows_of_a_tombstone_come_back() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    leave(tree, pool)
    assert tree.make_room(0, 20)
    assert tree.usable(tree.match(KEY)) == 0
    again = ran(tree, pool)
    assert tree.insert(KEY, again) == (6, 7, 8, 9, 10, 11)
    assert again.pages[:6] == [0, 1, 2, 3, 4, 5]
    again.release()
    assert tree.usable(tree.match(KEY)) == 24
    assert (tree.stats.held_pages, tree.stats.deduplicated_pages) == (6, 6)


def test_leaves_used_longest_ago_go_first() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    first, second = (*KEY[:8], 1, 1, 1, 1), (*KEY[:8], 2, 2, 2, 2)
    leave(tree, pool, first)
    leave(tree, pool, second)
    ran(tree, pool, (*first, 9)).release()  # the first is now the one used last
    assert tree.make_room(pool.pages.free_count + 1, 0)
    assert (tree.match(first).tokens, tree.match(second).tokens) == (12, 8)
    assert tree.make_room(pool.pages.free_count + 2, 0)
    assert tree.match(first).tokens == 4


def test_what_is_in_use_stays() -> None:
    pool = fresh(pages=8, windows=8)
    tree = PrefixTree(pool, page_cap=0, window_cap=0)
    sequence = ran(tree, pool)
    tree.insert(KEY, sequence)
    assert tree.match(KEY).tokens == 24
    assert not tree.make_room(2, 0)
    assert not tree.make_room(0, 2)
    sequence.release_windows(16)
    assert tree.match(KEY).window_tokens_from == 16
    check_windows(pool, KEY, sequence.window_pages, 16, 26)
    sequence.release()
    assert tree.match(KEY).tokens == 0
    assert tree.stats.evicted_pages == tree.stats.evicted_windows == 6
    assert pool.pages.free_count == pool.window_pages.free_count == 8


def test_room_that_cannot_be_made_costs_nothing() -> None:
    pool = fresh(pages=8, windows=8)
    tree = PrefixTree(pool)
    leave(tree, pool)
    assert not tree.make_room(9, 0)
    assert not tree.make_room(0, 9)
    assert tree.match(KEY).tokens == 24
    assert tree.make_room(8, 8)
    assert tree.match(KEY).tokens == 0


def test_a_running_request_keeps_its_own_windows() -> None:
    """The tree's may lack rows of late layers that a request of another length has not run."""
    pool = fresh()
    tree = PrefixTree(pool)
    first, second = ran(tree, pool), ran(tree, pool)
    tree.insert(KEY, first)
    own = list(second.window_pages)
    assert tree.insert(KEY, second) == (7, 8, 9, 10, 11, 12)
    assert second.window_pages == own
    assert second.pages[:6] == first.pages[:6]
    second.release()
    check_windows(pool, KEY, first.window_pages, 0, 26)


def test_replay_leaves_the_windows_of_the_tree_alone() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    leave(tree, pool)
    sequence, match = Sequence(pool), tree.match(KEY)
    tree.acquire(sequence, match, 24, windows=False)
    assert sequence.window_pages == [-1] * 6
    sequence.reserve_windows(24 - WINDOW)
    assert not {*sequence.window_pages[4:]} & {*match.window_pages}
    sequence.reserve(26)
    sequence.advance(2)
    assert tree.insert(KEY, sequence, windows=False) == ()
    sequence.release()
    assert tree.match(KEY).window_pages == match.window_pages
    assert pool.window_pages.free_count == 20 - 6


def test_windows_stay_with_the_request_when_asked_to() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    sequence = ran(tree, pool)
    tree.insert(KEY, sequence, windows=False)
    sequence.release()
    assert (tree.stats.held_pages, tree.stats.held_windows) == (6, 0)
    assert pool.window_pages.free_count == 20


def test_a_request_can_leave_its_pages_as_it_goes() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    sequence = Sequence(pool)
    for stop in range(3, 27, 3):
        sequence.reserve(stop)
        write_rows(sequence, KEY, sequence.length, min(stop, 26))
        sequence.advance(min(stop, 26) - sequence.length)
        tree.insert(KEY, sequence)
        assert sequence.borrowed == tree.stats.held_pages == stop // PAGE
    check_entries(pool, KEY, tree.match(KEY).pages, 24)


def test_another_salt_finds_nothing() -> None:
    pool = fresh()
    tree = PrefixTree(pool, page_cap=6 * pool.geometry.page_bytes)
    leave(tree, pool, salt="one")
    assert tree.match(KEY, "other").tokens == tree.match(KEY).tokens == 0
    leave(tree, pool, KEY[:9], salt="other")
    assert tree.match(KEY, "other").tokens == 8
    assert tree.match(KEY, "one").tokens == 16  # the oldest have made room


def test_a_flush_waits_for_nobody() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    leave(tree, pool, (*KEY[:8], 1, 1, 1, 1))
    running = ran(tree, pool)
    tree.insert(KEY[:12], running)
    tree.clear()
    assert tree.match(KEY).tokens == 0
    check_entries(pool, KEY, running.pages, 26)
    assert tree.insert(KEY, running) == ()  # computed on what was flushed
    assert tree.match(KEY).tokens == 0
    running.release()
    stats = tree.stats
    assert (stats.held_pages, stats.held_windows, stats.flushed_pages, stats.evicted_pages) == (0, 0, 4, 0)
    assert pool.pages.free_count == pool.window_pages.free_count == 20
    leave(tree, pool)
    assert tree.match(KEY).tokens == 24


@pytest.mark.parametrize("tokens", [-4, 2, 28])
def test_only_whole_matched_pages_are_taken(tokens: int) -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    leave(tree, pool)
    with pytest.raises(ValueError, match=f"tokens is {tokens}: must be a multiple of 4 from 0 to 24"):
        tree.acquire(Sequence(pool), tree.match(KEY), tokens)


@pytest.mark.parametrize("change", ["evict", "tombstone", "flush"])
def test_an_old_match_is_refused(change: str) -> None:
    pool = fresh(pages=7, windows=7)
    tree = PrefixTree(pool)
    leave(tree, pool)
    match = tree.match(KEY)
    if change == "flush":
        tree.clear()
    else:
        assert tree.make_room(*((7, 0) if change == "evict" else (0, 7)))
    with pytest.raises(ValueError, match="the first 24 tokens of this match are not all there: match again"):
        tree.acquire(Sequence(pool), match, 24)
    assert tree.stats.hits == 0


def test_a_sequence_begins_once_and_in_one_tree() -> None:
    pool = fresh()
    tree, other = PrefixTree(pool), PrefixTree(pool)
    leave(tree, pool)
    sequence, match = ran(tree, pool), tree.match(KEY)
    with pytest.raises(ValueError, match="the sequence has 7 pages: only an empty one can take over a prefix"):
        tree.acquire(sequence, match, 24)
    with pytest.raises(ValueError, match="borrows from another tree"):
        other.insert(KEY, sequence)
    sequence.release()
    assert tree.make_room(20, 20)


def test_what_follows_an_approximation_is_one() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    first = ran(tree, pool, KEY[:16])
    first.approximate(8)
    tree.insert(KEY, first)
    first.release()
    assert [node.exact for node in tree.match(KEY).nodes] == [True, True, False, False]
    second = ran(tree, pool)
    assert second.exact_tokens == 8
    tree.insert(KEY, second)
    assert [node.exact for node in tree.match(KEY).nodes] == [True, True, False, False, False, False]
    second.release()
    assert second.exact


def test_an_exact_page_replaces_an_approximation_that_nobody_uses() -> None:
    pool = fresh()
    tree = PrefixTree(pool)
    exact = Sequence(pool)
    exact.reserve(26)
    write_rows(exact, KEY, 0, 26)
    exact.advance(26)
    for stop in (16, 24):
        approximate = ran(tree, pool, KEY[:stop])
        approximate.approximate(4)
        tree.insert(KEY, approximate)
        if stop == 24:
            break
        approximate.release()
    held, shared = tree.stats, set(tree.match(KEY).pages)
    assert tree.insert(KEY, exact) != ()
    assert exact.borrowed == 1  # where others go on with an approximation it keeps its own
    approximate.release()
    own = exact.pages[1:6]
    freed = tree.insert(KEY, exact)
    assert set(freed) <= shared
    assert list(tree.match(KEY).pages[1:]) == own
    assert all(node.exact for node in tree.match(KEY).nodes)
    exact.release()
    stats = tree.stats
    assert (stats.inserted_pages, stats.evicted_pages) == (held.inserted_pages, held.evicted_pages)
    assert stats.inserted_windows == stats.evicted_windows + stats.held_windows
    tree.clear()
    assert (pool.pages.free_count, pool.window_pages.free_count) == (pool.pages.count, pool.window_pages.count)
