"""Charts over time as lines of pieces: requests/s, latency, in flight. Pure.

A chart is drawn with braille dots, eight to a cell, so a minute fits into thirty cells and one still sees its shape. It
is drawn here and not by a plotting library: one that is kept up and light was not to be found (docs/dashboard.md), and
here a chart is what everything else is, lines of toned pieces, so that themes, `NO_COLOR`, ASCII and the comparison
before drawing hold for it, too. A second without a sample is a gap, never a zero.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence

from ui.dashboard import words
from ui.dashboard.model import History, Model, Sample
from ui.dashboard.paint import Line, Piece, Tone, rule, spread, width_of
from ui.dashboard.rows import RowKey

WINDOWS_S = (60, 120, 300, 600)
"""How far back charts can look; the last is all that is kept."""
LABEL = 7
"""Cells of the numbers at the left."""
LOWEST_CHART = 4
"""Lines of the lowest chart that still has a plot."""
STACKED_FROM = 7
"""Lines that each chart must get before they stand one over the other instead of side by side."""
GAP_S = 3
"""Samples that are farther apart are not joined, seconds."""
SMALLEST = 1e-3
"""Where a logarithmic scale begins at the lowest: a microsecond. A linear one ends no lower."""
MOST_SERIES = 6
"""Replicas that are drawn at once: those with the highest values now."""
LINE_TONES = (Tone.LINE_1, Tone.LINE_2, Tone.LINE_3, Tone.LINE_4, Tone.LINE_5, Tone.LINE_6)

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of a dot in a braille cell, by column and by row from the top."""
_BARS = tuple(tuple(tuple(sum(dots[top : bottom + 1]) for bottom in range(4)) for top in range(4)) for dots in _DOTS)
"""The bits of the dots from one row down to another, by column, first and last row."""
_BLANK = 0x2800


class By(enum.Enum):
    """What a line of a chart stands for."""

    WHOLE = "as a whole"
    REPLICA = "by replica"


class Scale(enum.Enum):
    """How values become heights. Latencies of 2 ms and 30 s in one picture need the logarithm."""

    LINEAR = enum.auto()
    LOGARITHMIC = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What somebody wants to see of the row under the cursor. chosen_s: how far back; None: as far as is known."""

    chosen_s: int | None = None
    by: By = By.WHOLE

    def window_s(self, history: History) -> int:
        """How far back it looks."""
        if self.chosen_s is not None:
            return self.chosen_s
        return next((window for window in WINDOWS_S if history.span_s <= window), WINDOWS_S[-1])

    def wider(self, history: History) -> View:
        """The next window, around the end."""
        at = WINDOWS_S.index(self.window_s(history))
        return dataclasses.replace(self, chosen_s=WINDOWS_S[(at + 1) % len(WINDOWS_S)])

    def turned(self) -> View:
        """The other way to split it."""
        return dataclasses.replace(self, by=By.WHOLE if self.by is By.REPLICA else By.REPLICA)


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: seconds and values, oldest first."""

    name: str
    tone: Tone
    points: Sequence[tuple[int, float]]

    @property
    def newest(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """Some series under a title, over the same `window_s` seconds that end at `newest`."""

    title: str
    series: Sequence[Series]
    shown: Callable[[float], str]
    scale: Scale
    newest: int
    window_s: int


Value = Callable[[Sample], float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Quantity:
    """A chart's subject; `values` are the lines of a chart of the whole; by replica, the last of them is drawn."""

    title: str
    values: tuple[tuple[str, Tone, Value], ...]
    shown: Callable[[float], str]
    scale: Scale = Scale.LINEAR


QUANTITIES = (
    _Quantity("req/s", (("", Tone.LINE_1, lambda sample: sample.requests_per_s),), words.rate),
    _Quantity(
        "latency",
        (
            ("p50", Tone.LINE_3, lambda sample: sample.p50_ms),
            ("p99", Tone.LINE_2, lambda sample: sample.p99_ms),
        ),
        lambda value: words.milliseconds(value),
        Scale.LOGARITHMIC,
    ),
    _Quantity("in flight", (("", Tone.LINE_1, lambda sample: sample.in_flight),), lambda value: f"{value:g}"),
)


def charts_about(key: RowKey | None, model: Model, view: View, width: int, height: int) -> list[Line]:
    """The three charts of a row in `height` lines: under each other where each gets enough, else side by side."""
    name = (key.replica or key.deployment) if key is not None else ""
    minutes = f"{view.window_s(model.history) // 60} min"
    state = f"{minutes} · {view.by.value}" if key is not None and not key.is_replica else minutes
    title = rule(f"charts of {words.literal(name)}" if name else "charts", width, Tone.TITLE, state)
    room = height - 1
    if room < LOWEST_CHART or width < 2 * LABEL:
        return [title, *[()] * max(room, 0)][: max(height, 0)]
    charts = [_chart(quantity, key, model, view) for quantity in QUANTITIES]
    if room // len(charts) >= STACKED_FROM:
        each = room // len(charts)
        drawn = [line for chart in charts for line in draw(chart, width, each)]
        return [title, *drawn, *[()] * (room - len(drawn))]
    cells = width // len(charts)
    columns = [draw(chart, cells - 1, room) for chart in charts]
    return [title, *(_joined(lines, cells) for lines in zip(*columns, strict=True))]


def _joined(parts: Sequence[Line], cells: int) -> Line:
    pieces: list[Piece] = []
    for part in parts:
        pieces += spread(part, (), cells)
    return tuple(pieces)


def _chart(quantity: _Quantity, key: RowKey | None, model: Model, view: View) -> Chart:
    history = model.history
    window = view.window_s(history)
    oldest = history.second - window
    split = view.by is By.REPLICA and key is not None and not key.is_replica
    if split and key is not None:
        series = _of_each(quantity, key.deployment, model, oldest)
    else:
        name = (key.replica or key.deployment) if key is not None else ""
        series = [Series(label, tone, _points(history, name, value, oldest)) for label, tone, value in quantity.values]
    title = f"{quantity.title} p99" if split and quantity.scale is Scale.LOGARITHMIC else quantity.title
    return Chart(title, series, quantity.shown, quantity.scale, history.second, window)


def _of_each(quantity: _Quantity, deployment: str, model: Model, oldest: int) -> list[Series]:
    """A line for each replica, the highest now first; of many only those that stand out."""
    status = model.deployment(deployment)
    names = [replica.name for replica in status.replicas] if status is not None else []
    value = quantity.values[-1][2]
    tones = {name: LINE_TONES[at % len(LINE_TONES)] for at, name in enumerate(names)}

    def now(name: str) -> float:
        newest = model.history.newest(name)
        number = value(newest) if newest is not None else None
        return -1.0 if number is None else number

    return [
        Series(f"/{name.rpartition('/')[2]}", tones[name], _points(model.history, name, value, oldest))
        for name in sorted(names, key=now, reverse=True)[:MOST_SERIES]
    ]


def _points(history: History, name: str, value: Value, oldest: int) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    for sample in history.of(name):
        if sample.second >= oldest and (number := value(sample)) is not None:
            points.append((sample.second, number))
    return points


# ---------------------------------------------------------------------------------------------------- drawing


def draw(chart: Chart, width: int, height: int) -> list[Line]:
    """A chart in exactly that many cells and lines: its title and legend, its plot, its time axis."""
    low, high = bounds([value for one in chart.series for _, value in one.points], chart.scale)
    rows, columns = height - 2, max(width - LABEL - 1, 1)
    cells = _plot(chart, low, high, columns, rows)
    labels = {0: chart.shown(high), rows - 1: chart.shown(low)}
    if rows >= STACKED_FROM:
        middle = chart.shown(_at(0.5, low, high, chart.scale))
        if middle not in labels.values():  # as where 0.05 is written 0.1
            labels[rows // 2] = middle
    lines: list[Line] = [_legend(chart, width)]
    for row in range(rows):
        label = words.fit(labels.get(row, ""), LABEL - 1, right=True)
        lines.append(((label, Tone.DIM), (" ┤" if row in labels else " │", Tone.FAINT), *_runs(cells[row])))
    lines.append(_time_axis(chart.window_s, width))
    return lines


def _legend(chart: Chart, width: int) -> Line:
    """The title, and the newest value of each series in its tone; in their order from above, also without colour."""
    pieces: list[Piece] = [(" " + chart.title, Tone.STRONG)]
    for one in chart.series:
        value = "-" if one.newest is None else chart.shown(one.newest)
        piece = (f"  {one.name + ' ' if one.name else ''}{value}", one.tone)
        if width_of(pieces) + len(piece[0]) > width:
            break
        pieces.append(piece)
    return tuple(pieces)


def _time_axis(window_s: int, width: int) -> Line:
    left, right = f"-{window_s // 60}m ", " now"
    bar = "─" * max(width - LABEL - 1 - len(left) - len(right), 0)
    return ((" " * LABEL + "└", Tone.FAINT), (left, Tone.DIM), (bar, Tone.FAINT), (right, Tone.DIM))


def bounds(values: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Round numbers below and above all values: from 0 on a linear scale, 1-2-5 steps on a logarithmic one."""
    top = max(values, default=0.0)
    if scale is Scale.LINEAR:
        return 0.0, _step_from(top) if top > SMALLEST else 1.0
    if not values:
        return 1.0, 10.0
    low, high = _step_to(max(min(values), SMALLEST)), _step_from(max(top, SMALLEST))
    return low, high if high > low * 1.5 else high * 2


_STEPS = (1.0, 2.0, 5.0, 10.0)


def _step_from(value: float) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that is not below `value`."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in _STEPS if step * unit >= value * (1 - 1e-9))


def _step_to(value: float) -> float:
    """The largest of 1, 2, 5 × 10ⁿ that is not above `value`."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in reversed(_STEPS) if step * unit <= value * (1 + 1e-9))


def _at(share: float, low: float, high: float, scale: Scale) -> float:
    """The value that stands so high."""
    return low * (high / low) ** share if scale is Scale.LOGARITHMIC else low + (high - low) * share


@dataclasses.dataclass(slots=True)
class _Cell:
    dots: int = 0
    tone: Tone = Tone.TEXT


def _plot(chart: Chart, low: float, high: float, columns: int, rows: int) -> list[list[_Cell]]:
    """The cells of the plot. The first series is drawn last, so that it lies on top."""
    cells = [[_Cell() for _ in range(columns)] for _ in range(rows)]
    height = _height(low, high, chart.scale, rows * 4 - 1)
    for one in reversed(chart.series):
        for x, (top, bottom) in _strokes(one.points, chart, columns * 2, height).items():
            column, bars = x // 2, _BARS[x % 2]
            first, last = top // 4, bottom // 4
            for row in range(first, last + 1):
                cell = cells[row][column]
                cell.dots |= bars[top % 4 if row == first else 0][bottom % 4 if row == last else 3]
                cell.tone = one.tone
    return cells


def _height(low: float, high: float, scale: Scale, bottom: int) -> Callable[[float], int]:
    """From a value to its dot, counted from the top."""
    if scale is Scale.LINEAR:
        unit = bottom / (high - low)
        return lambda value: bottom - round((min(max(value, low), high) - low) * unit)
    unit = bottom / math.log(high / low)
    return lambda value: bottom - round(math.log(min(max(value, low), high) / low) * unit)


def _strokes(
    points: Sequence[tuple[int, float]], chart: Chart, width: int, height: Callable[[float], int]
) -> dict[int, tuple[int, int]]:
    """For each column of dots that the line crosses, from which dot down to which: a line without a hole."""
    strokes: dict[int, tuple[int, int]] = {}

    def stroke(x: int, one: int, other: int) -> None:
        high, low = (one, other) if one < other else (other, one)
        if x in strokes:
            top, bottom = strokes[x]
            if high < top or low > bottom:
                strokes[x] = high if high < top else top, low if low > bottom else bottom
        elif 0 <= x < width:
            strokes[x] = high, low

    last = width - 1
    step = last / chart.window_s
    before: tuple[int, int, int] | None = None
    for second, value in points:
        x, y = last - round((chart.newest - second) * step), height(value)
        if before is None or second - before[0] > GAP_S:
            stroke(x, y, y)
        else:
            _, from_x, from_y = before
            at = from_y
            for between in range(from_x + 1, x):
                reached = from_y + round((y - from_y) * (between - from_x) / (x - from_x))
                stroke(between, at, reached)
                at = reached
            stroke(x, at, y)
        before = (second, x, y)
    return strokes


def _runs(cells: Sequence[_Cell]) -> list[Piece]:
    """The cells of a row as pieces of one tone each."""
    pieces: list[Piece] = []
    text, tone = "", Tone.TEXT
    for cell in cells:
        char = chr(_BLANK + cell.dots) if cell.dots else " "
        if cell.dots and cell.tone is not tone:
            if text:
                pieces.append((text, tone))
            text, tone = "", cell.tone
        text += char
    return [*pieces, (text, tone)] if text else pieces
