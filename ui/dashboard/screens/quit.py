"""Leaving: detach, stop everything, or stay. The focused button is the one that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Label

from ui.dashboard.desk import Desk, QuitChoice
from ui.dashboard.screens.dialog import Dialog, button


class QuitScreen(Dialog[QuitChoice | None]):
    """None: stay. Asked while the fleet is stopping already, `stop` means to cut the drain."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "detach", "detach"),
        Binding("s", "stop", "stop"),
        Binding("c,n", "cancel", "stay"),
        Binding("ctrl+c,ctrl+q", "detach", "detach"),
    ]

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self.TITLE_TEXT = "The fleet is stopping" if desk.model.stopping else "Leave the dashboard?"

    def compose_body(self) -> ComposeResult:
        yield Label(self._body(), markup=False, id="body")

    def _body(self) -> str:
        inventory = self._desk.model.newest
        count = sum(len(deployment.replicas) for deployment in inventory.deployments) if inventory else 0
        if self._desk.model.stopping:
            return "d  detach: it goes on draining by itself\ns  stop now: cut what is still in flight\nc  watch it"
        where = "in the background; `stoker top` comes back to it" if self._desk.owns_supervisor else "as before"
        return (
            f"d  detach: the fleet goes on {where}\n"
            f"s  stop all: drain {count} replicas, then end the supervisor\n"
            "c  cancel"
        )

    def buttons(self) -> Iterator[Button]:
        stop = " Stop now " if self._desk.model.stopping else " Stop all "
        yield button(" Detach ", "detach", "safe")
        yield button(stop, "stop", "danger")
        yield button(" Cancel ", "cancel", "safe")

    def on_mount(self) -> None:
        self.query_one("#cancel" if self._desk.owns_supervisor else "#detach", Button).focus()

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
        self.dismiss(QuitChoice.STOP)

    def action_cancel(self) -> None:
        self.dismiss(None)
