"""Figures of interleaved rounds to one table, and the table into benchmarks/RESULTS.md.

A machine's speed drifts while a benchmark runs, so a figure is compared only with the peer's of the same round: the
ratio in a table is the median of the rounds' ratios, not the ratio of two medians.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
HEAD = """# Results

The last run of each benchmark, written by itself. Figures of one table were measured in one run on one machine, in
turn; compare figures of different tables with care.
"""


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median (least to most); alone where there is one value."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round; rounds in which either gave nothing are left out."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True) if mine > 0 and other > 0]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The median of the rounds' ratios with its spread; a dash where one missed a round that the other has."""
    found = ratios(ours, theirs) if len(ours) == len(theirs) else []
    return spread(found, 2) if found else "–"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all are not above (nearest rank). Raises ValueError where there is none."""
    if not values:
        raise ValueError("expected at least one value")
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(share * 1000) // 1000) - 1)]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others figures, padded so that it reads in a terminal, too."""
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(columns), line(rule), *(line(row) for row in rows)])


def with_section(document: str, title: str, body: str) -> str:
    """The document with the section `## title` replaced, or appended where there is none yet."""
    section = f"## {title}\n\n{body.strip()}\n"
    parts = re.split(r"(?m)^(?=## )", document)
    for place, part in enumerate(parts):
        if part.startswith(f"## {title}\n"):
            parts[place] = section
            break
    else:
        parts.append(section)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def keep(title: str, body: str) -> None:
    """Print a section and keep it in RESULTS.md in the place of its last run."""
    print(f"\n{body}\n")
    document = RESULTS.read_text() if RESULTS.exists() else HEAD
    RESULTS.write_text(with_section(document, title, body))
    print(f"kept in {RESULTS}")


def machine() -> str:
    """When and where: date, processor, cores, memory, Python."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    load = os.getloadavg()[0]
    return (
        f"{date}; {_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB; {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; load average at the end {load:.1f}."
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"(?m)^model name\s*: (.*)", text)
    return name[1] if name else platform.machine()
