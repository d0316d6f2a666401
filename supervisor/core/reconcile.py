"""Desired against actual: which slots to start, keep and drain (spec 8). The one path of every change.

Scale, reload, a new placement, a crash and a shutdown only change what is wanted or what exists; this function is asked
again after each event and names what is left to do. It is level-triggered: asked twice it says the same, asked when all
is as wanted it says nothing.

A slot and a wanted replica match by identity (what would make two processes interchangeable). Victims are those that
cost least to lose: not ready first, then fewest in flight, then newest. A ready slot is drained only while some slot
that stays is ready, or none is wanted: so a replaced pool serves until its successor does.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from supervisor.core.lifecycle import AT_REST, IN_ROTATION, State


@dataclasses.dataclass(frozen=True, slots=True)
class Have:
    """A slot that exists. `identity` is what wanted replicas are matched by; `born` orders slots by age.

    leaving: it was told to go and not to come back. A slot that drains to be restarted, or by hand, is not leaving.
    """

    number: int
    identity: str
    state: State
    in_flight: int = 0
    born: int = 0
    leaving: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A new slot under this number for wanted replica `wanted` (its index in the list of wanted ones)."""

    number: int
    wanted: int


@dataclasses.dataclass(frozen=True, slots=True)
class Drain:
    """Take this slot out; it leaves when its exchanges are done."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Forget:
    """This slot has no process and is wanted no more: it leaves the list."""

    number: int


Action = Start | Drain | Forget


def plan(wanted: Sequence[str], have: Sequence[Have]) -> list[Action]:
    """The actions that bring the slots of one deployment to the wanted identities.

    A slot that is leaving is on neither side, but it keeps its number until it is gone.
    """
    staying, surplus, missing = _match(wanted, have)
    actions: list[Action] = []
    numbers = _free_numbers({slot.number for slot in have})
    for index in missing:
        actions.append(Start(next(numbers), index))
    may_drain_ready = not wanted or any(slot.state in IN_ROTATION for slot in staying)
    for slot in surplus:
        if slot.state in AT_REST:
            actions.append(Forget(slot.number))
        elif slot.state not in IN_ROTATION or may_drain_ready:
            actions.append(Drain(slot.number))
    return actions


def cost_to_lose(slot: Have) -> tuple[bool, int, int]:
    """Sorts the slot that costs least to lose first: not ready, fewest in flight, newest."""
    return (slot.state in IN_ROTATION, slot.in_flight, -slot.born)


def victims(have: Sequence[Have], count: int) -> list[Have]:
    """The `count` slots that cost least to lose, among those that are not leaving already."""
    present = [slot for slot in have if not slot.leaving]
    return sorted(present, key=cost_to_lose)[:count]


def differences(before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]) -> list[str]:
    """What a reload changes, in words, a line for each deployment that it touches: kept, added, removed."""
    lines = []
    for name in (*after, *(name for name in before if name not in after)):
        old, new = collections.Counter(before.get(name, ())), collections.Counter(after.get(name, ()))
        kept, added, removed = old & new, new - old, old - new
        if added or removed:
            lines.append(f"{name}: {kept.total()} kept, {added.total()} added, {removed.total()} removed")
    return lines


def _match(wanted: Sequence[str], have: Sequence[Have]) -> tuple[list[Have], list[Have], list[int]]:
    """Slots that stay, slots that are too many, and the indices of wanted replicas that have no slot."""
    by_identity: dict[str, list[Have]] = collections.defaultdict(list)
    for slot in have:
        if not slot.leaving:
            by_identity[slot.identity].append(slot)
    for slots in by_identity.values():
        slots.sort(key=cost_to_lose, reverse=True)
    staying: list[Have] = []
    missing: list[int] = []
    taken: collections.Counter[str] = collections.Counter()
    for index, identity in enumerate(wanted):
        slots = by_identity.get(identity, [])
        if taken[identity] < len(slots):
            staying.append(slots[taken[identity]])
            taken[identity] += 1
        else:
            missing.append(index)
    surplus = [slot for identity, slots in by_identity.items() for slot in slots[taken[identity] :]]
    return staying, surplus, missing


def _free_numbers(used: set[int]) -> Iterator[int]:
    """Lowest first: a removed number is reused by the next new slot."""
    return (number for number in itertools.count() if number not in used)
