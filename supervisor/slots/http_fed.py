"""A slot that is fed over HTTP: what comes back from its server goes to its exchanges (`links.http.Receiver`)."""

from __future__ import annotations

from supervisor.slots.base import Slot


class HttpFed(Slot):
    """The half of the receiver that attached and command slots share. What comes for a gone target is dropped."""

    def on_answer(self, number: int, status: int, body: bytes) -> None:
        if self.target is not None:
            self._home.exchanges.on_answer(self.target, number, status, body)

    def on_chunk(self, number: int, data: bytes) -> None:
        if self.target is not None:
            self._home.exchanges.on_chunk(self.target, number, data)

    def on_end(self, number: int) -> None:
        if self.target is not None:
            self._home.exchanges.on_end(self.target, number)

    def on_broken(self, number: int, reason: str) -> None:
        if self.target is not None:
            self._home.exchanges.on_broken(self.target, number, reason)
