"""What dispatch knows of a way to a replica: send an exchange, cancel it, ask for health. Nothing else."""

from __future__ import annotations

from typing import Protocol

from engine.messages import Request


class Carrier(Protocol):
    """A way to one physical replica. What comes back is told to `supervisor.exchanges.Exchanges`."""

    def send(self, request: Request, body: bytes) -> bool:
        """Hand a request over; False where the replica is gone, so that it may be tried elsewhere."""

    def cancel(self, exchange: int) -> None:
        """Nobody waits for that exchange any more. Never fails."""

    def ask(self) -> None:
        """Ask for health now. Never fails."""
