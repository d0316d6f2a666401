"""The learner over simulated timing surfaces (spec 9): it ends near the best count, changes no answer, costs little."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import ThreadNews
from engine.threads.learning import (
    CALM_WINDOWS,
    CHECK_EACH,
    LABELS,
    LEAST_GAIN,
    MOST_COST,
    MOVES,
    SHIFT_FORWARDS,
    WINDOW_FORWARDS,
    Learner,
    Mode,
    Sample,
    Stage,
    counts_to_try,
    padded,
    range_of,
)

SIZES = {"<32": 20, "<64": 40, "<128": 100, "<256": 200, "<512": 300, "<1024": 700, "more": 3000}
Surface = Callable[[str, int], float]
"""Seconds of a forward of a range at a count."""


class Traffic:
    """Forwards of one row through a learner, timed by a surface with noise; what was served is written down."""

    def __init__(self, learner: Learner, surface: Surface, noise: float = 0.0, seed: int = 0) -> None:
        self.learner = learner
        self.surface = surface
        self.drifting: frozenset[int] = frozenset()
        self.serves: Surface | None = None
        """Times of served forwards where they differ from those of shadows."""
        self.news: list[ThreadNews] = []
        self.served: list[tuple[str, int]] = []
        self.shadowed: list[tuple[str, int]] = []
        self.dearest = 0.0
        self._noise = noise
        self._random = random.Random(seed)

    def forward(self, label: str, idle: bool = True) -> int:
        """One forward and, where nothing waits, the shadow that the learner asks for; the count that served it."""
        tokens = SIZES[label]
        count = self.learner.serving(tokens)
        seconds = self.serves(label, count) if self.serves else self._time(label, count)
        self.served.append((label, count))
        self.news += self.learner.served(tokens, seconds)
        shadow = self.learner.shadow(tokens, seconds) if idle else None
        if shadow is not None:
            self.shadowed.append((label, shadow.count))
            warm = self._time(label, self.learner.configured) if shadow.timed else 0.0
            took = self._time(label, shadow.count)
            self.dearest = max(self.dearest, warm + took)
            same = shadow.count not in self.drifting
            self.news += self.learner.observe(Sample([tokens], shadow.count, took, same, warm))
        return count

    def run(self, labels: list[str], times: int) -> None:
        for _ in range(times):
            for label in labels:
                self.forward(label)

    def until(self, kind: str, label: str, most: int = 20_000) -> ThreadNews:
        """Forwards of a range until the learner tells of it."""
        for _ in range(most):
            self.forward(label)
            if self.news and (self.news[-1].kind, self.news[-1].label) == (kind, label):
                return self.news[-1]
        raise AssertionError(f"never {kind} for {label}: {self.learner.table()}")

    def _time(self, label: str, count: int) -> float:
        return self.surface(label, count) * self._random.uniform(1 - self._noise, 1 + self._noise)


def learner(configured: int, mode: Mode = Mode.SERVE) -> Learner:
    started = Learner(configured, mode)
    started.start()
    return started


CONFIGURED = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
LABEL_SETS = st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True)


@st.composite
def surfaces(draw: st.DrawFn) -> tuple[int, list[str], dict[tuple[str, int], float]]:
    """A configured count, the ranges that traffic has, and a time for each range and count."""
    configured = draw(CONFIGURED)
    labels = draw(LABEL_SETS)
    cells = {(label, count): draw(st.floats(0.001, 0.02)) for label in labels for count in counts_to_try(configured)}
    return configured, labels, cells


def near_the_best(label: str, count: int, cells: dict[tuple[str, int], float], noise: float) -> bool:
    """Within 5 % of the best count, as far as noise lets anybody know."""
    best = min(seconds for (of, _), seconds in cells.items() if of == label)
    return cells[label, count] * (1 - LEAST_GAIN) <= best * ((1 + noise) / (1 - noise)) ** 2 * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(surfaces(), st.sampled_from([0.0, 0.01, 0.03]), st.integers(0, 2**16))
def test_every_range_ends_within_5_percent_of_its_best_count(
    surface: tuple[int, list[str], dict[tuple[str, int], float]], noise: float, seed: int
) -> None:
    configured, labels, cells = surface
    traffic = Traffic(learner(configured), lambda label, count: cells[label, count], noise, seed)
    for label in labels:
        learned = traffic.until("learned", label)
        assert near_the_best(label, learned.count, cells, noise)
        if learned.count != configured:
            traffic.until("adopted", label)
        assert near_the_best(label, traffic.forward(label), cells, noise)


@settings(deadline=None, max_examples=25)
@given(surfaces(), st.data())
def test_a_count_with_one_drift_is_never_served_and_the_learning_retires_for_good(
    surface: tuple[int, list[str], dict[tuple[str, int], float]], data: st.DataObject
) -> None:
    configured, labels, cells = surface
    others = [count for count in counts_to_try(configured) if count != configured]
    if not others:
        return
    traffic = Traffic(learner(configured), lambda label, count: cells[label, count])
    traffic.run(labels, data.draw(st.integers(0, 300)))
    traffic.drifting = frozenset({data.draw(st.sampled_from(others))})
    adopted_before = {(news.label, news.count) for news in traffic.news if news.kind == "adopted"}
    traffic.served.clear()
    traffic.run(labels, 1000)
    retired = [news for news in traffic.news if news.kind == "retired"]
    for label, count in set(traffic.served):
        assert count not in traffic.drifting or (label, count) in adopted_before
    if retired:
        assert len(retired) == 1 and retired[0].drift is not None
        assert padded(retired[0].drift.lengths) in SIZES.values()
        assert traffic.learner.stage is Stage.RETIRED
        traffic.served.clear()
        traffic.shadowed.clear()
        traffic.drifting = frozenset()
        traffic.run(labels, 300)
        assert {count for _, count in traffic.served} == {configured} and not traffic.shadowed


@settings(deadline=None, max_examples=15)
@given(surfaces(), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 2**16))
def test_mode_1_learns_and_never_leaves_the_configured_count(
    surface: tuple[int, list[str], dict[tuple[str, int], float]], noise: float, seed: int
) -> None:
    configured, labels, cells = surface
    traffic = Traffic(learner(configured, Mode.REPORT), lambda label, count: cells[label, count], noise, seed)
    traffic.run(labels, 2000)
    assert {count for _, count in traffic.served} == {configured}
    assert {news.kind for news in traffic.news} <= {"learned", "relearning"}
    assert {news.label for news in traffic.news} == set(labels)


@settings(deadline=None, max_examples=20)
@given(surfaces(), st.lists(st.booleans(), min_size=1, max_size=50), st.integers(0, 2**16))
def test_exploration_costs_at_most_a_fifth_of_the_busy_time(
    surface: tuple[int, list[str], dict[tuple[str, int], float]], idle: list[bool], seed: int
) -> None:
    configured, labels, cells = surface
    traffic = Traffic(learner(configured), lambda label, count: cells[label, count], 0.2, seed)
    for turn in range(600):
        for label in labels:
            traffic.forward(label, idle[turn % len(idle)])
        known = traffic.learner
        assert known.explored_s <= MOST_COST * known.busy_s + traffic.dearest


@given(CONFIGURED, st.lists(st.sampled_from(LABELS), min_size=1, max_size=2, unique=True))
@settings(deadline=None, max_examples=10)
def test_ranges_without_samples_stay_as_they_are(configured: int, labels: list[str]) -> None:
    traffic = Traffic(learner(configured), lambda label, count: 0.01 / count)
    traffic.run(labels, 800)
    for row in traffic.learner.table().ranges:
        if row.label not in labels:
            assert (row.state, row.learned, row.times) == ("exploring", None, [])
            assert traffic.learner.serving(SIZES[row.label]) == configured


def test_a_shift_of_the_surface_is_relearned_without_a_restart() -> None:
    times = {1: 0.001, 2: 0.004, 4: 0.004}
    traffic = Traffic(learner(4), lambda label, count: times[count], 0.05)
    traffic.until("adopted", "<64")
    traffic.run(["<64"], 2 * SHIFT_FORWARDS)
    assert traffic.forward("<64") == 1
    times.update({1: 0.006, 2: 0.002, 4: 0.004})
    traffic.until("relearning", "<64", most=3 * SHIFT_FORWARDS)
    assert traffic.forward("<64") == 4, "the configured count serves while it learns again"
    traffic.until("adopted", "<64")
    assert traffic.forward("<64") == 2


def test_a_count_that_serves_slower_than_its_shadows_promised_is_given_up_after_a_window() -> None:
    traffic = Traffic(learner(2), lambda label, count: 0.001 * count)
    traffic.serves = lambda label, count: 0.004 / count
    traffic.until("adopted", "<64")
    traffic.until("relearning", "<64", most=SHIFT_FORWARDS + 1)
    assert traffic.forward("<64") == 2
    assert traffic.until("learned", "<64").count == 2, "its shadows promise the same again, and are not believed again"
    traffic.news.clear()
    traffic.run(["<64"], 10 * SHIFT_FORWARDS)
    assert not traffic.news


def test_relearning_becomes_rarer_with_each_time_and_is_quick_again_after_a_long_calm() -> None:
    times = {1: 0.001, 2: 0.001}
    traffic = Traffic(learner(2), lambda label, count: times[count])
    traffic.until("learned", "<64")
    needed = []
    for _ in range(4):
        times.update({count: 2 * seconds for count, seconds in times.items()})
        before = len(traffic.served)
        traffic.until("relearning", "<64")
        needed.append(math.ceil((len(traffic.served) - before) / SHIFT_FORWARDS))
        traffic.until("learned", "<64")
        traffic.run(["<64"], SHIFT_FORWARDS)
    assert needed == [1, 2, 4, 8]
    traffic.run(["<64"], (CALM_WINDOWS + 1) * SHIFT_FORWARDS)
    times.update({count: 2 * seconds for count, seconds in times.items()})
    traffic.until("relearning", "<64", most=2 * SHIFT_FORWARDS)


def test_with_one_count_there_is_nothing_to_relearn() -> None:
    times = {1: 0.001}
    traffic = Traffic(learner(1), lambda label, count: times[count])
    traffic.until("learned", "<64")
    times[1] = 0.1
    traffic.run(["<64"], 4 * SHIFT_FORWARDS)
    assert [news.kind for news in traffic.news] == ["learned"]


def test_another_mix_of_lengths_within_a_range_is_no_shift() -> None:
    traffic = Traffic(learner(2), lambda label, count: 0.0022)
    traffic.until("learned", "<32")
    for tokens in (3, SIZES["<32"]):
        for _ in range(1000):
            assert not traffic.learner.served(tokens, 0.002 + tokens * 1e-5)


def test_nothing_is_shadowed_while_other_work_waits() -> None:
    traffic = Traffic(learner(4), lambda label, count: 0.001)
    for _ in range(1000):
        traffic.forward("<64", idle=False)
    assert not traffic.shadowed and not traffic.news
    traffic.until("learned", "<64")


def test_before_the_golden_check_nothing_is_learned() -> None:
    known = Learner(4, Mode.SERVE)
    traffic = Traffic(known, lambda label, count: 0.001 * count)
    traffic.run(["<64"], 500)
    assert known.stage is Stage.LOCKED and not traffic.shadowed and not traffic.news
    assert {count for _, count in traffic.served} == {4}


def test_the_learned_count_shadows_a_window_before_it_serves_and_is_checked_later() -> None:
    traffic = Traffic(learner(2), lambda label, count: 0.001 * count)
    traffic.until("learned", "<64")
    explored = traffic.learner.table().ranges[1].times[0].samples
    traffic.until("adopted", "<64")
    assert {count for _, count in traffic.served} == {2}
    assert traffic.shadowed == [("<64", 1)] * (explored + WINDOW_FORWARDS)
    traffic.shadowed.clear()
    traffic.run(["<64"], 10 * CHECK_EACH)
    assert traffic.shadowed == [("<64", 2)] * 10


def test_a_gain_below_5_percent_changes_nothing() -> None:
    traffic = Traffic(learner(2), lambda label, count: 0.00096 if count == 1 else 0.001)
    assert traffic.until("learned", "<64").count == 2
    traffic.run(["<64"], 500)
    assert {count for _, count in traffic.served} == {2} and traffic.learner.stage is Stage.LEARNED


def test_a_table_that_was_kept_is_taken_up_where_the_configured_count_is_the_same() -> None:
    first = Traffic(learner(4), lambda label, count: 0.001 * count)
    first.until("adopted", "<64")
    kept = first.learner.table()
    second = Learner(4, Mode.SERVE)
    second.start(kept)
    traffic = Traffic(second, lambda label, count: 0.001 * count)
    traffic.run(["<64"], WINDOW_FORWARDS)
    assert traffic.news[-1].kind == "adopted" and traffic.forward("<64") == 1
    other = Learner(2, Mode.SERVE)
    other.start(kept)
    assert other.stage is Stage.EXPLORING


def test_a_drift_that_was_kept_keeps_the_learning_retired() -> None:
    first = Traffic(learner(2), lambda label, count: 0.001 * count)
    first.drifting = frozenset({1})
    drift = first.until("retired", "<64").drift
    second = Learner(2, Mode.REPORT)
    second.start(first.learner.table())
    assert (second.stage, second.drift) == (Stage.RETIRED, drift)


@pytest.mark.parametrize(
    ("configured", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))]
)
def test_counts_are_powers_of_two_and_the_configured_one(configured: int, counts: tuple[int, ...]) -> None:
    assert counts_to_try(configured) == counts


@pytest.mark.parametrize(
    ("tokens", "label"),
    [(0, "<32"), (31, "<32"), (32, "<64"), (127, "<128"), (511, "<512"), (1023, "<1024"), (1024, "more")],
)
def test_ranges_begin_at_their_edges(tokens: int, label: str) -> None:
    assert LABELS[range_of(tokens)] == label


def test_an_illegal_move_is_an_error_and_retired_is_the_end() -> None:
    assert not MOVES[Stage.RETIRED]
    known = Learner(2, Mode.REPORT)
    known.start()
    with pytest.raises(ValueError, match="no way"):
        known.start()
