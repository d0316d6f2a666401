"""One deployment as the fleet holds it: what is wanted of it, what it has, and what it remembers."""

from __future__ import annotations

import collections
import dataclasses
import time

from engine.messages import Card
from supervisor.config.schema import Deployment, Placement
from supervisor.core import reconcile
from supervisor.core.dispatch import Refusal
from supervisor.core.durations import Durations
from supervisor.core.ejection import Outcome
from supervisor.core.lifecycle import IN_ROTATION, State
from supervisor.exchanges import Lane
from supervisor.slots.base import Intent, Make, Slot


@dataclasses.dataclass(eq=False)
class Group:
    """One deployment: its wanted replicas, its slots, its lane for requests, the card its replicas must agree with."""

    deployment: Deployment
    lane: Lane
    slots: dict[int, Slot] = dataclasses.field(default_factory=dict)
    baselines: dict[str, Card] = dataclasses.field(default_factory=dict)
    """The first ready card of each generation, by what its replicas are made of."""
    wanted: list[Make] = dataclasses.field(default_factory=list)
    placements: list[Placement] = dataclasses.field(default_factory=list)
    before_trial: list[Placement] | None = None
    """Where its replicas were before a measurement tried other numbers; None: nothing is tried."""
    trial_of: bytes = b""
    """Whose measurement that is: the connection that asked for it."""
    restarts_of_the_gone: int = 0
    counts_of_the_gone: collections.Counter[Outcome] = dataclasses.field(default_factory=collections.Counter)
    """Exchanges of slots that were removed, by outcome: totals do not fall with the number of replicas."""
    rolling: list[int] = dataclasses.field(default_factory=list)
    """Slots that a rolling restart has still to come to."""
    rolled: int | None = None
    """The slot that it came to last."""
    ejections: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    readmissions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    withheld: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    drains: Durations = dataclasses.field(default_factory=Durations)
    starts: dict[str, Durations] = dataclasses.field(default_factory=dict)

    @property
    def is_removed(self) -> bool:
        """Whether nothing of it is wanted any more: what is left of it drains."""
        return not self.wanted

    @property
    def card(self) -> Card | None:
        """What its replicas say of themselves; None until one was ready."""
        return next((slot.card for slot in self.slots.values() if slot.card is not None), None)

    @property
    def ready(self) -> int:
        """How many slots are ready."""
        return sum(1 for slot in self.slots.values() if slot.state in IN_ROTATION)

    @property
    def lasting(self) -> list[Placement]:
        """Where its replicas are when nothing is tried."""
        return self.placements if self.before_trial is None else self.before_trial

    def can_answer(self) -> bool:
        """Whether a request would find a replica now, busy or not."""
        return self.lane.pool.pick(time.monotonic()) is not Refusal.UNAVAILABLE

    def wants(self, slot: Slot) -> bool:
        """Whether the slot is one of those that should be; one that serves until its successor is ready is not."""
        return any(item.identity == slot.identity for item in self.wanted)

    def has_siblings(self, slot: Slot) -> bool:
        """Whether others of its generation serve, whose card its own must agree with. Alone, it sets what holds."""
        return any(
            other is not slot and other.generation == slot.generation and other.target is not None
            for other in self.slots.values()
            if other.state is not State.INCOMPATIBLE
        )

    def have(self) -> list[reconcile.Have]:
        """Its slots, as the plan wants to see them."""
        return [
            reconcile.Have(
                number,
                slot.identity,
                slot.state,
                len(slot.target.open) if slot.target is not None else 0,
                slot.born,
                slot.intent is Intent.LEAVE,
            )
            for number, slot in self.slots.items()
        ]

    def choose_cached(self) -> None:
        """Answers are given again where one replica is all there is, and its card says that it may be (spec 10)."""
        members = self.lane.pool.members
        sole = members[0] if len(members) == 1 and len(self.wanted) == 1 else None
        cards = {slot.target.member: slot.card for slot in self.slots.values() if slot.target is not None}
        card = cards.get(sole) if sole is not None else None
        may = card is not None and card.deterministic
        self.lane.cache.follow(sole if may else None, self.deployment.result_cache_entries)
