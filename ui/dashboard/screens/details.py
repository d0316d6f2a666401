"""Everything about one row: what goes on, its numbers, its card and limits, its last exit, its events and its
log.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.strip import Strip

from supervisor.control.messages import DeploymentStatus, ReplicaStatus
from ui.dashboard import keymap, words
from ui.dashboard.desk import Desk
from ui.dashboard.keymap import Place
from ui.dashboard.lines import event_line, log_line, skipped_line
from ui.dashboard.orders import Target, is_there
from ui.dashboard.paint import Line, Painter, Piece, Tone, spread
from ui.dashboard.rows import RowKey, key_of
from ui.dashboard.screens.acting import ActingScreen
from ui.dashboard.source import EventsHappened, LinesWritten
from ui.dashboard.states import deployment_look, goes_on, goes_on_in, replica_look, shown_state
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.line_view import LineView

LABEL = 12
SIDE_BY_SIDE_FROM = 100
HISTORY_FROM = 30

Fact = tuple[str, str, Tone]


class Facts(Painter):
    """Pairs of label and value in columns, under a title."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        if lines != self._lines:
            self._lines = lines
            self.styles.height = len(lines)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return self.paint(self._lines[y] if y < len(self._lines) else (), self.size.width)


class DetailsScreen(ActingScreen, inherit_bindings=False):
    """Follows a slot. Its actions are for the incarnation that is on the screen when the key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.DETAILS)]

    def __init__(self, desk: Desk, key: RowKey) -> None:
        super().__init__(desk)
        self._key = key

    def compose(self) -> ComposeResult:
        yield Facts(id="facts")
        with Horizontal(id="panes"):
            yield LineView("events", id="history")
            yield LineView("log", id="logs")
        yield BottomLine(id="bottom")

    def on_mount(self) -> None:
        self.query_one("#logs", LineView).focus()
        self.desk.read_log(self._key)
        self._show_history()
        self.show_model()
        offered = keymap.footer((Place.DETAILS, Place.LOGS, Place.APP), self.desk.readonly)
        no_replica = {action.name for action in offered if action.needs is keymap.Needs.REPLICA}
        self.query_one(BottomLine).offer(
            offered, frozenset() if self._key.is_replica else frozenset(no_replica)
        )

    def on_resize(self) -> None:
        self.show_model()

    # ------------------------------------------------------------------------------------------------ drawing

    def show_model(self) -> None:
        model = self.desk.model
        width = self.size.width
        if self._key.is_replica:
            replica = model.replica(self._key.replica)
            if replica is not None:
                self._key = key_of(replica)
            lines = replica_lines(replica, self._key, width)
        else:
            lines = deployment_lines(model.deployment(self._key.deployment), self._key, width)
        self.query_one(Facts).show(lines)
        self.query_one("#history").display = self._key.is_replica and (
            width >= SIDE_BY_SIDE_FROM or self.size.height >= HISTORY_FROM
        )

    def show_events(self, message: EventsHappened) -> None:
        self._show_history()

    def _show_history(self) -> None:
        history = self.query_one("#history", LineView)
        history.empty()
        history.append([event_line(event) for event in self.desk.model.events_of(self._key.replica)])

    def add_lines(self, message: LinesWritten) -> None:
        lines, skipped = message.mailbox.take()
        if message.of.slot != self._key.slot:
            return
        drawn = [log_line(line, not message.of.is_replica) for line in lines]
        self.query_one("#logs", LineView).append([skipped_line(skipped), *drawn] if skipped else drawn)

    # ------------------------------------------------------------------------------------------------- target

    def target(self) -> Target | None:
        if is_there(self._key, self.desk.model.newest):
            return Target((self._key,))
        self.tell(f"{self._key} is gone: nothing was done", Tone.WARN)
        return None

    async def run_named(self, name: str, target: Target | None) -> None:
        action = keymap.BY_NAME[name]
        if Place.DETAILS in action.places:
            await self.run_action(name)
        elif Place.APP in action.places:
            await self.app.run_action(name)
        elif Place.LOGS in action.places:
            await self.query_one("#logs", LineView).run_action(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = keymap.BY_NAME.get(action)
        return known is None or not (known.acts and self.desk.readonly)

    def action_back(self) -> None:
        logs = self.query_one("#logs", LineView)
        if logs.needle:
            logs.find("")
        else:
            self.dismiss(None)


# ------------------------------------------------------------------------------------------------ pure: facts


def replica_lines(replica: ReplicaStatus | None, key: RowKey, width: int) -> list[Line]:
    """The facts of a replica, in as many columns as the width allows."""
    if replica is None:
        return [_title(str(key), ("○ gone", Tone.DIM), "it was removed", Tone.DIM, width)]
    state = shown_state(replica)
    look = replica_look(state)
    title = _title(
        str(key_of(replica)), (f"{look.glyph} {state}", look.tone), goes_on(replica), look.tone, width
    )
    return [
        title,
        (),
        *_columns([_process(replica), _traffic(replica), _card(replica)], width),
        *_ending(replica, width),
    ]


def deployment_lines(deployment: DeploymentStatus | None, key: RowKey, width: int) -> list[Line]:
    """The facts of a deployment."""
    if deployment is None:
        return [_title(str(key), ("○ gone", Tone.DIM), "it was removed", Tone.DIM, width)]
    look = deployment_look(deployment.state)
    title = _title(
        deployment.name,
        (f"{look.glyph} {deployment.state}", look.tone),
        goes_on_in(deployment),
        look.tone,
        width,
    )
    what: list[Fact] = [
        ("artifact", deployment.artifact or "", Tone.TEXT),
        ("engine", deployment.engine, Tone.TEXT),
        ("task", deployment.task, Tone.TEXT),
        *[
            (name, "calibrated" if value is None else str(value), Tone.TEXT)
            for name, value in deployment.limits.items()
        ],
    ]
    traffic: list[Fact] = [
        ("req/s", words.rate(deployment.requests_per_s), Tone.STRONG),
        ("p50", words.milliseconds(deployment.p50_ms), Tone.TEXT),
        ("p99", words.milliseconds(deployment.p99_ms), Tone.TEXT),
        ("requests", words.grouped(deployment.requests), Tone.TEXT),
        ("failures", words.grouped(deployment.failures), Tone.BAD if deployment.failures else Tone.DIM),
        ("restarts", str(deployment.restarts), Tone.WARN if deployment.restarts else Tone.DIM),
    ]
    warnings: list[Line] = [((f" ▲ {words.literal(warning)}", Tone.WARN),) for warning in deployment.warnings]
    return [title, (), *_columns([what, traffic], width), *warnings]


def _title(name: str, state: Piece, goes_on: str, tone: Tone, width: int) -> Line:
    left: Line = ((f" {words.literal(name)} ", Tone.KEY), (" ", Tone.TEXT), state)
    if goes_on and goes_on != state[0][2:]:
        left = (*left, (f"  {words.literal(goes_on)}", tone))
    return spread(left, (), width)


def _process(replica: ReplicaStatus) -> list[Fact]:
    threads = "" if replica.threads is None else str(replica.threads)
    started = [
        replica.started_by or "",
        "" if replica.ready_after_s is None else f"ready in {replica.ready_after_s:.3g} s",
    ]
    return [
        ("pid", str(replica.pid or "none"), Tone.TEXT),
        ("device", replica.device, Tone.TEXT),
        ("age", words.duration(replica.age_s), Tone.TEXT),
        ("in state", words.duration(replica.in_state_s), Tone.TEXT),
        ("started", ", ".join(part for part in started if part), Tone.TEXT),
        ("restarts", str(replica.restarts), Tone.WARN if replica.restarts else Tone.DIM),
        ("threads", threads, Tone.TEXT),
        ("cpu", words.percent(replica.cpu_percent), Tone.TEXT),
        ("memory", words.size(replica.rss_bytes), Tone.TEXT),
        ("gpu memory", words.size(replica.gpu_bytes) if replica.gpu_bytes else "", Tone.TEXT),
        *([("endpoint", replica.endpoint, Tone.TEXT)] if replica.endpoint else []),
    ]


def _traffic(replica: ReplicaStatus) -> list[Fact]:
    running = f"{replica.forward_age_s:.1f} s" if replica.forward_age_s else "none"
    return [
        ("in flight", str(replica.in_flight), Tone.STRONG),
        ("bytes", words.size(replica.outstanding_bytes), Tone.TEXT),
        ("queued rows", str(replica.queued_rows), Tone.TEXT),
        ("forward", running, Tone.TEXT),
        ("req/s", words.rate(replica.requests_per_s), Tone.STRONG),
        ("p50", words.milliseconds(replica.p50_ms), Tone.TEXT),
        ("p99", words.milliseconds(replica.p99_ms), Tone.TEXT),
        ("requests", words.grouped(replica.requests), Tone.TEXT),
        ("failures", words.grouped(replica.failures), Tone.BAD if replica.failures else Tone.DIM),
        ("rows", f"{words.grouped(replica.rows)} in {words.grouped(replica.forwards)} forwards", Tone.TEXT),
        ("cancelled", f"{words.grouped(replica.cancelled_rows)} rows", Tone.DIM),
    ]


def _card(replica: ReplicaStatus) -> list[Fact]:
    card = replica.card
    if card is None:
        return [("card", "none yet: it has not registered", Tone.DIM)]
    task = card.task if card.dimensions is None else f"{card.task}, {card.dimensions} dimensions"
    golden = Tone.GOOD if card.golden not in ("unverified", "failed") else Tone.WARN
    return [
        ("artifact", card.artifact, Tone.TEXT),
        ("revision", (card.revision or "")[:12], Tone.TEXT),
        ("engine", f"{card.engine}, {card.dtype}", Tone.TEXT),
        ("task", task, Tone.TEXT),
        (
            "max length",
            "" if card.max_model_len is None else f"{words.grouped(card.max_model_len)} tokens",
            Tone.TEXT,
        ),
        (
            "batch",
            f"{card.max_num_seqs} rows, {words.grouped(card.max_num_batched_tokens)} tokens",
            Tone.TEXT,
        ),
        ("digest", (card.weights_digest or "")[:16], Tone.TEXT),
        ("golden", card.golden, golden),
        ("exactness", card.reproducible or "", Tone.TEXT),
        ("versions", ", ".join(f"{name} {version}" for name, version in card.versions.items()), Tone.DIM),
    ]


def _columns(columns: list[list[Fact]], width: int) -> list[Line]:
    """Facts side by side; where three columns are too many, the last one goes below."""
    if width < SIDE_BY_SIDE_FROM and len(columns) > 2:
        return [*_columns(columns[:2], width), (), *_columns(_halves(columns[2]), width)]
    each = (width - 1) // len(columns)
    lines: list[Line] = []
    for index in range(max(len(column) for column in columns)):
        pieces: list[Piece] = [(" ", Tone.TEXT)]
        for column in columns:
            label, value, tone = column[index] if index < len(column) else ("", "", Tone.TEXT)
            shown = words.fit(words.literal(value), max(each - LABEL - 2, 0))
            pieces += [(words.fit(label, LABEL), Tone.DIM), (shown, tone), ("  ", Tone.TEXT)]
        lines.append(tuple(pieces))
    return lines


def _halves(facts: list[Fact]) -> list[list[Fact]]:
    middle = (len(facts) + 1) // 2
    return [facts[:middle], facts[middle:]]


def _ending(replica: ReplicaStatus, width: int) -> list[Line]:
    """How the incarnation before this one ended, and its last words."""
    if not replica.last_exit:
        return []
    lines: list[Line] = [(), ((" last exit   ", Tone.DIM), (words.literal(replica.last_exit), Tone.BAD))]
    for text in replica.last_lines[-5:]:
        lines.append(
            (("             ", Tone.DIM), (words.clip(words.literal(text), max(width - 14, 1)), Tone.TEXT))
        )
    return lines
