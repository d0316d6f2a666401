"""Rows of concurrent requests share forwards: packed by length, under the budget, nobody starves (spec 10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batching import Batcher

REQUESTS = st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=12), min_size=1, max_size=20)


def filled(requests: list[list[int]], *, max_tokens: int = 512, max_rows: int = 8) -> Batcher[int]:
    batcher: Batcher[int] = Batcher(max_tokens=max_tokens, max_rows=max_rows)
    for owner, lengths in enumerate(requests):
        batcher.add(owner, lengths)
    return batcher


def forwards(batcher: Batcher[int]) -> list[list[tuple[int, int]]]:
    done = []
    while batch := batcher.next_forward():
        done.append(batch)
    return done


@given(requests=REQUESTS, max_tokens=st.integers(1, 2000), max_rows=st.integers(1, 40))
def test_every_row_is_computed_exactly_once_and_no_forward_is_over_budget(
    requests: list[list[int]], max_tokens: int, max_rows: int
) -> None:
    computed = []
    for forward in forwards(filled(requests, max_tokens=max_tokens, max_rows=max_rows)):
        assert len(forward) <= max_rows
        padded = max(requests[owner][index] for owner, index in forward) * len(forward)
        assert padded <= max_tokens or len(forward) == 1
        computed.extend(forward)
    every = [(owner, index) for owner, lengths in enumerate(requests) for index in range(len(lengths))]
    assert sorted(computed) == every


@given(requests=REQUESTS)
def test_a_request_gets_a_row_computed_within_one_forward_a_request_ahead_of_it(requests: list[list[int]]) -> None:
    done = forwards(filled(requests))
    for owner in range(len(requests)):
        first = next(place for place, forward in enumerate(done) if any(key[0] == owner for key in forward))
        assert first <= owner


@given(requests=REQUESTS, gone=st.sets(st.integers(0, 19)))
def test_a_dropped_request_is_never_computed(requests: list[list[int]], gone: set[int]) -> None:
    batcher = filled(requests)
    for owner in gone:
        assert batcher.drop(owner) == (len(requests[owner]) if owner < len(requests) else 0)
    computed = {owner for forward in forwards(batcher) for owner, _ in forward}
    assert computed == set(range(len(requests))) - gone
    assert len(batcher) == 0


def test_like_lengths_share_a_forward() -> None:
    batcher = filled([[8], [60], [8], [7], [9]], max_tokens=64, max_rows=32)
    assert sorted(batcher.next_forward()) == [(0, 0), (2, 0), (3, 0), (4, 0)]
    assert batcher.next_forward() == [(1, 0)]


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    assert forwards(filled([[500], [2]], max_tokens=10)) == [[(0, 0)], [(1, 0)]]


def test_a_single_row_is_not_held_up_by_a_thousand_row_request() -> None:
    batcher = filled([[128] * 1000, [4]])
    batcher.next_forward()
    assert (1, 0) in batcher.next_forward()


def test_a_forward_without_room_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="room"):
        Batcher(max_tokens=0, max_rows=1)
