"""The caller's side of an exchange in the gateway: what an answer is put into until it can be sent."""

from __future__ import annotations

import asyncio

from supervisor.exchanges import Failure


class _Watched:
    """A sink whose caller may leave before the end; `watcher` waits for that."""

    watcher: asyncio.Task[None] | None = None

    def stop_watching(self) -> None:
        """The exchange is over, or its caller gone."""
        if self.watcher is not None:
            self.watcher.cancel()


class UnarySink(_Watched):
    """One answer, resolved once. `replica` is None while there is none."""

    __slots__ = ("body", "done", "failure", "message", "replica", "status")

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.body = b""
        self.replica: str | None = None
        self.failure: Failure | None = None
        self.message = ""

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self.status, self.body, self.replica = status, body, replica
        self._resolve()

    def chunk(self, data: bytes, replica: str) -> None:
        """An engine that streams where nobody asked for it: its pieces make one body."""
        self.status, self.replica = 200, replica
        self.body += data

    def end(self) -> None:
        self._resolve()

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        self.failure, self.message, self.replica = failure, message, replica
        self._resolve()

    def leave(self) -> None:
        """The caller is gone; nobody reads the answer."""
        self.replica = None
        self._resolve()

    def _resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class StreamSink(_Watched):
    """The pieces of a streamed answer, in order, and how it ended. `left`: the caller is gone."""

    def __init__(self) -> None:
        self.replica: str | None = None
        self.whole: tuple[int, bytes, str] | None = None
        self.failed_by: str | None = None
        self.failure: Failure | None = None
        self.message = ""
        self.over = False
        self.left = False
        self._pieces: list[bytes] = []
        self._news = asyncio.Event()

    async def ready(self) -> None:
        """Wait until there is something to send, or the end."""
        await self._news.wait()
        if not self.over:
            self._news.clear()

    def take(self) -> bytes:
        """The pieces since the last call, as one."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self.whole = (status, body, replica)
        self._end()

    def chunk(self, data: bytes, replica: str) -> None:
        self.replica = replica
        self._pieces.append(data)
        self._news.set()

    def end(self) -> None:
        self._end()

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        self.failure, self.message, self.failed_by = failure, message, replica
        self._end()

    def leave(self) -> None:
        """The caller is gone; nobody reads the rest."""
        self.left = True
        self._end()

    def _end(self) -> None:
        self.over = True
        self._news.set()
