"""From an inventory to the rows that are shown: filtered, sorted inside each deployment, keyed by incarnation. Pure."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from supervisor.control.messages import DeploymentStatus, Inventory, ReplicaStatus
from ui.dashboard import words
from ui.dashboard.columns import BY_NAME, Layout
from ui.dashboard.model import History
from ui.dashboard.paint import Piece
from ui.dashboard.states import goes_on
from ui.looks import shown_state


class RowKey(NamedTuple):
    """What a row stands for: one incarnation of a replica's slot, or a deployment (`replica` is empty)."""

    deployment: str
    replica: str = ""
    incarnation: int = 0

    @property
    def is_replica(self) -> bool:
        return bool(self.replica)

    @property
    def slot(self) -> tuple[str, str]:
        """The same for every incarnation."""
        return self.deployment, self.replica

    def __str__(self) -> str:
        return f"{self.replica}#{self.incarnation}" if self.replica else self.deployment


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row's cells, in the order of the layout."""

    key: RowKey
    cells: tuple[Piece, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """How replicas stand inside their deployment. column empty: as the supervisor lists them."""

    column: str = ""
    reversed: bool = False

    def by(self, column: str) -> Order:
        """Sort by that column; asked again, the other way round."""
        return Order(column, not self.reversed if self.column == column else False)

    @property
    def falls(self) -> bool:
        """Whether the largest stands first."""
        return bool(self.column) and BY_NAME[self.column].falls is not self.reversed


def build_rows(
    inventory: Inventory | None,
    layout: Layout,
    history: History,
    needle: str = "",
    order: Order | None = None,
) -> list[Row]:
    """The rows to show: deployments that match every word of `needle`, or have a replica that does."""
    order = order or Order()
    rows: list[Row] = []
    parts = needle.casefold().split()
    for deployment in inventory.deployments if inventory is not None else ():
        whole = _matches(parts, _words_of_deployment(deployment))
        replicas = [replica for replica in deployment.replicas if whole or _matches(parts, _words_of_replica(replica))]
        if not replicas and not whole:
            continue
        key = RowKey(deployment.name)
        cells = tuple(placed.column.of_deployment(deployment, history) for placed in layout.placed)
        rows.append(Row(key, cells))
        for replica in _sorted(replicas, order):
            key = key_of(replica)
            cells = tuple(placed.column.of_replica(replica, history) for placed in layout.placed)
            rows.append(Row(key, cells))
    return rows


def key_of(replica: ReplicaStatus) -> RowKey:
    """The key of a replica's incarnation."""
    return RowKey(replica.deployment, replica.name, replica.incarnation)


def _sorted(replicas: list[ReplicaStatus], order: Order) -> list[ReplicaStatus]:
    key = BY_NAME[order.column].sort_key if order.column else None
    return replicas if key is None else sorted(replicas, key=key, reverse=order.falls)


def _matches(parts: list[str], text: str) -> bool:
    return all(part in text for part in parts)


def _words_of_replica(replica: ReplicaStatus) -> str:
    text = f"{replica.name} {shown_state(replica)} {replica.device} {replica.pid or ''} {goes_on(replica)}"
    return words.literal(text).casefold()


def _words_of_deployment(deployment: DeploymentStatus) -> str:
    return words.literal(f"{deployment.name} {deployment.state} {deployment.artifact or ''}").casefold()
