"""The grace of exported units outlasts what the supervisor promises (spec 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.grace import stop_grace_s
from supervisor.host.processes import STOP_S
from supervisor.supervisor import HEADROOM_S

DRAINS = st.lists(st.floats(0, 3600), max_size=8)


@pytest.mark.parametrize(
    ("drains", "grace"),
    [
        ([], 120),
        ([0.0], 120),
        ([30.0], 120),
        ([55.0], 120),
        ([55.1], 121),
        ([60.0], 125),
        ([60.0, 0.5, 600.0], 665),
        ([3600.0], 3665),
    ],
)
def test_the_grace_follows_the_longest_drain(drains: list[float], grace: int) -> None:
    assert stop_grace_s(drains) == grace


@given(DRAINS)
def test_it_is_longer_than_the_supervisor_takes_at_the_worst(drains: list[float]) -> None:
    assert stop_grace_s(drains) > max(drains, default=0.0) + HEADROOM_S + STOP_S


@given(DRAINS, st.floats(0, 3600))
def test_another_deployment_never_makes_it_shorter(drains: list[float], one_more: float) -> None:
    assert stop_grace_s([*drains, one_more]) >= stop_grace_s(drains)
