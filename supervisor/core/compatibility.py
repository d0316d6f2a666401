"""Whether a replica may serve beside its siblings (spec 5): its card against the first one of its generation."""

from __future__ import annotations

import dataclasses

from engine.messages import Card

COMPARED = ("artifact", "revision", "task", "dimensions", "dtype", "weights_digest")
"""What all replicas of a deployment must agree on."""


@dataclasses.dataclass(frozen=True, slots=True)
class SetLimits:
    """Batch limits that the config sets; None: each replica calibrates its own, and they may differ."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


def differences(baseline: Card | None, card: Card, limits: SetLimits) -> list[str]:
    """In what a card differs from the baseline and from the set limits, one phrase each; empty when it may serve."""
    found = []
    if baseline is not None:
        for field in COMPARED:
            expected, said = getattr(baseline, field), getattr(card, field)
            if expected != said:
                found.append(f"{field} is {said}, its siblings have {expected}")
    for field in ("max_num_seqs", "max_num_batched_tokens"):
        wanted = getattr(limits, field)
        if wanted is not None and getattr(card, field) != wanted:
            found.append(f"{field} is {getattr(card, field)}, the config sets {wanted}")
    return found
