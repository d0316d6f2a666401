"""What a load is to do, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ui.bench.bodies import Shape
from ui.bench.measured import Measured


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do to a server.

    clients: of a closed load; rate: requests a second of an open one; one of the two. even: arrivals at equal
    distances, else as chance brings them (Poisson). seconds, requests: where it ends, the first of them that is
    reached. warmup_s: load before that, which is not counted. timeout_s: limit of one request.
    """

    shape: Shape
    clients: int | None = 8
    rate: float | None = None
    even: bool = False
    seconds: float | None = 10.0
    requests: int | None = None
    warmup_s: float = 0.0
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Far:
    """How far a run is. share: of it that is done, 0 to 1; warming: nothing is counted yet."""

    share: float
    seconds: float
    warming: bool
    so_far: Measured
    in_flight: int


OnTick = Callable[[Far], None]
