"""Numbers as people read them: short enough for a column, without a blank in them, so that a line splits at
blanks.
"""

from __future__ import annotations

from supervisor.core.plurals import count as count

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int | None) -> str:
    """Bytes: `512B`, `1.5GiB`; nothing for an unknown number."""
    if count is None:
        return ""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f}{BYTE_UNITS[unit]}" if unit == 0 or value >= 10 else f"{value:.1f}{BYTE_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Seconds: `0.4s`, `12s`, `3m05s`, `2h07m`, `4d03h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def milliseconds(value: float | None) -> str:
    """`0.13ms`, `8.2ms`, `950ms`; nothing for an unknown number."""
    if value is None:
        return ""
    return f"{value:.2f}ms" if value < 1 else f"{value:.1f}ms" if value < 100 else f"{value:.0f}ms"


def rate(per_second: float) -> str:
    """`0`, `3.5`, `1204`."""
    return f"{per_second:.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def share(fraction: float | None) -> str:
    """A part of one: `37%`; nothing for an unknown number."""
    return "" if fraction is None else f"{fraction * 100:.0f}%"
