"""A pause of the whole machine is no hung forward: engines stood still with their supervisor (spec 5)."""

from __future__ import annotations

from unittest import mock

import pytest

from supervisor.core.lifecycle import State
from supervisor.slots.managed import ManagedSlot

LIMIT_S = 10.0
NOW = 1000.0


def hung(state: State, since: float, awake_since: float) -> bool:
    """Whether a replica is killed in that state whose forward, or warming, began then."""
    home = mock.Mock(awake_since=awake_since)
    slot = ManagedSlot(home, "m", 0, 0, mock.Mock(restart_hung_s=LIMIT_S), mock.Mock())
    slot.state, slot.since, slot._heard = state, since, NOW
    slot._child = child = mock.Mock(alive=True)
    if state is State.READY:
        slot._heartbeat = mock.Mock(forward_age_s=NOW - since)
    slot.tick(NOW)
    return bool(child.kill.called)


@pytest.mark.parametrize("state", [State.READY, State.WARMING])
def test_a_forward_is_hung_only_by_what_it_ran_since_the_last_pause(state: State) -> None:
    assert hung(state, NOW - LIMIT_S - 1, awake_since=0.0)
    assert not hung(state, NOW - LIMIT_S + 1, awake_since=0.0)
    assert not hung(state, NOW - 10 * LIMIT_S, awake_since=NOW - 5), "most of that was the pause"
    assert hung(state, NOW - 10 * LIMIT_S, awake_since=NOW - LIMIT_S - 1), "it does not go on after the pause"
