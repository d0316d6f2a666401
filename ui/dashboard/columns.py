"""The columns of the fleet table: what each shows, how wide it is, which go first when the terminal is narrow. Pure.

The gutter, the name, the state and the reason are always there; the reason takes what is left over, so the table never
scrolls sideways. A cell is a text and a tone; rows of cells are compared before anything is drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from rich.cells import cell_len

from supervisor.control.messages import DeploymentStatus, Inventory, ReplicaStatus, ResultCacheStatus
from ui.dashboard import words
from ui.dashboard.model import History
from ui.dashboard.paint import Piece, Tone
from ui.dashboard.states import (
    FULL_IN_FLIGHT,
    deployment_look,
    goes_on,
    goes_on_in,
    goes_on_tone,
    replica_look,
)
from ui.looks import shown_state

BARS = "▁▂▃▄▅▆▇█"
TREND_SAMPLES = 12
NEARLY_FULL = FULL_IN_FLIGHT * 3 // 4
NARROWEST_REASON, WIDEST_REASON = 28, 48
"""Cells kept for the reason, the more the wider the terminal; `draining, 3 left, 12 s of 30` takes 28."""
NARROWEST_NAME, WIDEST_NAME = 8, 28
WIDEST_STATE = 14
WIDE_GAPS_FROM = 110
"""Terminal width from which columns stand two cells apart."""
GUTTER = 1
ANY_TASK = "any"
"""The task of an engine that answers every route: it tells nobody anything."""
UNKNOWN = "-"
"""What stands where there is a number that nobody here knows."""

SortKey = tuple[float | str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column. rank: 0 is always shown, then the lowest first. width 0: it is given what is left, or fits the names.

    letter: the Shift-letter that sorts by it. falls: the largest first.
    """

    name: str
    title: str
    width: int
    rank: int
    of_replica: Callable[[ReplicaStatus, History], Piece]
    of_deployment: Callable[[DeploymentStatus, History], Piece]
    means: str
    right: bool = True
    letter: str = ""
    sort_key: Callable[[ReplicaStatus], SortKey] | None = None
    falls: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A column that is shown, with its width in cells."""

    column: Column
    width: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The columns that fit a width, in order."""

    placed: tuple[Placed, ...]
    gap: int
    width: int

    @property
    def names(self) -> frozenset[str]:
        return frozenset(placed.column.name for placed in self.placed)

    def column_at(self, x: int) -> Column | None:
        """The column under a cell of the title row."""
        left = GUTTER
        for placed in self.placed:
            if left <= x < left + placed.width + self.gap:
                return placed.column
            left += placed.width + self.gap
        return None


# ------------------------------------------------------------------------------------------------------ cells


def _number(text: str, is_zero: bool, tone: Tone = Tone.TEXT) -> Piece:
    return text, Tone.DIM if is_zero else tone


def _of_process(replica: ReplicaStatus, text: str, is_zero: bool) -> Piece:
    """What only a replica with a process, or one somewhere else, has."""
    return _number(text if replica.pid is not None or not replica.managed else "", is_zero)


def _measured(replica: ReplicaStatus, text: str, is_zero: bool) -> Piece:
    """What is read of a process on this host: nobody reads it of one that somebody else has started."""
    return (UNKNOWN, Tone.DIM) if not replica.managed else _of_process(replica, text, is_zero)


def _fullness(in_flight: int) -> Tone:
    if in_flight >= FULL_IN_FLIGHT:
        return Tone.BAD
    return Tone.WARN if in_flight >= NEARLY_FULL else Tone.TEXT


def _state_of_replica(replica: ReplicaStatus, _: History) -> Piece:
    state = shown_state(replica)
    look = replica_look(state)
    return f"{look.glyph} {words.literal(state)}", look.tone


def _state_of_deployment(deployment: DeploymentStatus, _: History) -> Piece:
    look = deployment_look(deployment.state)
    return f"{look.glyph} {words.literal(deployment.state)}", look.tone


def _reason_of_replica(replica: ReplicaStatus, _: History) -> Piece:
    return words.literal(goes_on(replica)), goes_on_tone(replica)


def _reason_of_deployment(deployment: DeploymentStatus, _: History) -> Piece:
    task = "" if deployment.task == ANY_TASK else deployment.task
    parts = (_from_cache(deployment.result_cache), task, deployment.artifact or "")
    about = " · ".join(part for part in parts if part)
    text = goes_on_in(deployment) + (f" · {about}" if about and not deployment.warnings else "")
    return words.literal(text), Tone.WARN if deployment.warnings else Tone.DIM


def _from_cache(cache: ResultCacheStatus | None) -> str:
    """The share of requests that needed no replica, where answers are remembered."""
    if cache is None or not cache.active or not cache.hits:
        return ""
    return f"{cache.hits / (cache.hits + cache.misses):.0%} from cache"


def _threads_of_deployment(deployment: DeploymentStatus, _: History) -> Piece:
    count = threads_of(deployment)
    return _number(str(count), not count, Tone.STRONG) if _is_here(deployment) else (UNKNOWN, Tone.DIM)


def _summed(field: str, shown: Callable[[float], str], tone: Tone = Tone.TEXT) -> Callable[..., Piece]:
    def cell(deployment: DeploymentStatus, _: History) -> Piece:
        total = sum(getattr(replica, field) or 0 for replica in deployment.replicas)
        return _number(shown(total), not total, tone)

    return cell


def _summed_here(field: str, shown: Callable[[float], str]) -> Callable[..., Piece]:
    """The sum of what is read of processes on this host."""
    summed = _summed(field, shown, Tone.STRONG)

    def cell(deployment: DeploymentStatus, history: History) -> Piece:
        return summed(deployment, history) if _is_here(deployment) else (UNKNOWN, Tone.DIM)

    return cell


def _is_here(deployment: DeploymentStatus) -> bool:
    return any(replica.managed for replica in deployment.replicas)


def threads_of(deployment: DeploymentStatus) -> int:
    """Intra-op threads of its replicas that have a process."""
    return sum(replica.threads or 0 for replica in deployment.replicas if replica.pid is not None)


def _count(value: float) -> str:
    return str(int(value))


def _nothing(*_: object) -> Piece:
    return "", Tone.DIM


def _trend(rates: list[float]) -> Piece:
    return sparkline(rates, TREND_SAMPLES), Tone.TREND


def sparkline(values: list[float], width: int) -> str:
    """The last `width` values as bars, the highest of them full; an idle moment is a low line."""
    values = values[-width:]
    top = max(values, default=0.0)
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(int(value / top * (len(BARS) - 1) + 0.5), len(BARS) - 1)] for value in values)


def natural(name: str) -> SortKey:
    """`primary/2` before `primary/10`."""
    head, _, ordinal = name.rpartition("/")
    return (head, int(ordinal)) if ordinal.isdigit() and ordinal.isascii() else (name, -1)


COLUMNS: tuple[Column, ...] = (
    Column(
        "name", "REPLICA", 0, 0,
        lambda r, h: (f" {words.literal(r.name)}", Tone.TEXT),
        lambda d, h: (words.literal(d.name), Tone.STRONG),
        "the slot's name, kept for life",
        right=False, letter="N", sort_key=lambda r: natural(r.name), falls=False,
    ),
    Column(
        "state", "STATE", 12, 0, _state_of_replica, _state_of_deployment,
        "where it stands",
        right=False, letter="S", sort_key=lambda r: (shown_state(r), *natural(r.name)), falls=False,
    ),
    Column(
        "device", "DEVICE", 7, 1,
        lambda r, h: (words.literal(r.device), Tone.TEXT),
        _nothing,
        "what it computes on",
        right=False, letter="D", sort_key=lambda r: (r.device, *natural(r.name)), falls=False,
    ),
    Column(
        "pid", "PID", 7, 11,
        lambda r, h: (str(r.pid) if r.pid is not None else "", Tone.DIM),
        _nothing,
        "its process",
    ),
    Column(
        "in_flight", "FLIGHT", 6, 2,
        lambda r, h: _number(str(r.in_flight), not r.in_flight, _fullness(r.in_flight)),
        _summed("in_flight", _count, Tone.STRONG),
        "exchanges in flight, 32 at most",
        letter="I", sort_key=lambda r: (r.in_flight,),
    ),
    Column(
        "bytes", "BYTES", 8, 9,
        lambda r, h: _number(words.size(r.outstanding_bytes), not r.outstanding_bytes),
        _summed("outstanding_bytes", words.size, Tone.STRONG),
        "outstanding request bytes",
        letter="B", sort_key=lambda r: (r.outstanding_bytes,),
    ),
    Column(
        "rate", "REQ/S", 5, 3,
        lambda r, h: _number(words.rate(r.requests_per_s), r.requests_per_s < 0.05),
        lambda d, h: _number(words.rate(d.requests_per_s), d.requests_per_s < 0.05, Tone.STRONG),
        "requests answered each second",
        letter="R", sort_key=lambda r: (r.requests_per_s,),
    ),
    Column(
        "trend", "TREND", TREND_SAMPLES, 14,
        lambda r, h: _trend(h.rates(r.name, TREND_SAMPLES)),
        lambda d, h: _trend(h.rates(d.name, TREND_SAMPLES)),
        "requests each second of the last moments",
        right=False,
    ),
    Column(
        "p50", "P50", 7, 12,
        lambda r, h: (words.milliseconds(r.p50_ms), Tone.TEXT),
        lambda d, h: (words.milliseconds(d.p50_ms), Tone.STRONG),
        "median latency",
    ),
    Column(
        "p99", "P99", 7, 4,
        lambda r, h: (words.milliseconds(r.p99_ms), Tone.TEXT),
        lambda d, h: (words.milliseconds(d.p99_ms), Tone.STRONG),
        "latency that one request in a hundred exceeds",
        letter="L", sort_key=lambda r: (r.p99_ms or 0.0,),
    ),
    Column(
        "cpu", "CPU", 5, 6,
        lambda r, h: _measured(r, words.percent(r.cpu_percent), r.cpu_percent < 0.5),
        _summed_here("cpu_percent", words.percent),
        "percent of one core",
        letter="C", sort_key=lambda r: (r.cpu_percent,),
    ),
    Column(
        "memory", "MEMORY", 8, 5,
        lambda r, h: _measured(r, words.size(r.rss_bytes), not r.rss_bytes),
        _summed_here("rss_bytes", words.size),
        "resident memory",
        letter="M", sort_key=lambda r: (r.rss_bytes,),
    ),
    Column(
        "gpu_memory", "GPU MEM", 8, 10,
        lambda r, h: (words.size(r.gpu_bytes or None), Tone.TEXT),
        lambda d, h: (words.size(sum(r.gpu_bytes for r in d.replicas) or None), Tone.STRONG),
        "memory on its card",
    ),
    Column(
        "threads", "THR", 3, 13,
        lambda r, h: _measured(r, "" if r.threads is None else str(r.threads), False),
        _threads_of_deployment,
        "intra-op threads",
        letter="T", sort_key=lambda r: (r.threads or 0,),
    ),
    Column(
        "restarts", "RST", 3, 7,
        lambda r, h: _number(str(r.restarts), not r.restarts, Tone.WARN),
        lambda d, h: _number(str(d.restarts), not d.restarts, Tone.STRONG),
        "restarts",
        letter="X", sort_key=lambda r: (r.restarts,),
    ),
    Column(
        "age", "AGE", 6, 8,
        lambda r, h: _of_process(r, words.duration(r.age_s), False),
        _nothing,
        "how long its process has been running",
        letter="A", sort_key=lambda r: (r.age_s,),
    ),
    Column(
        "reason", "WHAT GOES ON", 0, 0, _reason_of_replica, _reason_of_deployment,
        "who waits for what",
        right=False,
    ),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}


# ----------------------------------------------------------------------------------------------------- layout


def lay_out(inventory: Inventory | None, width: int) -> Layout:
    """The columns that fit `width` cells: by rank, as long as the reason keeps enough room."""
    deployments = inventory.deployments if inventory is not None else []
    replicas = [replica for deployment in deployments for replica in deployment.replicas]
    name_width = _name_width(deployments, replicas)
    has_gpu_memory = any(replica.gpu_bytes for replica in replicas)
    gap = 2 if width >= WIDE_GAPS_FROM else 1
    reason_width = max(NARROWEST_REASON, min(width // 3, WIDEST_REASON))
    widths = {"name": name_width, "state": _state_width(deployments, replicas), "reason": reason_width}
    room = width - GUTTER - sum(widths.values()) - gap * len(widths)
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column.rank == 0 or (column.name == "gpu_memory" and not has_gpu_memory):
            continue
        if room < column.width + gap:
            break
        widths[column.name] = column.width
        room -= column.width + gap
    widths["reason"] = max(widths["reason"] + room, 0)
    placed = tuple(Placed(column, widths[column.name]) for column in COLUMNS if column.name in widths)
    return Layout(placed, gap, width)


def _state_width(deployments: Iterable[DeploymentStatus], replicas: Iterable[ReplicaStatus]) -> int:
    """That of the usual states; the rare long ones take cells from the reason only while there is one."""
    states = [*(deployment.state for deployment in deployments), *(shown_state(replica) for replica in replicas)]
    longest = max((cell_len(words.literal(state)) for state in states), default=0)
    return max(BY_NAME["state"].width, min(longest + 2, WIDEST_STATE))


def _name_width(deployments: Iterable[DeploymentStatus], replicas: Iterable[ReplicaStatus]) -> int:
    longest = max(
        [
            *(cell_len(words.literal(deployment.name)) for deployment in deployments),
            *(cell_len(words.literal(replica.name)) + 1 for replica in replicas),
            NARROWEST_NAME,
        ]
    )
    return min(longest, WIDEST_NAME)
