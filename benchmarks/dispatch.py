"""What dispatch and accounting cost a request, by number of replicas: the pure core alone, no socket, no process.

    python -m benchmarks.dispatch

One request is: pick, assign, settle as answered, and the counts that status and metrics show. Each replica has three
others in flight meanwhile. The best of many short rounds is shown, since whatever else runs on the machine only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from supervisor.core.dispatch import Member, Pool, Tickets
from supervisor.core.durations import Durations
from supervisor.core.ejection import Outcome
from supervisor.core.traffic import Traffic

REPLICAS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 200
CALLS_A_ROUND = 200
BODY_BYTES = 500


def main() -> None:
    """Run and print the table."""
    table = Table(title="dispatch and accounting, us a request")
    for column in ("replicas", "pick", "assign, settle", "accounting", "together", "together, one replica drains"):
        table.add_column(column, justify="right")
    for replicas in REPLICAS:
        table.add_row(str(replicas), *(f"{cost:.2f}" for cost in _costs(replicas)))
    Console().print(table)


def _costs(replicas: int) -> list[float]:
    pool = Pool(Tickets(), desired=replicas)
    pool.members = [Member(f"stub/{number}", in_rotation=True) for number in range(replicas)]
    for member in pool.members * 3:
        pool.assign(member, BODY_BYTES)
    traffic, durations, counts = Traffic(0.0), Durations(), dict.fromkeys(Outcome, 0)

    def account() -> None:
        counts[Outcome.OK] += 1
        traffic.record(1.0, 0.0021)
        durations.record(0.0021)

    def hold() -> None:
        pool.settle(pool.assign(pool.members[0], BODY_BYTES), Outcome.OK, 1.0)

    def all_of_it() -> None:
        member = pool.pick(1.0)
        assert isinstance(member, Member)
        pool.settle(pool.assign(member, BODY_BYTES), Outcome.OK, 1.0)
        account()

    costs = [_cost(call) for call in (lambda: pool.pick(1.0), hold, account, all_of_it)]
    drains = Member("stub/drains")
    pool.members.append(drains)
    return [*costs, _cost(all_of_it)]


def _cost(call: Callable[[], object]) -> float:
    """Microseconds a call takes, its own call included."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS_A_ROUND):
            call()
        best = min(best, time.perf_counter() - started)
    return best / CALLS_A_ROUND * 1e6


if __name__ == "__main__":
    main()
