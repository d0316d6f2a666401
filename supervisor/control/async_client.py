"""The control client for an event loop: `ask` for answers, `notices` for what subscriptions bring."""

from __future__ import annotations

import asyncio
import itertools

import zmq
import zmq.asyncio

from engine.errors import ProtocolError
from supervisor.control.client import ANSWER_S, NoAnswer, check_listening, unless_refused
from supervisor.control.messages import (
    Answer,
    AnyCommand,
    FromSupervisor,
    Reply,
    decode_from_supervisor,
    encode_call,
)


class AsyncControlClient:
    """A client for an event loop: `ask` for answers, `notices` for what subscriptions bring."""

    def __init__(self, path: str) -> None:
        check_listening(path)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{path}")
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._path = path
        self.notices: asyncio.Queue[FromSupervisor] = asyncio.Queue(maxsize=10_000)
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def ask(self, command: AnyCommand, timeout_s: float = ANSWER_S) -> Answer:
        """The answer to one command. Raises CommandRefused, NotRunning, NoAnswer."""
        number = next(self._ids)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._socket.send(encode_call(number, command))
            return unless_refused(await asyncio.wait_for(answer, timeout_s))
        except TimeoutError:
            check_listening(self._path)
            raise NoAnswer("the supervisor does not answer; is its process stopped?") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Stop reading and give the socket back."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._socket.close()
        self._context.term()

    async def _read(self) -> None:
        while True:
            try:
                message = decode_from_supervisor(await self._socket.recv())
            except ProtocolError as error:
                self._fail(error)
                return
            if not isinstance(message, Reply):
                await self.notices.put(message)
            elif (answer := self._waiting.get(message.id)) is not None and not answer.done():
                answer.set_result(message.answer)

    def _fail(self, error: ProtocolError) -> None:
        """The other side speaks another language: nobody who waits will be answered."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
