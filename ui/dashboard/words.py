"""Numbers and foreign text as a terminal may show them: human units, and nothing that a terminal would obey.

Everything here is pure. Text that comes from outside (logs, reasons, names) passes through `literal` before it is
drawn. Markup is never parsed anywhere in this room.
"""

from __future__ import annotations

import datetime

from rich.cells import cell_len, set_cell_size

import ui.literal

KIB = 1024.0
TAB = "    "
PART = " · "
LEAST_OF_A_PART = 8
"""Cells of a part that are worth showing where it has to be cut."""


def literal(text: str) -> str:
    """`text` as it may be shown (`ui.literal`), each tab in as many cells everywhere."""
    return ui.literal.literal(text).replace("\t", TAB)


def clip(text: str, width: int) -> str:
    """`text` in at most `width` cells. An ellipsis marks what was cut, unless it is a part after ` · ` as a whole."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    at = text.rfind(PART, 0, width + len(PART))
    if at > 0 and width - LEAST_OF_A_PART < cell_len(text[:at]) + len(PART) <= width + len(PART):
        return text[:at]
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else "…"


def fit(text: str, width: int, right: bool = False) -> str:
    """`text` in exactly `width` cells, cut or filled; numbers stand on the right."""
    text = clip(text, width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def size(count: float | None) -> str:
    """Bytes in binary units with three digits: `0`, `812 B`, `1.2 KiB`, `64 MiB`, `1.5 GiB`."""
    if count is None:
        return ""
    if count < KIB:
        return f"{count:.0f} B" if count >= 1 else "0"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= KIB
        if count < 1000 or unit == "TiB":
            return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
    raise AssertionError("unreachable")


def sizes(used: float, total: float) -> tuple[str, str]:
    """Two sizes in the larger one's unit, which stands at the second: `9.8`, `31 GiB`."""
    unit, name = KIB**3, "GiB"
    if total < unit:
        unit, name = KIB**2, "MiB"
    return _short(used / unit), f"{_short(total / unit)} {name}"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def rate(per_s: float) -> str:
    """Requests each second in at most five characters: `0`, `0.3`, `41.2`, `412`, `12.4k`."""
    if per_s < 0.05:
        return "0"
    if per_s < 99.95:
        return f"{per_s:.1f}"
    if per_s < 9999.5:
        return f"{per_s:.0f}"
    return f"{per_s / 1000:.1f}k" if per_s < 99_950 else f"{per_s / 1000:.0f}k"


def milliseconds(value: float | None) -> str:
    """A latency given in milliseconds: `0.82 ms`, `8.2 ms`, `812 ms`, `1.2 s`, `30 s`; nothing where there is none."""
    if value is None:
        return ""
    if value < 0.995:
        return f"{value:.2f} ms"
    if value < 9.95:
        return f"{value:.1f} ms"
    if value < 999.5:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 9_950 else f"{value / 1000:.0f} s"


def duration(seconds: float) -> str:
    """A stretch of time in two units at most: `0.4 s`, `12 s`, `3m12s`, `2h14m`, `3d4h`."""
    if seconds < 0.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, whole = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{whole:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if days < 100 else f"{days}d"


def percent(value: float) -> str:
    """A share of one core or of a card, given in percent."""
    return f"{value:.0f}%"


def grouped(count: int) -> str:
    """A count with thin groups of thousands: `12 480`."""
    return f"{count:,}".replace(",", " ")


def clock(wall: float) -> str:
    """Wall-clock seconds as the local time of day."""
    return datetime.datetime.fromtimestamp(wall).strftime("%H:%M:%S")


def mean(value: float) -> str:
    """An average with as many digits as say something: `1.4`, `181`."""
    return f"{value:.1f}" if value < 99.95 else grouped(round(value))


def times(count: int) -> str:
    """`never`, `once`, `3 times`."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def plural(count: int, word: str) -> str:
    """`1 replica`, `3 replicas`, `12 480 rows`."""
    return f"{grouped(count)} {word}" if count == 1 else f"{grouped(count)} {word}s"
