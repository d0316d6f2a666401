"""A name that is not there, answered in one way by every verb and every interface: what there is, and what is nearest.

Pure words. The supervisor refuses with them, and the command line, where it looks for itself, says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

MOST_LISTED = 12
"""Names said back; of more the first ones, and how many there are."""
MOST_SHOWN = 200
"""Characters of the word itself that are said back."""
LONGEST_GUESS = 64
"""Longer words get no guess: guessing takes time quadratic in the length."""

Fleet = Mapping[str, Sequence[str]]
"""The replicas of each deployment, by name."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one that was probably meant, if any is like it."""
    if len(word) > LONGEST_GUESS:
        return None
    import difflib  # only on the way to an error, so that no command pays for it

    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return by_folded[near[0]] if near else None


def no_such(thing: str, word: str, known: Sequence[str]) -> str:
    """`no deployment 'stbu'; did you mean 'stub'? (there are: stub, minilm)`. thing: in the singular."""
    word, near = _shown(word), nearest(word, known)
    guess = f"; did you mean {near!r}?" if near else ""
    return f"no {thing} {word!r}{guess} ({listed(known)})"


def _shown(word: str) -> str:
    return word if len(word) <= MOST_SHOWN else word[:MOST_SHOWN] + "…"


def listed(known: Sequence[str]) -> str:
    """`there is: a`, `there are: a, b`, `there are 64: a, b, …`."""
    if not known:
        return "there is none"
    if len(known) > MOST_LISTED:
        return f"there are {len(known)}: {', '.join(known[:MOST_LISTED])}, …"
    return f"there {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"


def no_deployment(word: str, fleet: Fleet) -> str:
    """Why that is no deployment."""
    owner = next((name for name, replicas in fleet.items() if word in replicas), None)
    if owner is not None:
        return f"{word!r} is a replica; expected a deployment, such as {owner!r}"
    return no_such("deployment", word, list(fleet))


def no_replica(word: str, fleet: Fleet) -> str:
    """Why that is no replica."""
    if word in fleet:
        return f"{word!r} is a deployment; expected one of its replicas ({listed(fleet[word])})"
    deployment, _, number = word.rpartition("/")
    if deployment in fleet:  # the number is wrong, and none of the others is meant more than another
        return f"no replica {word!r} ({listed(fleet[deployment])})"
    known = _replicas(fleet)
    meant = f"{nearest(deployment or word, fleet)}/{number}"
    guess = f"; did you mean {meant!r}?" if meant in known else ""
    return f"no replica {word!r}{guess} ({listed(known)})"


def no_deployment_or_replica(word: str, fleet: Fleet) -> str:
    """Why that is neither."""
    return no_replica(word, fleet) if "/" in word else no_deployment(word, fleet)


def _replicas(fleet: Fleet) -> list[str]:
    return [name for replicas in fleet.values() for name in replicas]
