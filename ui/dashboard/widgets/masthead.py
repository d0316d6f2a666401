"""The header: whose fleet this is, what it uses of what it may use, and how it serves. Three lines, more for
many cards.

`masthead` is pure: from the model and a width to lines; the widget only paints them. Every quantity stands in
a block, blocks stand in columns, and a narrow terminal has narrower bars before it has fewer words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from textual.strip import Strip

from supervisor.control.messages import DeviceStatus, Inventory
from ui.dashboard import words
from ui.dashboard.columns import sparkline
from ui.dashboard.model import Link, Model
from ui.dashboard.paint import Line, Painter, Piece, Tone, spread, width_of

WIDEST_BAR = 24
NARROWEST_BAR = 4
LABEL = 5
CARDS_FROM_WIDTH = 100
ACCELERATORS = ("cuda", "rocm", "mps", "xpu")


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """What the header says beside the model: chips at its right."""

    readonly: bool = False
    needle: str = ""
    marked: int = 0
    lost_for_s: float = 0.0


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
    columns = 4 if width >= 150 else 3
    block = (width - 1) // columns
    bar = max(min(block - 24, WIDEST_BAR), NARROWEST_BAR)
    use = [_cpu(inventory, bar), _memory(inventory, bar)]
    serving = [_rate(model, block), _latency(inventory), _totals(inventory)]
    if len(cards) == 1:
        use.append(_card(cards[0], bar))
    elif cards:
        use.append(_cards(cards, bar))
    lines += [_in_blocks(use, block), _in_blocks(serving, block)]
    if tall and width >= CARDS_FROM_WIDTH and len(cards) > 1:
        shown = [_card(card, bar) for card in cards]
        lines += [_in_blocks(shown[at : at + columns], block) for at in range(0, len(shown), columns)]
    return lines


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
    if model.inventory is not None:
        chips.append(_ready(model.inventory))
    if model.paused:
        chips.append((("┃┃ paused", Tone.WARN),))
    chips.append(_link(model, around))
    pieces: list[Piece] = []
    for chip in chips:
        pieces += [*chip, ("  ", Tone.TEXT)]
    return (*pieces[:-1], (" ", Tone.TEXT))


def _ready(inventory: Inventory) -> Line:
    ready = sum(deployment.ready_replicas for deployment in inventory.deployments)
    desired = sum(deployment.desired_replicas for deployment in inventory.deployments)
    tone = Tone.GOOD if ready >= desired else (Tone.WARN if ready else Tone.BAD)
    return ((f"{ready} of {desired} ready", tone),)


def _link(model: Model, around: Around) -> Line:
    if model.link is Link.LIVE:
        if model.inventory is not None and model.inventory.supervisor.state not in (
            "running",
            "ready",
            "serving",
        ):
            return ((f"◐ {words.literal(model.inventory.supervisor.state)}", Tone.WARN),)
        return (("● live", Tone.GOOD),)
    if model.link is Link.CONNECTING:
        return (("◌ connecting", Tone.BUSY),)
    since = f" {words.duration(around.lost_for_s)}" if around.lost_for_s >= 1 else ""
    return ((f"✗ {model.link.value}{since}", Tone.BAD),)


# ----------------------------------------------------------------------------------------------------- blocks


def _bar(share: float, width: int, tone: Tone) -> Line:
    full = round(max(0.0, min(share, 1.0)) * width)
    if share > 0 and full == 0:
        full = 1
    return (("━" * full, tone), ("─" * (width - full), Tone.DIM))


def _label(text: str) -> Piece:
    return (text.ljust(LABEL), Tone.DIM)


def _share_tone(share: float, warn: float, bad: float) -> Tone:
    return Tone.BAD if share > bad else (Tone.WARN if share > warn else Tone.GOOD)


def _cpu(inventory: Inventory, bar: int) -> Line:
    used, budget = inventory.supervisor.cpu_threads_used, inventory.supervisor.cpu_budget
    share = used / budget if budget else 0.0
    tone = _share_tone(share, 1.0, 2.0)
    return (_label("cpu"), *_bar(share, bar, tone), (f" {used} of {budget} threads", Tone.TEXT))


def _memory(inventory: Inventory, bar: int) -> Line:
    used, total = inventory.supervisor.memory_used_bytes, inventory.supervisor.memory_total_bytes
    share = used / total if total else 0.0
    return (
        _label("mem"),
        *_bar(share, bar, _share_tone(share, 0.8, 0.95)),
        (f" {words.sizes(used, total)}", Tone.TEXT),
    )


def _card(card: DeviceStatus, bar: int) -> Line:
    used, total = card.memory_used_bytes, card.memory_total_bytes
    share = used / total if used is not None and total else 0.0
    busy = "" if card.utilisation is None else f" {card.utilisation * 100:3.0f}%"
    memory = "" if used is None or not total else f" {words.sizes(used, total)}"
    name = words.clip(words.literal(card.id).replace("cuda:", "gpu ").replace("rocm:", "gpu "), 6)
    return (
        (name.ljust(LABEL + 1), Tone.DIM),
        *_bar(share, bar, Tone.BUSY),
        (busy, Tone.STRONG),
        (memory, Tone.TEXT),
    )


def _cards(cards: Sequence[DeviceStatus], bar: int) -> Line:
    used = sum(card.memory_used_bytes or 0 for card in cards)
    total = sum(card.memory_total_bytes or 0 for card in cards)
    known = [card.utilisation for card in cards if card.utilisation is not None]
    busy = f" {sum(known) / len(known) * 100:.0f}%" if known else ""
    memory = f" {words.sizes(used, total)}" if total else ""
    label = f"{len(cards)} gpu".ljust(LABEL + 1)
    return (
        (label, Tone.DIM),
        *_bar(used / total if total else 0.0, bar, Tone.BUSY),
        (busy, Tone.STRONG),
        (memory, Tone.TEXT),
    )


def _rate(model: Model, block: int) -> Line:
    inventory = model.inventory
    total = (
        sum(deployment.requests_per_s for deployment in inventory.deployments)
        if inventory is not None
        else 0.0
    )
    number: Line = (_label("req/s"), (words.rate(total).ljust(6), Tone.STRONG))
    room = block - width_of(number) - 3
    return (*number, (sparkline(model.history.rates("", max(room, 1)), room), Tone.BUSY))


def _latency(inventory: Inventory) -> Line:
    """Of all deployments together: a quantile of the whole is at most the largest of theirs."""
    medians = [deployment.p50_ms for deployment in inventory.deployments if deployment.p50_ms is not None]
    tails = [deployment.p99_ms for deployment in inventory.deployments if deployment.p99_ms is not None]
    bound = "≤" if len(medians) > 1 else ""
    if not medians or not tails:
        return (_label("p50"), ("-", Tone.DIM), ("  p99 ", Tone.DIM), ("-", Tone.DIM))
    return (
        _label("p50"),
        (f"{bound}{words.milliseconds(max(medians))}", Tone.STRONG),
        ("  p99 ", Tone.DIM),
        (f"{bound}{words.milliseconds(max(tails))}", Tone.STRONG),
    )


def _totals(inventory: Inventory) -> Line:
    in_flight = sum(
        replica.in_flight for deployment in inventory.deployments for replica in deployment.replicas
    )
    failures = sum(deployment.failures for deployment in inventory.deployments)
    return (
        (f"{in_flight} in flight", Tone.TEXT),
        ("  ", Tone.TEXT),
        (words.grouped(failures), Tone.BAD if failures else Tone.DIM),
        (" failures", Tone.TEXT if failures else Tone.DIM),
    )
