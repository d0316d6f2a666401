"""The header: whose fleet this is, what it uses of what it may use, and how it serves. Three lines, more for many
cards.

`masthead` is pure: from the model and a width to lines; the widget only paints them. Every quantity stands in a block,
blocks stand in columns, and a narrow terminal has narrower bars before it has fewer words.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

from textual.strip import Strip

from supervisor.control.messages import DeviceStatus, Inventory, Totals
from ui.dashboard import words
from ui.dashboard.columns import sparkline
from ui.dashboard.model import Link, Model
from ui.dashboard.paint import Line, Painter, Piece, Tone, spread, width_of

WIDEST_BAR = 24
NARROWEST_BAR = 4
LABEL = 6
METER_TEXT = 19
"""Cells that the words beside a bar take: ` 43% 7.7 of 96 GiB`."""
TERSE_BELOW = 32
"""A block narrower than this says `12/16` instead of `12 of 16`."""
CARDS_FROM_WIDTH = 100
FOUR_COLUMNS_FROM = 140
USUAL_NAME = "default"
"""The name of a supervisor that was given none."""
ACCELERATORS = ("cuda", "rocm", "mps", "xpu")


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """What the header says beside the model: chips at its right."""

    readonly: bool = False
    needle: str = ""
    marked: int = 0
    lost_for_s: float = 0.0
    stops_in_s: float | None = None


class Masthead(Painter):
    """Paints the header of a model."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def show(self, model: Model, around: Around, width: int, tall: bool) -> int:
        """Draw what differs; the number of lines that the header takes."""
        lines = masthead(model, around, width, tall)
        if lines != self._lines:
            self._lines = lines
            self.refresh()
        return len(lines)

    def render_line(self, y: int) -> Strip:
        return self.paint(self._lines[y] if y < len(self._lines) else (), self.size.width)


def masthead(model: Model, around: Around, width: int, tall: bool) -> list[Line]:
    """The lines of the header in `width` cells."""
    inventory = model.inventory
    lines = [spread(_identity(inventory), _chips(model, around, width), width)]
    if inventory is None:
        return [*lines, (), ()]
    cards = [device for device in inventory.devices if device.id.split(":")[0] in ACCELERATORS]
    columns = 4 if width >= FOUR_COLUMNS_FROM else 3
    block = (width - 1) // columns
    meters = [_cpu(inventory, block), _memory(inventory, block)]
    if cards:
        meters.append(_cards(cards, block))
    lines.append(_in_blocks([meter.line(block) for meter in meters], block))
    lines.append(_in_blocks([_rate(model, block), _latency(inventory.totals), _totals(inventory.totals)], block))
    measured = any(not card.simulated for card in cards)
    if tall and measured and width >= CARDS_FROM_WIDTH and len(cards) > 1:
        each = [_card(card, block).line(block) for card in cards]
        lines += [_in_blocks(each[at : at + columns], block) for at in range(0, len(each), columns)]
    below = _remedy(inventory) if model.link is Link.ENDED else _warnings(inventory.warnings, width)
    return [*lines, *below]


def _remedy(inventory: Inventory) -> list[Line]:
    """How to start again what has ended."""
    return [((f" ■ start it again: {words.literal(start_command(inventory))}", Tone.WARN),)]


def start_command(inventory: Inventory) -> str:
    """The command that starts such a supervisor again. What was served without a config file is not known."""
    supervisor = inventory.supervisor
    what = "MODEL" if supervisor.config is None else f"-c {shlex.quote(supervisor.config)}"
    return f"stoker serve {what}" + ("" if supervisor.name == USUAL_NAME else f" --name {supervisor.name}")


def _warnings(warnings: Sequence[str], width: int) -> list[Line]:
    """The first one in a line, and how many there are besides."""
    if not warnings:
        return []
    more = f" (and {len(warnings) - 1} more: stoker status)" if len(warnings) > 1 else ""
    text = words.clip(words.literal(warnings[0]), max(width - len(more) - 4, 0))
    return [((f" ▲ {text}{more}", Tone.WARN),)]


def _in_blocks(blocks: Sequence[Line], width: int) -> Line:
    pieces: list[Piece] = [(" ", Tone.TEXT)]
    for block in blocks:
        pieces += spread(block, (), width)
    return tuple(pieces)


# ------------------------------------------------------------------------------------------------- first line


def _identity(inventory: Inventory | None) -> Line:
    if inventory is None:
        return ((" stoker", Tone.KEY),)
    supervisor = inventory.supervisor
    return (
        (" stoker ", Tone.KEY),
        (words.literal(supervisor.name), Tone.STRONG),
        (f"  {words.literal(supervisor.listen)}", Tone.TEXT),
        (f"  up {words.duration(supervisor.uptime_s)}", Tone.DIM),
    )


def _chips(model: Model, around: Around, width: int) -> Line:
    chips: list[Line] = []
    if around.readonly:
        chips.append((("read-only", Tone.DIM),))
    if around.needle:
        chips.append(((f"/{words.clip(words.literal(around.needle), 16)}", Tone.KEY),))
    if around.marked:
        chips.append(((f"{around.marked} marked", Tone.MARK),))
    if model.inventory is not None and model.link is not Link.ENDED:
        chips.append(_left(model.inventory) if model.is_stopping else _ready(model.inventory, model.is_stale))
    if model.paused:
        chips.append((("┃┃ paused", Tone.WARN),))
    chips.append(link_chip(model, around.lost_for_s, around.stops_in_s))
    pieces: list[Piece] = []
    for chip in chips:
        pieces += [*chip, ("  ", Tone.TEXT)]
    return (*pieces[:-1], (" ", Tone.TEXT))


def _ready(inventory: Inventory, stale: bool) -> Line:
    ready = sum(deployment.ready_replicas for deployment in inventory.deployments)
    desired = sum(deployment.desired_replicas for deployment in inventory.deployments)
    tone = Tone.GOOD if ready >= desired else (Tone.WARN if ready else Tone.BAD)
    return ((f"{ready} of {desired} ready", Tone.DIM if stale else tone),)


def _left(inventory: Inventory) -> Line:
    """A fleet that stops wants no replicas any more: how many there still are."""
    count = sum(len(deployment.replicas) for deployment in inventory.deployments)
    return ((f"{words.plural(count, 'replica')} left", Tone.WARN if count else Tone.DIM),)


def link_chip(model: Model, lost_for_s: float, stops_in_s: float | None) -> Line:
    """How the connection stands, or that the fleet is stopping and for how long at most, or when it ended."""
    if model.link is Link.CONNECTING:
        return (("◌ connecting", Tone.BUSY),)
    if model.link is Link.LOST:
        since = f" {words.duration(lost_for_s)}" if lost_for_s >= 1 else ""
        return ((f"✗ {model.link.value}{since}", Tone.BAD),)
    if model.link is Link.ENDED and model.ended_at is not None:
        return ((f"■ {model.link.value} {words.clock(model.ended_at)}", Tone.WARN),)
    if not model.is_stopping:
        return (("● live", Tone.GOOD),)
    left = f", {words.duration(stops_in_s)} at most" if stops_in_s else ""
    return ((f"◐ stopping{left}", Tone.WARN),)


# ----------------------------------------------------------------------------------------------------- blocks


@dataclasses.dataclass(frozen=True, slots=True)
class _Meter:
    """A label, a bar and words: how much of something is used."""

    label: str
    share: float
    tone: Tone
    words: Line

    def line(self, block: int) -> Line:
        width = max(min(block - LABEL - METER_TEXT - 2, WIDEST_BAR), NARROWEST_BAR)
        full = round(max(0.0, min(self.share, 1.0)) * width)
        full = max(full, 1) if self.share > 0 else full
        return (
            (self.label.ljust(LABEL), Tone.DIM),
            ("━" * full, self.tone),
            ("─" * (width - full), Tone.FAINT),
            *self.words,
        )


def _share_tone(share: float, warn: float, bad: float) -> Tone:
    return Tone.BAD if share > bad else (Tone.WARN if share > warn else Tone.GOOD)


def _cpu(inventory: Inventory, block: int) -> _Meter:
    used, budget = inventory.supervisor.cpu_threads_used, inventory.supervisor.cpu_budget
    share = used / budget if budget else 0.0
    counts = _of(str(used), words.plural(budget, "thread"), block)
    return _Meter("cpu", share, _share_tone(share, 1.0, 2.0), ((f" {counts}", Tone.TEXT),))


def _memory(inventory: Inventory, block: int) -> _Meter:
    used, total = inventory.supervisor.memory_used_bytes, inventory.supervisor.memory_total_bytes
    share = used / total if total else 0.0
    text = f" {_of(*words.sizes(used, total), block)}"
    return _Meter("mem", share, _share_tone(share, 0.8, 0.95), ((text, Tone.TEXT),))


def _cards(cards: Sequence[DeviceStatus], block: int) -> _Meter:
    """All accelerators together."""
    if len(cards) == 1:
        return _card(cards[0], block)
    if all(card.simulated for card in cards):
        return _simulated(f"{len(cards)} gpu")
    known = [card.utilisation for card in cards if card.utilisation is not None]
    return _accelerator(
        f"{len(cards)} gpu",
        sum(known) / len(known) if known else None,
        sum(card.memory_used_bytes or 0 for card in cards),
        sum(card.memory_total_bytes or 0 for card in cards),
        block,
    )


def _card(card: DeviceStatus, block: int) -> _Meter:
    name = words.literal(card.id).replace("cuda:", "gpu ").replace("rocm:", "gpu ")
    label = words.clip(name, LABEL)
    if card.simulated:
        return _simulated(label)
    return _accelerator(label, card.utilisation, card.memory_used_bytes or 0, card.memory_total_bytes or 0, block)


def _simulated(label: str) -> _Meter:
    """Stand-ins have nothing to measure: their engines compute on the CPU."""
    return _Meter(label, 0.0, Tone.DIM, ((" simulated", Tone.DIM),))


def _accelerator(label: str, busy: float | None, used: int, total: int, block: int) -> _Meter:
    pieces: list[Piece] = []
    if busy is not None:
        pieces.append((f" {busy * 100:3.0f}%", Tone.STRONG))
    if total:
        pieces.append((f" {_of(*words.sizes(used, total), block)}", Tone.TEXT))
    share = busy if busy is not None else (used / total if total else 0.0)
    return _Meter(label, share, Tone.BUSY, tuple(pieces))


def _of(used: str, total: str, block: int) -> str:
    return f"{used}/{total}" if block < TERSE_BELOW else f"{used} of {total}"


def _label(text: str) -> Piece:
    return (text.ljust(LABEL), Tone.DIM)


def _rate(model: Model, block: int) -> Line:
    total = model.inventory.totals.requests_per_s if model.inventory is not None else 0.0
    number: Line = (_label("req/s"), (words.rate(total).ljust(6), Tone.STRONG))
    room = block - width_of(number) - 3
    return (*number, (sparkline(model.history.rates("", max(room, 1)), room), Tone.TREND))


def _latency(totals: Totals) -> Line:
    if totals.p50_ms is None:
        return (_label("p50"), ("-", Tone.DIM), ("  p99 ", Tone.DIM), ("-", Tone.DIM))
    return (
        _label("p50"),
        (words.milliseconds(totals.p50_ms), Tone.STRONG),
        ("  p99 ", Tone.DIM),
        (words.milliseconds(totals.p99_ms), Tone.STRONG),
    )


def _totals(totals: Totals) -> Line:
    failures = totals.failures
    return (
        (f"{totals.in_flight} in flight", Tone.TEXT),
        ("  ", Tone.TEXT),
        (words.grouped(failures), Tone.BAD if failures else Tone.DIM),
        (" failure" if failures == 1 else " failures", Tone.TEXT if failures else Tone.DIM),
    )
