"""A slot with somebody else's server behind it: probed, fed, never started or stopped (spec 10)."""

from __future__ import annotations

from supervisor.core.lifecycle import State
from supervisor.slots.base import AttachedMake, Facts, Home, Intent
from supervisor.slots.http_fed import HttpFed

KIND = "attached"
METRICS_PATH = "/metrics"


class AttachedSlot(HttpFed):
    """One incarnation is one attachment."""

    managed = False

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: AttachedMake) -> None:
        super().__init__(home, deployment, number, born, make)
        self._make = make

    def start(self) -> None:
        self._begin()
        self.started_by = KIND
        self._move(State.STARTING)
        self._way = self._home.http_link.carrier(self._make.endpoint, self._make.model, self.deployment, self)

    def facts(self, now: float) -> Facts:
        age = now - self._began if self._way is not None else 0.0
        return Facts(device="attached", endpoint=self._make.endpoint, age_s=age)

    def kill(self, why: str) -> None:
        """There is no process of ours: let go of it, and attach again; where it was leaving, it leaves now."""
        if self.state is State.DRAINING:
            self.cut_drain()
            return
        self._unpool(why)
        self._hang_up()
        self._move(State.RESTARTING, why)
        self.intent = Intent.AGAIN
        self._gone()

    def tick(self, now: float) -> None:
        """Its probe has a clock of its own."""

    def close(self) -> None:
        self._hang_up()

    def _has_process(self) -> bool:
        return False

    def _end(self) -> None:
        self._hang_up()
        self._gone()

    def _metrics_path(self) -> str:
        return METRICS_PATH

    def _waits_for_server(self) -> bool:
        """Whoever takes it out wants to know when its server is idle. Where only Stoker leaves, or attaches again,
        nothing ends for the server, so there is nothing to wait for."""
        return super()._waits_for_server() and self.intent is not Intent.AGAIN and not self._home.stopping
