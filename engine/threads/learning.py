"""Which thread count is fastest for which size of a forward, learned from traffic (spec 9). Pure.

    locked -> exploring -> learned -> transition -> serving        any of them -> retired, for good

A forward is served at one count and may be run again at another one, a shadow, whose answer must have the same bits.
The learner says which count serves, which count is to be shadowed, and takes in what was measured; it has no clock and
runs nothing. Shadows are compared in pairs: a warm pass at the configured count, then the candidate, on the same rows.
So neither the caches, nor the length of the rows, nor a neighbour's load favours one of the two, and what is learned is
the median of their ratios.

Each range of sizes has a stage of its own, except that the golden check unlocks all of them, and that one drift retires
all of them. Counts are tried least sampled first, so the few shadows that the cost bound allows are spent evenly.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import statistics
from collections.abc import Sequence

from engine.messages import CountTime, ThreadDrift, ThreadNews, ThreadRange, ThreadTable

EDGES = (32, 64, 128, 256, 512, 1024)
"""Padded tokens of a forward that no longer belong to a range; what reaches the last edge is "more"."""

LABELS = (*(f"<{edge}" for edge in EDGES), "more")

TRUSTED_SAMPLES = 3
"""Shadow passes that a count needs before its median is believed."""

LEAST_GAIN = 0.05
"""Share of the configured count's time that another count must save to be worth a change."""

LEAST_FORWARDS = 48
"""Forwards that a range sees before its exploration may end; three a count where that is more."""

WINDOW_FORWARDS = 48
"""Forwards of the transition: the configured count serves, the learned one is shadowed."""

CHECK_EACH = 64
"""One served forward of so many is checked against the configured count, while the learned one serves."""

MOST_COST = 0.2
"""Share of the busy time that exploration may take."""

SHIFT = 0.25
SHIFT_FORWARDS = 64
"""A range relearns when the median of so many served forwards leaves the pace it had by that share."""

MOST_PATIENCE = 64
"""Windows in a row that must be off before a range relearns, at most: 1, and twice as many after each relearning. A
machine whose speed comes and goes is no reason to explore for ever: that costs, and tells nothing."""

CALM_WINDOWS = 64
"""Windows in a row that are not off, after which one is enough again."""

PACE_FORWARDS = 16
"""Served forwards of one size that set the pace for it."""

KEPT_SAMPLES = 64
"""Latest samples of a count that are kept."""


class Stage(enum.StrEnum):
    """Where the learning of a range stands."""

    LOCKED = "locked"
    EXPLORING = "exploring"
    LEARNED = "learned"
    TRANSITION = "transition"
    SERVING = "serving"
    RETIRED = "retired"


MOVES: dict[Stage, frozenset[Stage]] = {
    Stage.LOCKED: frozenset({Stage.EXPLORING, Stage.LEARNED, Stage.RETIRED}),
    Stage.EXPLORING: frozenset({Stage.LEARNED, Stage.RETIRED}),
    Stage.LEARNED: frozenset({Stage.TRANSITION, Stage.EXPLORING, Stage.RETIRED}),
    Stage.TRANSITION: frozenset({Stage.SERVING, Stage.RETIRED}),
    Stage.SERVING: frozenset({Stage.EXPLORING, Stage.RETIRED}),
    Stage.RETIRED: frozenset(),
}
"""Every legal move; nothing leaves `retired`."""


class Mode(enum.IntEnum):
    """`cpu.adaptive`."""

    OFF = 0
    REPORT = 1
    SERVE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Shadow:
    """A pass to run after a served forward. timed: after a warm pass at the configured count, to compare times."""

    count: int
    timed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A shadow pass that was run. Times in seconds; `lengths`: tokens of each row.

    warm_s: the warm pass at the configured count just before it, 0 where there was none. same_bits: whether both
    gave the served answer.
    """

    lengths: Sequence[int]
    count: int
    seconds: float
    same_bits: bool
    warm_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Padded tokens."""
        return padded(self.lengths)


def padded(lengths: Sequence[int]) -> int:
    """Padded tokens of a forward: its rows as if each were as long as the longest."""
    return max(lengths, default=0) * len(lengths)


def range_of(tokens: int) -> int:
    """Index of the range that a forward of so many padded tokens falls into."""
    return next((index for index, edge in enumerate(EDGES) if tokens < edge), len(EDGES))


def counts_to_try(configured: int) -> tuple[int, ...]:
    """Powers of two up to the configured count, and that count."""
    powers = {1 << bit for bit in range(configured.bit_length())}
    return tuple(sorted({count for count in powers if count <= configured} | {configured}))


class Pace:
    """How fast served forwards are, size by size, and whether they still are.

    A forward's time is compared with others of about its size (the same power of two of tokens), so a change of the
    mix of lengths is not taken for a change of the machine.
    """

    def __init__(self) -> None:
        self._first: dict[int, list[float]] = {}
        self._pace: dict[int, float] = {}
        self._ratios: list[float] = []

    def scaled(self, ratio: float) -> Pace:
        """The same pace at a count that takes `ratio` of the time."""
        other = Pace()
        other._pace = {size: per_token * ratio for size, per_token in self._pace.items()}
        return other

    def window(self, tokens: int, seconds: float) -> float | None:
        """Take in a served forward; when a window is full, its median share of the pace (2.0: half as fast)."""
        size, per_token = tokens.bit_length(), seconds / max(1, tokens)
        if size not in self._pace:
            first = self._first.setdefault(size, [])
            first.append(per_token)
            if len(first) == PACE_FORWARDS:
                self._pace[size] = max(statistics.median(first), 1e-12)
            return None
        self._ratios.append(per_token / self._pace[size])
        if len(self._ratios) < SHIFT_FORWARDS:
            return None
        middle = statistics.median(self._ratios)
        self._ratios.clear()
        return middle


class _Range:
    """One range of sizes."""

    def __init__(self, label: str, counts: Sequence[int]) -> None:
        self.label = label
        self.stage = Stage.LOCKED
        self.learned: int | None = None
        self.gain = 0.0
        self.ratios = {count: _samples() for count in counts}
        self.seconds = {count: _samples() for count in counts}
        self.forwards = 0
        self.since = 0
        """Forwards since the window began, or since the last check."""
        self.pace = Pace()
        self.on_trial = False
        """Whether a count that was adopted has still to show that it is as fast as promised."""
        self.given_up: set[int] = set()
        """Counts that served slower than their pairs had promised; not chosen again before the machine has changed."""
        self.patience = 1
        self.off = self.calm = 0
        """Windows in a row that were off, of which `patience` make it relearn, and that were not."""

    def move(self, after: Stage) -> None:
        """Go to another stage. Raises ValueError for a move that is not in the table."""
        if after not in MOVES[self.stage]:
            raise ValueError(f"threads {self.label}: no way from {self.stage} to {after}")
        self.stage = after
        self.since = 0

    def explore(self) -> None:
        """Begin again, with nothing known."""
        self.move(Stage.EXPLORING)
        self.learned, self.gain, self.forwards = None, 0.0, 0
        self.pace, self.on_trial = Pace(), False
        for kept in (*self.ratios.values(), *self.seconds.values()):
            kept.clear()

    def take_window(self, off: bool) -> bool:
        """Note one more window; True where so many in a row were off that the range has to relearn."""
        if not off:
            self.off, self.calm = 0, self.calm + 1
            if self.calm >= CALM_WINDOWS:
                self.patience = 1
            return False
        self.off, self.calm = self.off + 1, 0
        if self.off < self.patience:
            return False
        self.off, self.patience = 0, min(2 * self.patience, MOST_PATIENCE)
        return True

    def table(self) -> ThreadRange:
        times = [CountTime(count, len(kept), statistics.median(kept)) for count, kept in self.seconds.items() if kept]
        return ThreadRange(
            label=self.label,
            state=self.stage.value,
            forwards=self.forwards,
            times=times,
            learned=self.learned,
            gain=self.gain,
        )


def _samples() -> collections.deque[float]:
    return collections.deque(maxlen=KEPT_SAMPLES)


class Learner:
    """The learning of one replica. `configured`: its count, which serves until another one has proven itself."""

    def __init__(self, configured: int, mode: Mode) -> None:
        self.configured = configured
        self.counts = counts_to_try(configured)
        self.mode = mode
        self.drift: ThreadDrift | None = None
        self.explored_s = self.checked_s = self.served_s = 0.0
        self._ranges = [_Range(label, self.counts) for label in LABELS]
        self._candidates = [count for count in self.counts if count != configured]
        self._forwards_to_see = max(LEAST_FORWARDS, TRUSTED_SAMPLES * len(self.counts))

    @property
    def stage(self) -> Stage:
        """The stage of the whole: that of the range which is furthest, or `retired`."""
        order = list(Stage)
        return max((each.stage for each in self._ranges), key=order.index)

    @property
    def busy_s(self) -> float:
        """Seconds of all forwards, served and shadowed."""
        return self.served_s + self.explored_s + self.checked_s

    # ------------------------------------------------------------------------------------------- beginning

    def start(self, kept: ThreadTable | None = None) -> None:
        """The golden check is passed. `kept`: what an earlier process with the same key learned."""
        usable = kept is not None and kept.configured == self.configured
        if kept is not None and usable and kept.drift is not None:
            self._retire(kept.drift)
            return
        known = {each.label: each for each in kept.ranges} if kept is not None and usable else {}
        for each in self._ranges:
            before = known.get(each.label)
            if before is not None and before.learned in self.counts:
                self._recall(each, before)
            else:
                each.move(Stage.EXPLORING)

    def _recall(self, each: _Range, before: ThreadRange) -> None:
        each.move(Stage.LEARNED)
        each.learned, each.gain, each.forwards = before.learned, before.gain, before.forwards
        for time in before.times:
            if time.count in each.seconds:
                each.seconds[time.count].append(time.seconds)
        self._begin_transition(each)

    # ------------------------------------------------------------------------------------------- deciding

    def serving(self, tokens: int) -> int:
        """The count that a forward of so many padded tokens is served with."""
        each = self._ranges[range_of(tokens)]
        return each.learned if each.stage is Stage.SERVING and each.learned is not None else self.configured

    def shadow(self, tokens: int, seconds: float) -> Shadow | None:
        """What to run after a forward that was served within `seconds`, if nothing else waits."""
        each = self._ranges[range_of(tokens)]
        match each.stage:
            case Stage.EXPLORING if self._candidates:
                count = min(self._candidates, key=lambda one: len(each.ratios[one]))
                return Shadow(count, timed=True) if self._affordable(each, count, seconds) else None
            case Stage.TRANSITION if each.learned is not None:
                return Shadow(each.learned, timed=False)
            case Stage.SERVING if each.since >= CHECK_EACH:
                return Shadow(self.configured, timed=False)
            case _:
                return None

    def _affordable(self, each: _Range, count: int, seconds: float) -> bool:
        """Whether a warm pass and the candidate stay within the bound, by what is known of the candidate."""
        ratios = each.ratios[count]
        expected = max(ratios) if ratios else max(1.0, self.configured / count)
        cost = seconds * (1.0 + expected)
        return self.explored_s + cost <= MOST_COST * (self.busy_s + cost)

    # ------------------------------------------------------------------------------------------- taking in

    def served(self, tokens: int, seconds: float) -> list[ThreadNews]:
        """A forward was served; what follows from it."""
        self.served_s += seconds
        each = self._ranges[range_of(tokens)]
        if each.stage in (Stage.LOCKED, Stage.RETIRED):
            return []
        each.forwards += 1
        if each.stage is Stage.SERVING:
            each.since += 1
        if self._has_shifted(each, each.pace.window(tokens, seconds)):
            each.explore()
            return [ThreadNews(kind="relearning", label=each.label, count=self.configured)]
        return self._end_exploration(each) if each.stage is Stage.EXPLORING else []

    def _has_shifted(self, each: _Range, middle: float | None) -> bool:
        """Whether a window of served forwards says that what was learned holds no more.

        The first window at an adopted count is its trial: it must not be slower than promised. Faster is fine: warm
        pairs do not show what it costs to wake threads that have slept. From then on its own pace is what counts.
        """
        if middle is None or each.stage not in (Stage.LEARNED, Stage.SERVING) or not self._candidates:
            return False
        if not each.on_trial:
            if not each.take_window(abs(middle - 1.0) > SHIFT):
                return False
            each.given_up.clear()
            return True
        each.on_trial, each.pace = False, Pace()
        if middle <= 1.0 + SHIFT:
            return False
        assert each.learned is not None
        each.given_up.add(each.learned)
        return True

    def observe(self, sample: Sample) -> list[ThreadNews]:
        """A shadow pass was run; what follows from it."""
        each = self._ranges[range_of(sample.tokens)]
        cost = sample.seconds + sample.warm_s
        if each.stage is Stage.EXPLORING:
            self.explored_s += cost
        else:
            self.checked_s += cost
        if each.stage in (Stage.LOCKED, Stage.RETIRED):
            return []
        if not sample.same_bits:
            drift = ThreadDrift(count=sample.count, lengths=list(sample.lengths))
            self._retire(drift)
            return [ThreadNews(kind="retired", label=each.label, count=sample.count, drift=drift)]
        return self._advance(each, sample)

    def _advance(self, each: _Range, sample: Sample) -> list[ThreadNews]:
        match each.stage:
            case Stage.EXPLORING if sample.warm_s > 0 and sample.count in each.ratios:
                each.ratios[sample.count].append(sample.seconds / sample.warm_s)
                each.seconds[sample.count].append(sample.seconds)
                each.seconds[self.configured].append(sample.warm_s)
                return self._end_exploration(each)
            case Stage.TRANSITION:
                each.since += 1
                return self._adopt(each) if each.since >= WINDOW_FORWARDS else []
            case Stage.SERVING:
                each.since = 0
                return []
            case _:
                return []

    # ------------------------------------------------------------------------------------------- moving

    def _end_exploration(self, each: _Range) -> list[ThreadNews]:
        enough = all(len(each.ratios[count]) >= TRUSTED_SAMPLES for count in self._candidates)
        if each.forwards < self._forwards_to_see or not enough:
            return []
        allowed = [count for count in self._candidates if count not in each.given_up]
        medians = {count: statistics.median(each.ratios[count]) for count in allowed}
        best = min(medians, key=lambda count: medians[count], default=self.configured)
        gain = 1.0 - medians.get(best, 1.0)
        each.learned, each.gain = (best, gain) if gain >= LEAST_GAIN else (self.configured, 0.0)
        each.move(Stage.LEARNED)
        self._begin_transition(each)
        assert each.learned is not None
        return [ThreadNews(kind="learned", label=each.label, count=each.learned, gain=each.gain)]

    def _begin_transition(self, each: _Range) -> None:
        if self.mode is Mode.SERVE and each.learned != self.configured:
            each.move(Stage.TRANSITION)

    def _adopt(self, each: _Range) -> list[ThreadNews]:
        each.move(Stage.SERVING)
        each.pace, each.on_trial = each.pace.scaled(1.0 - each.gain), True
        assert each.learned is not None
        return [ThreadNews(kind="adopted", label=each.label, count=each.learned, gain=each.gain)]

    def _retire(self, drift: ThreadDrift) -> None:
        self.drift = drift
        for each in self._ranges:
            each.move(Stage.RETIRED)

    # ------------------------------------------------------------------------------------------- telling

    def table(self) -> ThreadTable:
        """All that is known now."""
        return ThreadTable(
            mode=int(self.mode),
            configured=self.configured,
            state=self.stage.value,
            explored_s=self.explored_s,
            checked_s=self.checked_s,
            busy_s=self.busy_s,
            drift=self.drift,
            ranges=[each.table() for each in self._ranges],
        )
