"""Answers that a deployment gave before, given again without asking its replica (spec 10). Pure.

Only where one replica serves alone and its card says that its task is deterministic: who that is, is told by `follow`,
and the answers of one incarnation end with it. With several replicas each engine keeps rows instead
(`engine.row_cache`). The key is the request as it came, byte for byte; a body is never read for it.

An answer is given again only while its replica is in rotation by its life. Whether that one is full, backs off or is
ejected does not matter: nothing is sent to it.
"""

from __future__ import annotations

from engine.lru import Recent
from engine.messages import Route
from supervisor.core.dispatch import Member
from supervisor.core.traffic import Traffic

MOST_BYTES = 64 * 1024 * 1024
"""Bound of one deployment's answers, their requests included. 4096 single embeddings of 384 numbers are 20 MiB."""

LONGEST_BODY = 64 * 1024
"""Requests beyond it hold hundreds of inputs and are not the same twice; hashing one of this length takes 30 µs."""

ROUTES = frozenset({Route.EMBEDDINGS, Route.CLASSIFY, Route.RERANK})
"""Generated text is drawn, and streamed: never remembered."""


class ResultCache:
    """The answers of one deployment. hits, misses, traffic: of all its requests that were looked up here so far."""

    def __init__(self, now: float, most_bytes: int = MOST_BYTES) -> None:
        self.member: Member | None = None
        """Whose answers these are; None: nothing is remembered."""
        self.hits = 0
        self.misses = 0
        self.traffic = Traffic(now)
        self._most_bytes = most_bytes
        self._entries = 0
        self._known: Recent[tuple[int, bytes], bytes] = Recent(0, 0)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def held_bytes(self) -> int:
        """What the answers and their requests hold."""
        return self._known.held_bytes

    def follow(self, member: Member | None, entries: int) -> None:
        """Whose answers to remember from now on, and how many; everything else is forgotten."""
        if entries < 1:
            member = None
        if member is self.member and (member is None or entries == self._entries):
            return
        self.member, self._entries = member, entries
        self._known = Recent(entries, self._most_bytes)

    def find(self, route: int, body: bytes, now: float) -> bytes | None:
        """The answer to this very request, counted as one more; None where it has to be asked for."""
        answer = None
        if self.member is not None and self.member.in_rotation and len(body) <= LONGEST_BODY:
            answer = self._known.get((route, body))
        if answer is None:
            self.misses += 1
            return None
        self.hits += 1
        self.traffic.record(now, 0.0)
        return answer

    def keep(self, member: Member, route: int, body: bytes, answer: bytes) -> None:
        """A replica gave this answer, whole and with status 200."""
        if member is self.member and route in ROUTES and len(body) <= LONGEST_BODY:
            self._known.put((route, body), answer, len(body) + len(answer))
