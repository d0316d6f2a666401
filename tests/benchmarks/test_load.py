"""The loads of the benchmarks where wrk does not make them: what is sent, and what is counted."""

from __future__ import annotations

import pytest

from benchmarks import load
from tests.bench.served import answer, raw, serving

OK, FULL, GONE = answer(), answer(429), raw(b"")


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_a_list_of_work_is_sent_once_and_in_order() -> None:
    bodies = [b"%d" % number for number in range(20)]
    with serving(lambda number: OK) as served:
        took, latencies = load.work_through(address_of(served.url), "/work", bodies, clients=1)
    assert served.bodies == bodies
    assert len(latencies) == 20 and 0 < sum(latencies) <= took


def test_work_that_is_refused_is_not_done() -> None:
    with (
        serving(lambda number: FULL if number == 3 else OK) as served,
        pytest.raises(load.NotAnswered, match="expected 8 answers, found 7; 429: 1"),
    ):
        load.work_through(address_of(served.url), "/work", [b"{}"] * 8, clients=2)


def test_refusals_and_broken_connections_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "has_wrk", lambda: False)
    with serving(lambda number: {1: FULL, 2: GONE}.get(number, OK)) as served:
        done = load.run(*address_of(served.url), "/work", b"{}", clients=1, seconds=0.3)
    assert (done.refused, done.broken, done.by) == (1, 1, "stoker bench")
    assert set(served.bodies) == {b"{}"}
    assert done.requests_per_s * done.seconds == pytest.approx(len(served.bodies) - 1)
