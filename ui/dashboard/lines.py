"""Events and log lines as lines of pieces. Pure. What a replica wrote is literal, whatever it contains."""

from __future__ import annotations

import re
from collections.abc import Sequence

from supervisor.control.events import AnyEvent
from supervisor.control.messages import LogLine, StateChange
from ui.dashboard import words
from ui.dashboard.model import Skipped, Written
from ui.dashboard.paint import Line, Piece, Tone
from ui.dashboard.states import event_glyph, event_tone, replica_look

LONGEST_LINE = 4096
"""Characters of a log line that are kept here; the log file has all of it."""
STATE_CELLS, LASTED_CELLS = 15, 6

_LEVELS = (
    (re.compile(r"\b(CRITICAL|FATAL|ERROR|Traceback|[A-Z]\w*Error|panic)\b"), Tone.BAD),
    (re.compile(r"\b(WARN|WARNING)\b"), Tone.WARN),
    (re.compile(r"\b(DEBUG|TRACE)\b"), Tone.DIM),
)
_LEVEL_WITHIN = 120


def event_line(event: AnyEvent) -> Line:
    """`14:02:11 ● primary/0#1 ready after 0.030 s (forked)`, with the name set off from the words."""
    tone = event_tone(event)
    body = Tone.DIM if tone is Tone.DIM else Tone.TEXT
    sentence = words.literal(event.sentence())
    name = words.literal(getattr(event, "replica", "") or getattr(event, "deployment", ""))
    pieces: list[Piece] = [(f" {words.clock(event.time)} ", Tone.DIM), (f"{event_glyph(event)} ", tone)]
    if name and sentence.startswith(name):
        head, space, rest = sentence.partition(" ")
        pieces += [(head, Tone.DIM if tone is Tone.DIM else Tone.STRONG), (space + rest, body)]
    else:
        pieces.append((sentence, body))
    return tuple(pieces)


def history_lines(history: Sequence[StateChange]) -> list[Line]:
    """A slot's moves: `14:02:11 #2 ● ready         2m10s`, why, and how a process ended. The last one still lasts."""
    ends: list[float | None] = [change.time for change in history[1:]]
    lines: list[Line] = []
    for change, end in zip(history, [*ends, None], strict=False):
        look = replica_look(change.state)
        lasted = "" if end is None else words.duration(end - change.time)
        ended = change.exit if change.exit and change.exit not in change.reason else ""
        because = "; ".join(part for part in (change.reason, ended) if part)
        lines.append(
            (
                (f" {words.clock(change.time)} ", Tone.DIM),
                (f"#{change.incarnation} ", Tone.KEY),
                (words.fit(f"{look.glyph} {words.literal(change.state)}", STATE_CELLS), look.tone),
                (words.fit(lasted, LASTED_CELLS, right=True), Tone.DIM),
                (f"  {words.literal(because)}", Tone.BAD if change.exit else Tone.TEXT),
            )
        )
    return lines


def log_line(line: LogLine, with_replica: bool) -> Line:
    """`14:02:11 /3 text`: the time, which replica where several write, and the text literally."""
    text = words.literal(line.text[:LONGEST_LINE])
    pieces: list[Piece] = [(f" {words.clock(line.time)} ", Tone.DIM)]
    if with_replica:
        pieces.append((f"/{line.replica.rpartition('/')[2]} ", Tone.KEY))
    pieces.append((text, level_of(text)))
    if len(line.text) > LONGEST_LINE:
        more = words.plural(len(line.text) - LONGEST_LINE, "more character")
        pieces.append((f" … {more} in the log file", Tone.WARN))
    return tuple(pieces)


def log_lines(written: Sequence[Written], with_replica: bool, lost: int) -> list[Line]:
    """What a log brought, with a word at each place where lines were left out; `lost` ones before all of it."""
    lines = [skipped_line(lost)] if lost else []
    lines += [skipped_line(one.count) if isinstance(one, Skipped) else log_line(one, with_replica) for one in written]
    return lines


def level_of(text: str) -> Tone:
    """How serious a line is, by the words that loggers put near its start."""
    start = text[:_LEVEL_WITHIN]
    return next((tone for pattern, tone in _LEVELS if pattern.search(start)), Tone.TEXT)


def skipped_line(count: int) -> Line:
    """Says that lines came faster than they can be shown."""
    return ((f" ··· {words.plural(count, 'line')} skipped: they came too fast; the log file has them", Tone.WARN),)


def missed_line(count: int) -> Line:
    """Says that events were lost."""
    kept = "is" if count == 1 else "are"
    return ((f" ··· {words.plural(count, 'event')} {kept} not kept any more", Tone.WARN),)
