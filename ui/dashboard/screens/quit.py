"""Leaving: detach, stop everything, or stay. The focused button is the one that changes nothing.

Only a supervisor that answers can be asked to stop: while it does not, there is only leaving and staying.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Label

from ui.dashboard import words
from ui.dashboard.desk import Desk, QuitChoice
from ui.dashboard.model import Link
from ui.dashboard.screens.dialog import Dialog, button


class QuitScreen(Dialog[QuitChoice | None]):
    """None: stay. Asked while the fleet is stopping already, `stop` means to cut the drain, whoever began it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "detach", "detach"),
        Binding("s", "stop", "stop"),
        Binding("c,n", "cancel", "stay"),
        Binding("ctrl+c,ctrl+q", "detach", "detach"),
    ]

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self.TITLE_TEXT = "The fleet is stopping" if desk.model.is_stopping else "Leave the dashboard?"

    def compose_body(self) -> ComposeResult:
        yield Label(self._body(), markup=False, id="body")

    def show_model(self) -> None:
        """The supervisor may come and go behind the dialog."""
        self.query_one("#body", Label).update(self._body())
        stop = self.query_one("#stop", Button)
        if not self._can_stop and stop.has_focus:
            self.query_one("#cancel", Button).focus()
        stop.display = self._can_stop
        self.query_one("#detach", Button).label = " Detach " if self._can_stop else " Leave "

    @property
    def _can_stop(self) -> bool:
        return self._desk.model.link is Link.LIVE

    def _body(self) -> str:
        model = self._desk.model
        if model.link is Link.ENDED:
            return "It has ended: nothing is left to detach from or to stop.\nd  leave\nc  stay"
        if not self._can_stop:
            return "No supervisor answers, so nothing can be stopped from here.\nd  leave\nc  stay, and go on trying"
        count = sum(len(deployment.replicas) for deployment in model.newest.deployments) if model.newest else 0
        if model.is_stopping:
            return "d  detach: it goes on draining by itself\ns  stop now: cut what is still in flight\nc  watch it"
        where = "in the background; `stoker top` comes back to it" if self._desk.owns_supervisor else "as before"
        return (
            f"d  detach: the fleet goes on {where}\n"
            f"s  stop all: drain {words.plural(count, 'replica')}, then end the supervisor\n"
            "c  cancel"
        )

    def buttons(self) -> Iterator[Button]:
        stop = " Stop now " if self._desk.model.is_stopping else " Stop all "
        yield button(" Detach ", "detach", "safe")
        yield button(stop, "stop", "danger")
        yield button(" Cancel ", "cancel", "safe")

    def on_mount(self) -> None:
        self.query_one("#cancel" if self._desk.owns_supervisor else "#detach", Button).focus()
        self.show_model()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        match event.button.id:
            case "detach":
                self.action_detach()
            case "stop":
                self.action_stop()
            case _:
                self.action_cancel()

    def action_detach(self) -> None:
        self.dismiss(QuitChoice.DETACH)

    def action_stop(self) -> None:
        if self._can_stop:
            self.dismiss(QuitChoice.STOP)

    def action_cancel(self) -> None:
        self.dismiss(None)
