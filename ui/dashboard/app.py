"""The dashboard: the app that `stoker top` and `stoker serve` start on a terminal (spec 14).

A client of the control socket and nothing more. Facts come in as messages of a `Source`; handlers put them into the
`Model`; screens show the model. What acts on the fleet goes out through `perform`, in one place: ask first where that
is the rule, look again whether the incarnation that was meant is still there, send, tell what was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from textual import on
from textual.app import App
from textual.binding import BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.screen import Screen

from engine.errors import StokerError
from supervisor.control.events import SupervisorStopping
from supervisor.control.messages import Accepted, Stop
from ui.dashboard import keymap
from ui.dashboard.desk import FleetScreen, QuitChoice
from ui.dashboard.keymap import Place
from ui.dashboard.model import Link, Model
from ui.dashboard.orders import Order, Orders, Target, orders_for, scale_to, still_there
from ui.dashboard.paint import AsciiFilter, Tone
from ui.dashboard.rows import RowKey
from ui.dashboard.screens.acting import ActingScreen
from ui.dashboard.screens.confirm import ConfirmScreen
from ui.dashboard.screens.details import DetailsScreen
from ui.dashboard.screens.help import HelpScreen
from ui.dashboard.screens.main import MainScreen
from ui.dashboard.screens.palette import Choice, PaletteScreen
from ui.dashboard.screens.quit import QuitScreen
from ui.dashboard.source import (
    ControlSource,
    EventsHappened,
    InventoryRead,
    LinesWritten,
    ReplicaRead,
    Source,
    SupervisorLost,
)
from ui.dashboard.terminal import Terminal, TerminalGone
from ui.dashboard.theme import DARK, LIGHT

STUCK_S = 5.0
"""A terminal that takes nothing any more may keep the app from ending; after so long the process ends anyway, seconds.
"""


class Dashboard(App[QuitChoice], inherit_bindings=False):
    """The app over a source. now, wall: the clocks. ascii_only: the terminal is not UTF-8."""

    CSS_PATH = "style.tcss"
    TITLE = "stoker"
    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.APP)]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        source: Source,
        *,
        readonly: bool = False,
        owns_supervisor: bool = False,
        ascii_only: bool = False,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._source = source
        self._model = Model()
        self._readonly = readonly
        self._owns_supervisor = owns_supervisor
        self._clock = now
        self._wall = wall
        self._ascii = [AsciiFilter()] if ascii_only else []
        self._main = MainScreen(self)
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = DARK.name
        self.animation_level = "none"
        if ascii_only:
            self.add_class("-ascii")

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    def get_driver_class(self) -> type[Driver]:
        """Where it draws on a terminal, the driver that sees it go; a browser's tab has its own."""
        usual = super().get_driver_class()
        return Terminal if usual is LinuxDriver else usual

    def get_default_screen(self) -> Screen[None]:
        return self._main

    def on_ready(self) -> None:
        self._source.start(self.post_message)
        self.set_interval(1.0, self._tick)

    async def on_unmount(self) -> None:
        await self._source.stop()

    # --------------------------------------------------------------------------------------- what screens ask

    @property
    def model(self) -> Model:
        return self._model

    @property
    def readonly(self) -> bool:
        return self._readonly

    @property
    def owns_supervisor(self) -> bool:
        return self._owns_supervisor

    def now(self) -> float:
        return self._clock()

    def lost_for_s(self) -> float:
        return self.now() - self._model.lost_at if self._model.lost_at is not None else 0.0

    def stops_in_s(self) -> float | None:
        return self._model.stops_in_s(self._wall())

    def read_log(self, of: RowKey | None) -> None:
        self._source.follow_log(of)

    def look_at(self, replica: str | None) -> None:
        self._model.details = None
        self._source.follow_replica(replica)

    def tell(self, text: str, tone: Tone) -> None:
        for screen in reversed(self._mounted_screens()):
            if isinstance(screen, ActingScreen):
                screen.tell(text, tone)
                return

    def redraw(self) -> None:
        for screen in self._mounted_screens():
            if isinstance(screen, FleetScreen | ConfirmScreen | QuitScreen):
                screen.show_model()

    def _mounted_screens(self) -> list[Screen[object]]:
        """The screens that can be drawn: none any more once the app is taking its widgets down."""
        if not self.is_running:
            return []
        return [screen for screen in self.screen_stack if screen.is_mounted]

    # ------------------------------------------------------------------------------------------ what happened

    @on(InventoryRead)
    def _inventory_read(self, message: InventoryRead) -> None:
        if self._model.link is Link.LOST:
            self.tell("the supervisor is back", Tone.GOOD)
        elif self._model.link is Link.ENDED:
            self.tell("a supervisor of that name runs again", Tone.GOOD)
        self._model.take_inventory(message.inventory)
        self.redraw()

    @on(ReplicaRead)
    def _replica_read(self, message: ReplicaRead) -> None:
        self._model.take_details(message.details)
        for screen in self._mounted_screens():
            if isinstance(screen, DetailsScreen):
                screen.show_model()

    @on(EventsHappened)
    def _events_happened(self, message: EventsHappened) -> None:
        events, missed = message.mailbox.take()
        if message.afresh:
            self._model.forget_events()
        self._model.take_events(events)
        if any(isinstance(event, SupervisorStopping) for event in events):
            self.redraw()
        for screen in self._mounted_screens():
            if isinstance(screen, MainScreen | DetailsScreen):
                if message.afresh:
                    screen.forget_events()
                screen.add_events(events, missed)

    @on(LinesWritten)
    def _lines_written(self, message: LinesWritten) -> None:
        for screen in reversed(self._mounted_screens()):
            if isinstance(screen, MainScreen | DetailsScreen):
                screen.add_lines(message)
                return

    @on(SupervisorLost)
    def _supervisor_lost(self, message: SupervisorLost) -> None:
        """What it was told to do it has done; only what went without a word is missed."""
        model = self._model
        if model.stopping or (self._owns_supervisor and model.is_stopping):
            self.exit(QuitChoice.STOP)
        elif model.is_stopping and message.gone:
            self._say_that_it_ended()
        else:
            if not model.is_stale:
                self.tell(message.why, Tone.BAD)
            model.lose(message.why, self.now())
            self.redraw()

    def _say_that_it_ended(self) -> None:
        model = self._model
        if model.link is Link.ENDED:
            return
        why = f" ({model.farewell.why})" if model.farewell is not None else ""
        model.end(self._wall())
        self.tell(f"the supervisor has ended as it had said{why}; q leaves", Tone.WARN)
        self.redraw()

    def _tick(self) -> None:
        if self._model.link is Link.LOST:
            self.redraw()

    # ------------------------------------------------------------------------------------ acting on the fleet

    def perform(self, action: str, target: Target) -> None:
        orders = orders_for(keymap.BY_NAME[action], target, self._model.newest)
        if orders.problem:
            self.tell(orders.problem, Tone.WARN)
        elif orders.asks_first:
            self.push_screen(ConfirmScreen(orders, self), lambda agreed: self._carry_out(orders) if agreed else None)
        else:
            self._carry_out(orders)

    def scale_to(self, deployment: str, replicas: int) -> None:
        self._carry_out(scale_to(keymap.BY_NAME["scale"], deployment, replicas))

    def _carry_out(self, orders: Orders) -> None:
        """Send what is still meant. The dialog may have been open while the fleet changed."""
        kept, gone = still_there(orders, self._model.newest)
        if gone:
            self.tell(f"{'; '.join(gone)}: nothing was done", Tone.WARN)
        if kept.orders:
            self.run_worker(self._send(kept, gone), exit_on_error=True)

    async def _send(self, orders: Orders, gone: list[str]) -> None:
        answers = await asyncio.gather(*(self._sent(order) for order in orders.orders))
        problems = [*gone, *(text for accepted, text in answers if not accepted)]
        done = [text for accepted, text in answers if accepted]
        if len(answers) == 1 and not gone:
            self.tell(answers[0][1], Tone.GOOD if done else Tone.BAD)
            return
        counts = f"{orders.action.label}: {len(done)} of {len(answers) + len(gone)} accepted"
        self.tell("; ".join([counts, *problems]), Tone.BAD if problems else Tone.GOOD)

    async def _sent(self, order: Order) -> tuple[bool, str]:
        try:
            answer = await self._source.ask(order.command)
        except StokerError as error:
            return False, str(error)
        return True, answer.text if isinstance(answer, Accepted) else "accepted"

    # ------------------------------------------------------------------------------------------- actions

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self._readonly))

    def _ask_how_to_leave(self) -> None:
        self.push_screen(QuitScreen(self), self._quit_answered)

    async def action_quit(self) -> None:
        if self._readonly or self._model.link is Link.ENDED:  # there is nothing to detach from, and nothing to stop
            self.exit(QuitChoice.DETACH)
        else:
            self._ask_how_to_leave()

    def _quit_answered(self, choice: QuitChoice | None) -> None:
        if choice is QuitChoice.DETACH:
            self.exit(QuitChoice.STOP if self._model.stopping else QuitChoice.DETACH)
        elif choice is QuitChoice.STOP:
            self.run_worker(self._stop(), exit_on_error=True)

    async def _stop(self) -> None:
        """Ask for the stop and go on showing it; the app ends when the supervisor is gone."""
        now = self._model.is_stopping
        try:
            answer = await self._source.ask(Stop(now=now))
        except StokerError as error:
            self.tell(str(error), Tone.BAD)
            return
        self._model.stopping = True
        self.tell(answer.text if isinstance(answer, Accepted) else "stopping", Tone.WARN)

    def action_theme(self) -> None:
        choices = [Choice(name, name) for name in sorted(self.available_themes)]

        def chosen(name: str | None) -> None:
            if name is not None:
                self.theme = name

        self.push_screen(PaletteScreen(choices, "which theme"), chosen)

    def action_suspend(self) -> None:
        self.action_suspend_process()

    # ------------------------------------------------------------------------------------ ending from outside

    @on(TerminalGone)
    def terminate(self) -> None:
        """A signal, or a terminal that is gone, ends the dashboard."""
        self.exit(QuitChoice.TERMINATED)


def run_dashboard(control_path: str, *, readonly: bool, owns_supervisor: bool) -> QuitChoice:
    """Show the supervisor behind `control_path` until somebody leaves, and say how.

    owns_supervisor: the caller has started that supervisor (`stoker serve`). The terminal is restored in every case.
    """
    with _signals_kept(), _size_of_the_terminal_itself():
        app = Dashboard(  # its console reads the size from the environment when it is made, too
            ControlSource(control_path),
            readonly=readonly,
            owns_supervisor=owns_supervisor,
            ascii_only=not terminal_is_utf8(),
        )
        choice = asyncio.run(_run(app))
    if choice is not None:
        return choice
    return QuitChoice.FAILED if app.return_code else QuitChoice.DETACH


async def _run(app: Dashboard) -> QuitChoice | None:
    """The app in a loop of its own, ended in order by the signals that end a process."""
    loop = asyncio.get_running_loop()
    watchdog = threading.Timer(STUCK_S, os._exit, (128 + signal.SIGHUP,))
    watchdog.daemon = True

    def end() -> None:
        if not watchdog.is_alive():
            watchdog.start()
        app.terminate()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, end)
    try:
        return await app.run_async()
    finally:
        watchdog.cancel()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Give the caller's handlers back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _size_of_the_terminal_itself() -> Iterator[None]:
    """A shell that exports COLUMNS and LINES would freeze the size: they are believed before the terminal.

    In a browser's tab there is no terminal, and they are all there is.
    """
    if not os.isatty(1):
        yield
        return
    hidden = {name: os.environ.pop(name) for name in ("COLUMNS", "LINES") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def terminal_is_utf8() -> bool:
    """Whether the locale says that the terminal reads UTF-8, in the order in which it is looked up."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = os.environ.get(name)
        if value:
            return "utf-8" in value.lower() or "utf8" in value.lower()
    return False
