"""How much memory the bodies of requests may take together, whoever sent them (spec 11). Pure.

One body has its own limit; this one is for all of them, over every connection, from the first byte that came of a body
until its request is answered, or longer: until an engine has taken it that stood still meanwhile. What was only
announced holds nothing: else a client that announces much and sends nothing would keep everybody else out.

Small bodies are not counted and never refused. The number of connections bounds them, as it bounds heads; so those who
fill the room with large bodies do not touch whoever asks in the usual way.
"""

from __future__ import annotations

SMALL_BYTES = 64 * 1024
"""Bodies up to this size are not counted."""
CALM_LOOKS = 3
"""So many looks in a row find little before a flood of bodies counts as over."""


class BodyRoom:
    """Room for so many bytes of large bodies."""

    __slots__ = ("held", "most", "peak", "refused")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.peak = 0
        """The most that was held, since somebody last looked."""
        self.refused = 0
        """Bodies that found no room, since somebody last told of them."""

    def fits(self, size: int) -> bool:
        """Whether a body of that size would find room now; one that would not is counted."""
        if size <= SMALL_BYTES or self.held + size <= self.most:
            return True
        self.refused += 1
        return False

    def hold(self, held: int, size: int) -> int | None:
        """A body that holds `held` bytes is `size` long now: what it holds then; None where there is no room."""
        if size <= SMALL_BYTES:
            return 0
        if self.held + size - held > self.most:
            self.refused += 1
            return None
        self.held += size - held
        self.peak = max(self.peak, self.held)
        return size

    def keep(self, size: int) -> None:
        """A body is still there although its request is over: it holds its part anew, until it is given back. For a
        moment both may count, so this may be more than there is; then nobody else finds room."""
        self.held += size

    def give_back(self, held: int) -> None:
        """A body is needed no longer."""
        self.held -= held

    def why_none(self) -> str:
        """The sentence for a body that found no room."""
        return (
            f"requests' bodies fill the {self.most // 1024**2} MiB that they may take together; try again in a moment"
        )


class Ebb:
    """Whether a flood of bodies is over. Told at each look, at even times, the most that was held since the last one.

    flood: bytes that make one. calm: bytes that are none, if it stays at those.
    """

    def __init__(self, flood: int, calm: int) -> None:
        self._flood = flood
        self._calm = calm
        self._looks_left = 0

    def look(self, peak: int) -> bool:
        """True once after each flood, when it was calm for `CALM_LOOKS` looks."""
        if peak > self._flood or (peak > self._calm and self._looks_left):
            self._looks_left = CALM_LOOKS
            return False
        if not self._looks_left:
            return False
        self._looks_left -= 1
        return not self._looks_left
