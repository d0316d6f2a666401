"""The limits that a replica finds by itself: as large as the bound allows, whatever was measured (spec 5)."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from engine.calibration import (
    LEAST_TOKENS,
    MOST_TOKENS,
    Pass,
    largest_that_fits,
    power_of_two,
    rows_for,
    texts_for,
    tokens_in_time,
)

PASSES = st.lists(st.builds(Pass, st.integers(1, 5000), st.floats(1e-6, 100)), min_size=1, max_size=6)
THREADS = st.integers(1, 16)
BOUNDS = st.floats(0.01, 10)


def test_the_budget_is_the_largest_forward_within_the_bound() -> None:
    assert tokens_in_time([Pass(40, 0.010)], 1, 0.25) == 512  # 4000 tokens/s: 1000 in time
    assert tokens_in_time([Pass(40, 0.010)], 2, 0.25) == 1024  # the same work on two threads
    assert tokens_in_time([Pass(40, 0.080), Pass(5, 0.010)], 1, 0.25) == 64  # the best rate counts: 500 tokens/s


@given(passes=PASSES, threads=THREADS, bound=BOUNDS)
def test_a_forward_of_the_budget_takes_no_longer_than_the_bound(passes: list[Pass], threads: int, bound: float) -> None:
    tokens = tokens_in_time(passes, threads, bound)
    assert tokens is not None and LEAST_TOKENS <= tokens <= MOST_TOKENS and tokens == power_of_two(tokens)
    best = min(one.cpu_s / one.tokens for one in passes) / threads
    assert tokens == LEAST_TOKENS or tokens * best <= bound * 1.0001
    assert tokens == MOST_TOKENS or 2 * tokens * best >= bound * 0.9999


@given(passes=PASSES, threads=THREADS, bound=BOUNDS)
def test_more_threads_and_more_time_never_give_a_smaller_budget(passes: list[Pass], threads: int, bound: float) -> None:
    tokens = tokens_in_time(passes, threads, bound)
    more, longer = tokens_in_time(passes, threads + 1, bound), tokens_in_time(passes, threads, bound * 2)
    assert tokens is not None and more is not None and longer is not None
    assert tokens <= min(more, longer)


def test_without_a_measurement_there_is_no_budget() -> None:
    assert tokens_in_time([], 1, 1) is None
    assert tokens_in_time([Pass(0, 1.0), Pass(8, 0.0)], 1, 1) is None


@given(room=st.integers(0, 100_000), least=st.integers(1, 4096), doublings=st.integers(0, 8))
def test_the_search_finds_the_largest_doubling_that_fits_and_tries_none_twice(
    room: int, least: int, doublings: int
) -> None:
    most = least << doublings
    tried: list[int] = []

    def fits(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= room

    found = largest_that_fits(fits, least, most)
    assert least <= found <= most
    assert found <= max(room, least) and (found * 2 > most or found * 2 > room)
    assert len(set(tried)) == len(tried) and sum(tried) <= 4 * max(found, 1)


@given(tokens=st.integers(1, 10**9))
def test_rows_and_texts_follow_from_what_they_share(tokens: int) -> None:
    assert 8 <= rows_for(tokens) <= 256 and rows_for(tokens) <= rows_for(tokens + 1)
    assert 1 <= texts_for(tokens, 32) <= 32 and texts_for(tokens, 32) <= texts_for(tokens + 1, 32)
    assume(tokens < 32 * 512)
    assert texts_for(tokens, 32) == 1 or texts_for(tokens, 32) * 512 <= tokens
