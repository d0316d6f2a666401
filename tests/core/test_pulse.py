"""A supervisor that did not run itself listens before it calls others silent (spec 5)."""

from __future__ import annotations

from supervisor.core.pulse import LATE_S, LISTEN_S, Pulse


def test_beats_in_time_and_beats_that_load_delays_judge_each_time() -> None:
    pulse = Pulse(1.0, 100.0)
    now = 100.0
    for late in (0.0, 0.0, 0.5, LATE_S, 0.0):
        now += 1.0 + late
        assert pulse.beat(now)


def test_after_a_pause_nobody_is_judged_until_there_was_time_to_hear_them() -> None:
    pulse = Pulse(1.0, 100.0)
    assert pulse.beat(101.0)
    verdicts = {now: pulse.beat(now) for now in (140.0, 141.0, 142.0, 140.0 + LISTEN_S, 144.0)}
    assert verdicts == {140.0: False, 141.0: False, 142.0: False, 143.0: True, 144.0: True}


def test_what_is_told_of_others_counts_from_the_last_pause_at_the_most() -> None:
    pulse = Pulse(1.0, 100.0)
    for now, awake_since in ((101.0, 100.0), (140.0, 140.0), (141.0, 140.0), (150.0, 150.0)):
        pulse.beat(now)
        assert pulse.awake_since == awake_since


def test_a_second_pause_begins_the_listening_anew() -> None:
    pulse = Pulse(1.0, 100.0)
    assert not pulse.beat(140.0), "also where the pause came before the first beat"
    assert not pulse.beat(180.0)
    assert not pulse.beat(182.0) and pulse.beat(183.0)
