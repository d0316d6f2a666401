"""Asks before something is lost. Says what, watches it meanwhile, and has the safe button focused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Label

from ui.dashboard import words
from ui.dashboard.desk import Desk
from ui.dashboard.model import find_replica
from ui.dashboard.orders import Orders, is_there
from ui.dashboard.screens.dialog import Dialog, button

MOST_NAMES = 8


class ConfirmScreen(Dialog[bool]):
    """True: do it. It speaks of the incarnations of the key press, whatever happens to the fleet meanwhile."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "agree", "yes"),
        Binding("n", "cancel", "no"),
    ]

    def __init__(self, orders: Orders, desk: Desk) -> None:
        super().__init__()
        self._orders = orders
        self._desk = desk
        what = orders.orders[0].key if len(orders.orders) == 1 else f"{len(orders.orders)} replicas"
        self.TITLE_TEXT = words.literal(f"{orders.action.label.capitalize()} {what}?")

    def compose_body(self) -> ComposeResult:
        yield Label(self._body(), markup=False, id="body")

    def buttons(self) -> Iterator[Button]:
        yield button(" Cancel ", "cancel", "safe")
        yield button(f" {self._orders.action.label.capitalize()} ", "agree", "danger")

    def on_mount(self) -> None:
        self.query_one("#cancel", Button).focus()

    def show_model(self) -> None:
        """The fleet goes on behind the dialog."""
        self.query_one("#body", Label).update(self._body())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "agree")

    def action_agree(self) -> None:
        self.dismiss(True)

    def action_cancel(self) -> None:
        self.dismiss(False)

    def _body(self) -> str:
        newest = self._desk.model.newest
        if not any(is_there(order.key, newest) for order in self._orders.orders):
            return "\n".join(
                [
                    *(words.literal(f"{order.key}  is gone") for order in self._orders.orders[:MOST_NAMES]),
                    "",
                    "There is nothing left to do.",
                ]
            )
        names = []
        lost = 0
        for order in self._orders.orders[:MOST_NAMES]:
            there = is_there(order.key, newest)
            status = find_replica(newest, order.key.replica) if there and order.key.is_replica else None
            lost += status.in_flight if status is not None else 0
            what = f"{status.state}, {status.in_flight} in flight" if status is not None else ""
            names.append(f"{order.key}  {what if there else 'is gone'}".rstrip())
        more = len(self._orders.orders) - MOST_NAMES
        if more > 0:
            names.append(f"and {more} more")
        consequence = _consequence(self._orders.action.name, lost)
        return "\n".join([words.literal(name) for name in names] + ["", consequence])


def _consequence(action: str, in_flight: int) -> str:
    match action:
        case "kill":
            if not in_flight:
                return "SIGKILL to its process group now; nothing is in flight there."
            lost = words.plural(in_flight, "exchange")
            fate = "fails or is tried elsewhere" if in_flight == 1 else "fail or are tried elsewhere"
            return f"SIGKILL to its process group now: {lost} in flight {fate}."
        case "restart":
            return "One at a time: the next incarnation is ready before the next one leaves."
        case "drain":
            return "What is in flight is finished first. They stay out until they are restarted."
        case _:
            return "Those that are out come back; those that serve go out for a while."
