"""The passes around served forwards, with a backend and a team that are made of data (spec 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.backends.base import Backend, Job, Row
from engine.messages import Card, Route, ThreadTable
from engine.threads.exactness import same_bits
from engine.threads.learning import CHECK_EACH, WINDOW_FORWARDS, Learner, Mode
from engine.threads.shadows import Learning

ROWS = [Row(20, None), Row(17, None)]
SLOW_S = 0.1
"""Seconds of a served forward."""


class Team:
    def __init__(self) -> None:
        self.size = 0
        self.stated: list[int] = []

    def use(self, count: int) -> None:
        self.size = count
        self.stated.append(count)


class Computing(Backend):
    """Answers by the team's size where that count drifts; notes at which count each pass ran."""

    def __init__(self, team: Team, drifting: frozenset[int] = frozenset()) -> None:
        self.team = team
        self.drifting = drifting
        self.passes: list[int] = []
        self.fails = False

    def load(self) -> None: ...

    def card(self) -> Card:
        raise NotImplementedError

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job:
        raise NotImplementedError

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        self.passes.append(self.team.size)
        if self.fails:
            raise RuntimeError("no memory")
        value = np.float32(1.0) if self.team.size not in self.drifting else np.nextafter(np.float32(1), np.float32(2))
        return [np.full(4, value, np.float32) for _ in rows]


class Served:
    """A learning at 4 threads, and forwards through it."""

    def __init__(self, mode: Mode, drifting: frozenset[int] = frozenset(), *, paid: bool = True) -> None:
        self.team = Team()
        self.backend = Computing(self.team, drifting)
        self.learner = Learner(4, mode)
        self.learner.start()
        if paid:
            self.learner.served(1_000_000, 1e6)  # a long forward of another range: exploration may begin at once
        self.kept: list[ThreadTable] = []
        self.ratios: dict[int, float] = {}
        """Time of a served forward at a count, as a share of SLOW_S."""
        self.threads = Learning(self.backend, self.team, self.learner, self.kept.append, None)

    def forward(self, waits: bool = False) -> list[int]:
        """Serve one forward; the counts of the passes that followed it."""
        self.threads.before(ROWS)
        outputs = self.backend.forward(ROWS)
        before = len(self.backend.passes)
        seconds = SLOW_S * self.ratios.get(self.team.size, 1.0)
        self.threads.after(ROWS, outputs, seconds, lambda: waits)
        return self.backend.passes[before:]


def test_a_warm_pass_at_the_configured_count_comes_before_the_candidate() -> None:
    served = Served(Mode.REPORT)
    assert [served.forward() for _ in range(3)] == [[4, 1], [4, 2], [4, 1]]
    assert set(served.backend.passes[::3]) == {4}, "every answer is of the configured count"


def test_while_another_request_waits_no_shadow_runs() -> None:
    served = Served(Mode.REPORT)
    assert [served.forward(waits=True) for _ in range(200)] == [[]] * 200


def test_short_forwards_wait_until_exploration_is_paid_for() -> None:
    served = Served(Mode.REPORT, paid=False)
    shadowed = [bool(served.forward()) for _ in range(10)]
    assert not any(shadowed), "a warm pass and one thread of four may take five times as long: 20 forwards pay for it"
    assert any(served.forward() for _ in range(15))


def test_one_drift_retires_the_learning_names_the_input_and_is_kept() -> None:
    served = Served(Mode.SERVE, drifting=frozenset({2}))
    while (report := served.threads.news()) is None:
        served.forward()
    (news,) = report.news
    assert (news.kind, news.count) == ("retired", 2)
    assert news.drift is not None and news.drift.shape == "2 x 17 to 20 tokens"
    assert report.table.state == "retired" and served.kept[-1].drift == news.drift
    assert [served.forward() for _ in range(300)] == [[]] * 300
    assert served.team.size == 4


def test_an_answer_that_is_not_even_the_same_at_the_configured_count_retires_it_too() -> None:
    served = Served(Mode.REPORT)
    served.threads.after(ROWS, [np.zeros(4, np.float32)] * 2, SLOW_S, lambda: False)
    report = served.threads.news()
    assert report is not None and (report.news[0].kind, report.news[0].count) == ("retired", 4)


def test_a_shadow_pass_that_fails_is_nobodys_error_and_retires_the_learning() -> None:
    served = Served(Mode.REPORT)
    outputs = served.backend.forward(ROWS)
    served.backend.fails = True
    served.threads.after(ROWS, outputs, SLOW_S, lambda: False)
    report = served.threads.news()
    assert report is not None and report.news[0].kind == "retired"


def test_a_learned_count_serves_after_its_window_and_decode_steps_stay_at_the_configured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(Mode.SERVE)
    served.ratios = {1: 0.5}
    now = [0.0]

    def clock() -> float:
        now[0] += {0: 1.0, 1: 0.5, 2: 1.0, 4: 1.0}[served.team.size]
        return now[0]

    monkeypatch.setattr("time.perf_counter", clock)
    kinds: list[str] = []
    while "adopted" not in kinds:
        assert served.threads.size in (0, 4, 1, 2)
        served.forward()
        report = served.threads.news()
        kinds += [news.kind for news in report.news] if report is not None else []
    assert kinds == ["learned", "adopted"] and len(served.backend.passes) >= WINDOW_FORWARDS
    passes = [served.forward() for _ in range(CHECK_EACH)]
    assert passes == [[]] * (CHECK_EACH - 1) + [[4]]
    served.threads.before(ROWS)
    assert served.team.size == 1
    served.threads.before_step()
    assert served.team.size == 4


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        ([1.0, "a"], [1.0, "a"], True),
        ([1.0], [1.0, 2.0], False),
        ({"a": (1.0, None)}, {"a": (1.0, None)}, True),
        ({"a": 1.0}, {"b": 1.0}, False),
        (np.float32([1, 2]), np.float32([1, 2]), True),
        (np.float32([0.0]), np.float32([-0.0]), False),
        (np.float32([1, 2]), np.float64([1, 2]), False),
        (np.float32([1, 2]), np.float32([[1, 2]]), False),
        (np.float32(1), np.nextafter(np.float32(1), np.float32(2)), False),
        (Row(3, np.float32([1])), Row(3, np.float32([1])), True),
        (Row(3, np.float32([1])), Row(3, np.float32([2])), False),
    ],
)
def test_answers_are_compared_by_their_bits_in_every_field(one: Any, other: Any, same: bool) -> None:
    assert same_bits(one, other) is same


def test_tensors_are_compared_by_their_bits() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        assert same_bits(torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype))
        assert not same_bits(torch.ones(3, dtype=dtype), torch.zeros(3, dtype=dtype))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
