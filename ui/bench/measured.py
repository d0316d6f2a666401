"""What a run found: every latency kept, so that percentiles are those of the answers themselves."""

from __future__ import annotations

import collections
import math
from array import array
from collections.abc import Sequence

import msgspec

REFUSALS = frozenset({"429", "503"})
"""Failures by which a server says that it has no room: a finding, not a fault."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float
    mean: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in numbers. requests: those that ended, answered or not; rates are of the answered ones.

    seconds: from the first request to the last answer. failures: by status or kind; messages: what the server said with
    the first of a status. first_token_ms, between_tokens_ms: None where nothing was streamed. client_cpu: share of a
    core that the load generator itself used. unfinished: requests that had not ended when the run was interrupted; they
    are counted nowhere else.
    """

    requests: int
    answered: int
    failures: dict[str, int]
    messages: dict[str, str] = {}
    seconds: float
    requests_per_s: float
    inputs_per_s: float
    tokens_per_s: float
    latency_ms: Spread | None
    first_token_ms: Spread | None = None
    between_tokens_ms: Spread | None = None
    client_cpu: float = 0.0
    interrupted: bool = False
    unfinished: int = 0

    @property
    def sound(self) -> bool:
        """Whether something was answered, and whatever was not was refused for want of room."""
        return self.answered > 0 and self.failures.keys() <= REFUSALS


class Measured:
    """Filled while a run goes on. Times in seconds; `inputs`: of the answered requests; `messages`: of the server,
    with the first answer of each status that is a failure.
    """

    def __init__(self) -> None:
        self.latencies = array("d")
        self.first = array("d")
        self.gaps = array("d")
        self.inputs = 0
        self.tokens = 0
        self.failures: collections.Counter[str] = collections.Counter()
        self.messages: dict[str, str] = {}

    @property
    def requests(self) -> int:
        """Those that ended."""
        return len(self.latencies) + self.failures.total()

    def summary(self, seconds: float, client_cpu: float, interrupted: bool, unfinished: int) -> Summary:
        """The numbers of a run that took so long."""
        answered = len(self.latencies)
        per = 1.0 / seconds if seconds > 0 else 0.0
        return Summary(
            requests=self.requests,
            answered=answered,
            failures=dict(self.failures.most_common()),
            messages=self.messages,
            seconds=seconds,
            requests_per_s=answered * per,
            inputs_per_s=self.inputs * per,
            tokens_per_s=self.tokens * per,
            latency_ms=spread(self.latencies),
            first_token_ms=spread(self.first),
            between_tokens_ms=spread(self.gaps),
            client_cpu=client_cpu,
            interrupted=interrupted,
            unfinished=unfinished,
        )


def spread(seconds: Sequence[float]) -> Spread | None:
    """Percentiles by nearest rank; None where there is nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000

    mean = math.fsum(ordered) / len(ordered) * 1000
    return Spread(p50=at(0.5), p90=at(0.9), p99=at(0.99), max=ordered[-1] * 1000, mean=mean)
