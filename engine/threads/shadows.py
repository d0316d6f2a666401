"""Thread counts around the forwards of a replica: set before each one, learned after it by shadow passes (spec 9).

`threads_for` chooses: engines that have no team (a stub, a GPU), a fixed count, or learning. The device thread calls
`before` and `after` around every forward of rows, and does not know which it has.

Decode steps are left out. A step writes its token's keys and values into the cache, so a second pass of the same step
would have to run on a copy of it, and copying a cache costs more than the step. They run at the configured count.
"""

from __future__ import annotations

import collections
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from engine.backends.base import Backend, Row
from engine.errors import log_traceback
from engine.messages import Card, LaunchSpec, ThreadNews, ThreadReport, ThreadTable
from engine.threads import records
from engine.threads.exactness import same_bits
from engine.threads.learning import Learner, Mode, Sample, counts_to_try, padded

log = logging.getLogger(__name__)

TABLE_EACH_S = 0.5
"""Least time between two tables that are made only because more forwards were served."""


class Team(Protocol):
    """The threads that compute; `team.Team` is torch's."""

    def use(self, count: int) -> None:
        """What is computed next runs on so many threads."""

    @property
    def size(self) -> int:
        """How many there are now, asked where they are."""


class Threads(Protocol):
    """What the device thread tells of its forwards."""

    @property
    def size(self) -> int:
        """How many threads compute now."""

    def before(self, rows: Sequence[Row]) -> None:
        """A forward of these rows comes next."""

    def before_step(self) -> None:
        """A decode step comes next."""

    def after(self, rows: Sequence[Row], outputs: Sequence[Any], seconds: float, waits: Callable[[], bool]) -> None:
        """It was served. waits: whether other work waits by now; shadows run only while none does."""

    def news(self) -> ThreadReport | None:
        """What the learning came to since the last call. Device thread."""

    def report(self) -> ThreadReport | None:
        """The newest table that was not taken yet. Any thread."""


class Untouched:
    """An engine whose threads are not Stoker's to set."""

    def __init__(self, count: int) -> None:
        self.size = count

    def before(self, rows: Sequence[Row]) -> None:
        """Nothing to set."""

    def before_step(self) -> None:
        """Nothing to set."""

    def after(self, rows: Sequence[Row], outputs: Sequence[Any], seconds: float, waits: Callable[[], bool]) -> None:
        """Nothing to learn."""

    def news(self) -> ThreadReport | None:
        """None, ever."""
        return None

    def report(self) -> ThreadReport | None:
        """None, ever."""
        return None


class Fixed(Untouched):
    """The configured count for every forward."""

    def __init__(self, team: Team, count: int) -> None:
        self._team = team
        self._count = count
        team.use(count)

    @property
    def size(self) -> int:  # type: ignore[override]
        """What the team itself says."""
        return self._team.size

    def before(self, rows: Sequence[Row]) -> None:
        """See Threads."""
        self._team.use(self._count)

    def before_step(self) -> None:
        """See Threads."""
        self._team.use(self._count)


class Learning:
    """A learner, and the passes that it asks for. `keep`: where its table is kept, called when it came to something."""

    def __init__(
        self,
        backend: Backend,
        team: Team,
        learner: Learner,
        keep: Callable[[ThreadTable], None],
        certified: bool | None,
    ) -> None:
        self._backend = backend
        self._team = team
        self._learner = learner
        self._keep = keep
        self._certified = certified
        self._news: list[ThreadNews] = []
        self._tables: collections.deque[ThreadTable] = collections.deque(maxlen=1)
        self._table_at = 0.0
        team.use(learner.configured)
        self._make_table()

    @property
    def size(self) -> int:
        """What the team itself says."""
        return self._team.size

    def before(self, rows: Sequence[Row]) -> None:
        """See Threads."""
        self._team.use(self._learner.serving(padded(_lengths(rows))))

    def before_step(self) -> None:
        """See Threads."""
        self._team.use(self._learner.configured)

    def after(self, rows: Sequence[Row], outputs: Sequence[Any], seconds: float, waits: Callable[[], bool]) -> None:
        """See Threads."""
        lengths = _lengths(rows)
        self._news += self._learner.served(padded(lengths), seconds)
        if not waits():
            sample = self._shadow(rows, lengths, outputs, seconds)
            if sample is not None:
                self._news += self._learner.observe(sample)
                self._make_table()
        if self._news or time.monotonic() - self._table_at > TABLE_EACH_S:
            self._make_table()

    def news(self) -> ThreadReport | None:
        """See Threads. What was learned is kept before it is told."""
        if not self._news:
            return None
        news, self._news = self._news, []
        table = self._learner.table()
        self._keep(table)
        self._tables.clear()
        return ThreadReport(self._stamped(table), news)

    def report(self) -> ThreadReport | None:
        """See Threads."""
        try:
            return ThreadReport(self._tables.pop(), [])
        except IndexError:
            return None

    def _shadow(
        self, rows: Sequence[Row], lengths: Sequence[int], outputs: Sequence[Any], seconds: float
    ) -> Sample | None:
        """The passes that the learner wants after this forward, None where it wants none.

        Warm pass and candidate are one: a client that sends its next request as soon as it has an answer would
        else cut every pair in the middle, and pay for it without anything learned.
        """
        shadow = self._learner.shadow(padded(lengths), seconds)
        if shadow is None:
            return None
        warm_s = 0.0
        if shadow.timed:
            same, warm_s = self._again(rows, outputs, self._learner.configured)
            if not same:
                return Sample(lengths, self._learner.configured, warm_s, same_bits=False)
        same, shadow_s = self._again(rows, outputs, shadow.count)
        return Sample(lengths, shadow.count, shadow_s, same, warm_s)

    def _again(self, rows: Sequence[Row], outputs: Sequence[Any], count: int) -> tuple[bool, float]:
        """Run the same rows at a count: whether they have the same answer, and the seconds."""
        self._team.use(count)
        started = time.perf_counter()
        try:
            again = self._backend.forward(rows)
        except Exception as error:
            log_traceback(error)
            print(f"threads: a shadow pass at {count} threads failed; its answer counts as another one", flush=True)
            return False, time.perf_counter() - started
        return same_bits(list(outputs), list(again)), time.perf_counter() - started

    def _make_table(self) -> None:
        self._table_at = time.monotonic()
        self._tables.append(self._stamped(self._learner.table()))

    def _stamped(self, table: ThreadTable) -> ThreadTable:
        return msgspec.structs.replace(table, certified=self._certified)


def threads_for(spec: LaunchSpec, backend: Backend, card: Card) -> Threads:
    """What is to be done about threads in this replica, its golden check passed."""
    on_cpu = spec.simulated or spec.device == "cpu"
    if not on_cpu or "torch" not in sys.modules:  # a stub; user code that computes without torch
        return Untouched(spec.threads)
    from engine.threads.team import Team

    team = Team()
    if not spec.adaptive or not backend.repeatable:
        return Fixed(team, spec.threads)
    mode = Mode(spec.adaptive)
    key = records.host_key(card)
    learner = Learner(spec.threads, mode)
    learner.start(records.read_table(key))
    may_change = mode is Mode.SERVE and spec.threads > 1
    certified = is_certified(key, spec.threads) if may_change else None
    return Learning(backend, team, learner, lambda table: records.write_table(key, table), certified)


def is_certified(key: records.HostKey, configured: int) -> bool:
    """Whether a clean certificate covers every count that may serve."""
    certificate = records.read_certificate(key)
    return certificate is not None and certificate.clean and set(counts_to_try(configured)) <= set(certificate.counts)


def _lengths(rows: Sequence[Row]) -> list[int]:
    return [row.tokens for row in rows]
