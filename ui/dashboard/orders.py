"""From a key press to commands: what was under the cursor is taken at the key press, and checked again before sending.

Pure. A target names incarnations; an order is one command for one of them. Between the key press and the answer of a
dialog the fleet may have changed: `still_there` drops what is gone, and nothing is ever sent for a replica that merely
took its place. Where the wire carries the incarnation, the supervisor checks it once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from supervisor.control.messages import (
    AnyCommand,
    DrainReplica,
    Eject,
    Inventory,
    Kill,
    Readmit,
    Restart,
    Scale,
)
from ui.dashboard import words
from ui.dashboard.keymap import Action, Confirm, Needs
from ui.dashboard.model import find_deployment, find_replica
from ui.dashboard.rows import RowKey
from ui.dashboard.states import is_ejected


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a key press meant: the marked replicas, or the row under the cursor."""

    keys: tuple[RowKey, ...] = ()
    marked: bool = False

    @property
    def deployment(self) -> str:
        """The deployment of the first of them."""
        return self.keys[0].deployment if self.keys else ""

    @property
    def replicas(self) -> tuple[RowKey, ...]:
        return tuple(key for key in self.keys if key.is_replica)

    def __str__(self) -> str:
        return str(self.keys[0]) if len(self.keys) == 1 else words.plural(len(self.keys), "replica")


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One command and the row it is for."""

    key: RowKey
    command: AnyCommand


@dataclasses.dataclass(frozen=True, slots=True)
class Orders:
    """What an action sends, or why it sends nothing."""

    action: Action
    orders: tuple[Order, ...] = ()
    problem: str = ""

    @property
    def asks_first(self) -> bool:
        """Whether somebody has to agree before it is sent."""
        if self.problem or self.action.confirm is Confirm.NEVER:
            return False
        whole = any(not order.key.is_replica for order in self.orders)
        return self.action.confirm is Confirm.ALWAYS or len(self.orders) > 1 or whole


def orders_for(action: Action, target: Target, inventory: Inventory | None) -> Orders:
    """What `action` means for `target`: its replicas, and its deployments where the action takes them."""
    if not target.keys:
        return Orders(action, problem="nothing is under the cursor")
    if action.needs is Needs.REPLICA and not target.replicas:
        return Orders(action, problem=f"{action.label} is for a replica; {target.deployment} is a deployment")
    keys = target.replicas if action.needs is Needs.REPLICA else target.keys
    if action.name in ("more", "fewer"):
        keys = _deployments_of(keys)
    orders = [Order(key, command) for key in keys if (command := _command(action, key, inventory)) is not None]
    return Orders(action, tuple(orders))


def scale_to(action: Action, deployment: str, replicas: int) -> Orders:
    """A number of replicas from the scale form."""
    order = Order(RowKey(deployment), Scale(deployment=deployment, replicas=replicas))
    return Orders(action, (order,))


def _deployments_of(keys: Sequence[RowKey]) -> tuple[RowKey, ...]:
    return tuple(dict.fromkeys(RowKey(key.deployment) for key in keys))


def _command(action: Action, key: RowKey, inventory: Inventory | None) -> AnyCommand | None:
    match action.name:
        case "drain":
            return DrainReplica(replica=key.replica, incarnation=key.incarnation)
        case "restart":
            if key.is_replica:
                return Restart(target=key.replica, incarnation=key.incarnation)
            return Restart(target=key.deployment)
        case "kill":
            return Kill(replica=key.replica, incarnation=key.incarnation)
        case "eject":
            status = find_replica(inventory, key.replica)
            out = status is not None and is_ejected(status)
            kind = Readmit if out else Eject
            return kind(replica=key.replica, incarnation=key.incarnation)
        case "more":
            return Scale(deployment=key.deployment, delta=1)
        case "fewer":
            return Scale(deployment=key.deployment, delta=-1)
    return None


def is_there(key: RowKey, inventory: Inventory | None) -> bool:
    """Whether that very incarnation, or that deployment, is in the inventory."""
    if not key.is_replica:
        return find_deployment(inventory, key.deployment) is not None
    status = find_replica(inventory, key.replica)
    return status is not None and status.incarnation == key.incarnation


def still_there(orders: Orders, inventory: Inventory | None) -> tuple[Orders, list[str]]:
    """The orders whose row is still the one that was meant, and a sentence for each that is not."""
    kept = tuple(order for order in orders.orders if is_there(order.key, inventory))
    gone = [_gone(order.key, inventory) for order in orders.orders if order not in kept]
    return dataclasses.replace(orders, orders=kept), gone


def _gone(key: RowKey, inventory: Inventory | None) -> str:
    status = find_replica(inventory, key.replica) if key.is_replica else None
    if status is not None:
        return f"{key} is gone: {key.replica} is incarnation {status.incarnation} now"
    return f"{key} is gone"
