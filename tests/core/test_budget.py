"""Threads and cores of CPU replicas (spec 9)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import StokerError
from supervisor.core.budget import (
    Quota,
    cbwr_for,
    default_threads,
    effective_budget,
    oversubscription,
    parse_adaptive,
    parse_threads,
    quota_cores,
    spread,
    threads_for,
)

QUOTAS = st.builds(Quota, st.integers(1, 10**7), st.integers(1, 10**6))


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (16, 8), (32, 16), (128, 16)])
def test_default_is_half_the_budget_between_1_and_16(cores: int, threads: int) -> None:
    assert default_threads(cores) == threads


@pytest.mark.parametrize(
    ("quota_us", "period_us", "cores"),
    [
        (1_000, 100_000, 1),
        (100_000, 100_000, 1),
        (100_001, 100_000, 2),
        (150_000, 100_000, 2),
        (50_000, 25_000, 2),
    ],
)
def test_a_quota_is_rounded_up_to_whole_cores(quota_us: int, period_us: int, cores: int) -> None:
    assert quota_cores(quota_us, period_us) == cores


@given(affinity=st.integers(1, 512), quotas=st.lists(QUOTAS, max_size=6))
def test_budget_is_at_least_one_core_and_never_more_than_any_limit(affinity: int, quotas: list[Quota]) -> None:
    budget = effective_budget(affinity, quotas)
    assert 1 <= budget <= affinity
    assert all(budget < quota.cores + 1 for quota in quotas)
    assert budget in {affinity, *(quota_cores(*quota) for quota in quotas)}


@pytest.mark.parametrize(("budget", "configured", "threads"), [(128, 2, 2), (128, 32, 32), (4, 32, 4), (4, None, 2)])
def test_a_configured_number_replaces_the_default_and_is_capped(
    budget: int, configured: int | None, threads: int
) -> None:
    assert threads_for(budget, configured) == threads


@pytest.mark.parametrize("text", ["1", " 8 ", "08", "999999999"])
def test_a_positive_integer_is_a_thread_count(text: str) -> None:
    assert parse_threads(text) == int(text)


@pytest.mark.parametrize("text", ["", " ", "0", "-4", "+4", "1.5", "many", "1_0", "٣", "²", "9" * 5000, "0x4"])
def test_anything_else_is_an_error_that_shows_what_was_found(text: str) -> None:
    with pytest.raises(StokerError, match="positive whole number of threads, found") as error:
        parse_threads(text)
    assert len(str(error.value)) < 200


@given(st.text())
def test_any_text_is_a_positive_number_or_a_stoker_error(text: str) -> None:
    with suppress(StokerError):
        assert parse_threads(text) >= 1


def test_more_threads_than_cores_is_a_warning_with_both_numbers() -> None:
    assert oversubscription([], 1) is None
    assert oversubscription([2, 2], 4) is None
    warning = oversubscription([2, 2, 1], 4)
    assert warning is not None
    assert "(3)" in warning and "5 threads" in warning and "budget is 4" in warning


@given(cores=st.sets(st.integers(0, 200), max_size=40), threads=st.lists(st.integers(1, 9), max_size=12))
def test_spread_gives_disjoint_sets_of_the_right_size(cores: set[int], threads: list[int]) -> None:
    sets = spread(sorted(cores), threads)
    pinned = [core for chosen in sets if chosen for core in chosen]
    assert [len(chosen) for chosen in sets if chosen] == [n for n, s in zip(threads, sets, strict=True) if s]
    assert len(pinned) == len(set(pinned)) and set(pinned) <= cores
    left = len(cores) - len(pinned)
    assert all(count > left for count, chosen in zip(threads, sets, strict=True) if chosen is None)


@given(cores=st.integers(0, 40), threads=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_one_more_replica_at_the_end_moves_nobody(cores: int, threads: list[int]) -> None:
    assert spread(range(cores), threads)[:-1] == spread(range(cores), threads[:-1])


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ({"avx2", "fma", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}, "AVX512,STRICT"),
        ({"avx2", "fma", "avx512f"}, "AVX2,STRICT"),
        ({"avx2"}, None),
        ({"asimd", "sve"}, None),
        (set(), None),
    ],
)
def test_strict_sums_are_asked_of_the_branch_that_the_cpu_has(flags: set[str], value: str | None) -> None:
    assert cbwr_for(flags) == value


def test_a_mode_of_learning_is_0_1_or_2() -> None:
    assert [parse_adaptive(text) for text in ("0", "1", " 2 ")] == [0, 1, 2]
    for text in ("", "3", "-1", "on", "1.0"):
        with pytest.raises(StokerError, match="expected 0"):
            parse_adaptive(text)
