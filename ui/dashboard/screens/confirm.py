"""Asks before something is lost. Says what, watches it meanwhile, and has the safe button focused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Label

from supervisor.control.messages import Inventory
from ui.dashboard import words
from ui.dashboard.desk import Desk
from ui.dashboard.model import find_deployment, find_replica
from ui.dashboard.orders import Order, Orders, is_there
from ui.dashboard.rows import RowKey
from ui.dashboard.screens.dialog import Dialog, button
from ui.looks import shown_state

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
        what = orders.orders[0].key if len(orders.orders) == 1 else words.plural(len(orders.orders), "replica")
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
        names = [self._described(order) for order in self._orders.orders[:MOST_NAMES]]
        more = len(self._orders.orders) - MOST_NAMES
        if more > 0:
            names.append(f"and {more} more")
        return "\n".join([words.literal(name) for name in names] + ["", self._consequence()])

    def _described(self, order: Order) -> str:
        newest = self._desk.model.newest
        if not is_there(order.key, newest):
            return f"{order.key}  is gone"
        status = find_replica(newest, order.key.replica) if order.key.is_replica else None
        return str(order.key) if status is None else f"{order.key}  {status.state}, {status.in_flight} in flight"

    def _consequence(self) -> str:
        if self._orders.action.name == "kill":
            there = [order.key for order in self._orders.orders if is_there(order.key, self._desk.model.newest)]
            return what_a_kill_loses(there, self._desk.model.newest)
        return _consequence(self._orders.action.name)


def what_a_kill_loses(keys: Sequence[RowKey], inventory: Inventory | None) -> str:
    """What becomes of what these replicas have in flight, by the rule of spec 6."""
    group = "its process group" if len(keys) == 1 else "their process groups"
    killed = {key.replica for key in keys}
    statuses = [status for name in killed if (status := find_replica(inventory, name)) is not None]
    in_flight = sum(status.in_flight for status in statuses)
    if not in_flight:
        return f"SIGKILL to {group} now. Nothing is in flight there."
    lines = [f"SIGKILL to {group} now, with {words.plural(in_flight, 'exchange')} in flight:"]
    fates: dict[str, list[str]] = {}
    for name in sorted({status.deployment for status in statuses if status.in_flight}):
        fates.setdefault(_fate_of_the_silent(name, killed, inventory), []).append(name)
    for fate, names in fates.items():
        where = "" if len(fates) == 1 else f"{', '.join(map(words.literal, names))}: "
        lines.append(f"- {where}what got no byte yet {fate}")
    lines.append("- a stream that began is cut, with an error event at its end")
    return "\n".join(lines)


def _fate_of_the_silent(deployment: str, killed: Set[str], inventory: Inventory | None) -> str:
    """What becomes of the exchanges that got no byte yet."""
    status = find_deployment(inventory, deployment)
    retries = status.retries if status is not None else 0
    if not retries:
        return "fails (502): retries is 0"
    if not _has_others(deployment, killed, inventory):
        return "fails (502): no other replica is ready"
    return f"is tried {'once more' if retries == 1 else f'up to {retries} times more'} on another replica"


def _has_others(deployment: str, killed: Set[str], inventory: Inventory | None) -> bool:
    """Whether a replica that is not killed could take what the others drop."""
    status = find_deployment(inventory, deployment)
    replicas = status.replicas if status is not None else []
    return any(shown_state(replica) in ("ready", "ejected") and replica.name not in killed for replica in replicas)


def _consequence(action: str) -> str:
    match action:
        case "restart":
            return "One at a time: the next incarnation is ready before the next one leaves."
        case "drain":
            return "What is in flight is finished first. They stay out until they are restarted."
        case _:
            return "Those that are out come back; those that serve go out for a while."
