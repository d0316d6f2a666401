"""The native client: what HTTP offers, over one ZeroMQ socket, for programs on the same machine (spec 2, 11).

    async with Client() as client:            # of `stoker serve`; or its name, or a path
        answer = await client.embeddings("hello", model="primary")
        async for event in client.stream_chat([{"role": "user", "content": "hello"}]):
            ...

Same requests, answers, errors and deadlines as over HTTP. Any number of tasks may use one client at once.
Cancelling a task, or leaving a stream, cancels the request in its engine. A supervisor that was restarted is
found again by the next request; what was open when it went fails with NotRunning.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from engine.errors import StokerError
from engine.messages import MAX_BODY_BYTES, Route
from supervisor.host.runtime import RuntimeDir
from supervisor.native.connection import Connection, Waiting
from supervisor.native.errors import BadRequest, TooLarge, error_in
from supervisor.native.messages import LONGEST_TIMEOUT_MS
from supervisor.native.streams import ByteStream, EventStream

Fields = Mapping[str, Any]

DEFAULT_NAME = "default"
"""The supervisor that `stoker serve` starts where no name is given."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Answer(msgspec.Struct, frozen=True):
    """A replica's answer: its status and JSON as over HTTP, who gave it, and the request's id."""

    status: int
    body: bytes
    replica: str
    request_id: str

    def json(self) -> Any:
        """The parsed body. Raises RequestFailed where the replica answered with an error."""
        if self.status >= 400:
            raise error_in(self.body, self.status, replica=self.replica, request_id=self.request_id)
        return _decode(self.body)


class Client:
    """An asyncio client of one supervisor on this machine. target: its name, or its socket's path.

    Use it as a context manager, in one event loop. Every method may raise NotRunning (no supervisor is
    there), NoAnswer (it is frozen) and RequestFailed, whose classes say why there is no answer. timeout_s:
    the caller's limit in seconds; the deployment's own `timeout_ms` applies anyway.
    """

    def __init__(self, target: str | os.PathLike[str] = DEFAULT_NAME) -> None:
        named = isinstance(target, str) and os.sep not in target
        self.path = RuntimeDir(str(target)).clients if named else Path(target)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None

    async def __aenter__(self) -> Self:
        self._context = zmq.Context()
        try:
            await self._connected()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what is open, say goodbye, give the socket back."""
        context, self._context = self._context, None
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._connection is not None:
            self._connection.close()
        if context is not None:
            await asyncio.to_thread(context.term)  # waits for the last words to leave

    # ---------------------------------------------------------------------------------------- the five routes

    async def embeddings(
        self,
        input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """`POST /v1/embeddings`; fields: whatever else its body may hold."""
        return await self._whole(Route.EMBEDDINGS, {"input": input, **fields}, model, timeout_s)

    async def completions(
        self,
        prompt: str | Sequence[int],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """`POST /v1/completions`, answered whole."""
        return await self._whole(Route.COMPLETIONS, {"prompt": prompt, **fields}, model, timeout_s)

    async def chat(
        self,
        messages: Sequence[Fields],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """`POST /v1/chat/completions`, answered whole."""
        return await self._whole(Route.CHAT, {"messages": messages, **fields}, model, timeout_s)

    async def classify(
        self,
        input: str | Sequence[str],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """`POST /v1/classify`."""
        return await self._whole(Route.CLASSIFY, {"input": input, **fields}, model, timeout_s)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """`POST /v1/rerank`."""
        return await self._whole(Route.RERANK, {"query": query, "documents": documents, **fields}, model, timeout_s)

    def stream_completions(
        self,
        prompt: str | Sequence[int],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> EventStream:
        """`POST /v1/completions`, event by event."""
        return self._events(Route.COMPLETIONS, {"prompt": prompt, **fields}, model, timeout_s)

    def stream_chat(
        self,
        messages: Sequence[Fields],
        model: str | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> EventStream:
        """`POST /v1/chat/completions`, event by event."""
        return self._events(Route.CHAT, {"messages": messages, **fields}, model, timeout_s)

    # ------------------------------------------------------------------------------------ any route, as bytes

    async def request(
        self, route: Route, body: bytes | Fields, model: str | None = None, timeout_s: float | None = None
    ) -> Answer:
        """A replica's answer to a body, whatever its status; raises where no replica answered.

        Bytes are sent as they are and read by nobody on the way, so `model` has to be told beside them; of a
        mapping its own `model` counts where none is told.
        """
        waiting = _Unary(asyncio.get_running_loop())
        connection, number = await self._ask(waiting, route, False, body, model, timeout_s)
        try:
            status, answer, replica = await waiting.future
        except asyncio.CancelledError:
            connection.cancel(number)
            raise
        return Answer(status, answer, replica, connection.request_id(number))

    def stream(
        self, route: Route, body: bytes | Fields, model: str | None = None, timeout_s: float | None = None
    ) -> ByteStream:
        """The bytes of a streamed answer as a replica sends them: server-sent events, as over HTTP."""

        async def start(waiting: Waiting) -> tuple[Connection, int]:
            return await self._ask(waiting, route, True, body, model, timeout_s)

        return ByteStream(start)

    # ------------------------------------------------------------------------------------------- inside

    async def _whole(self, route: Route, body: Fields, model: str | None, timeout_s: float | None) -> dict[str, Any]:
        answer = await self.request(route, _with_model(body, model), None, timeout_s)
        parsed: dict[str, Any] = answer.json()
        return parsed

    def _events(self, route: Route, body: Fields, model: str | None, timeout_s: float | None) -> EventStream:
        return EventStream(self.stream(route, {**_with_model(body, model), "stream": True}, None, timeout_s))

    async def _ask(
        self,
        waiting: Waiting,
        route: Route,
        stream: bool,
        body: bytes | Fields,
        model: str | None,
        timeout_s: float | None,
    ) -> tuple[Connection, int]:
        timeout_ms = None if timeout_s is None else _milliseconds(timeout_s)
        if not isinstance(body, bytes):
            if model is None:
                model = body.get("model")
            body = _json(body)
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"a body of {len(body)} bytes; {MAX_BODY_BYTES} are the most")
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = await self._connected()
        return connection, connection.ask(waiting, route, stream, body, model, timeout_ms)

    async def _connected(self) -> Connection:
        """The connection, made anew where there is none: once for all who ask meanwhile."""
        if self._context is None:
            raise StokerError("this client is not open: use it inside 'async with Client() as client'")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(self._context))
        return await asyncio.shield(self._opening)

    async def _open(self, context: zmq.Context[zmq.Socket[bytes]]) -> Connection:
        try:
            self._connection = await Connection.open(context, self.path)
            return self._connection
        finally:
            self._opening = None


class _Unary:
    """A request that waits for one whole answer (`connection.Waiting`)."""

    __slots__ = ("_pieces", "_replica", "future", "give_up_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[tuple[int, bytes, str]] = loop.create_future()
        self.give_up_at = math.inf
        self._pieces: list[bytes] = []
        self._replica = ""

    def answer(self, status: int, body: bytes, replica: str) -> None:
        if not self.future.done():
            self.future.set_result((status, body, replica))

    def chunk(self, data: bytes, replica: str) -> None:
        """An engine that streams where nobody asked for it: its pieces make one body."""
        self._pieces.append(data)
        self._replica = replica

    def end(self) -> None:
        self.answer(200, b"".join(self._pieces), self._replica)

    def fail(self, error: StokerError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _with_model(body: Fields, model: str | None) -> Fields:
    return body if model is None else {"model": model, **body}


def _json(body: Fields) -> bytes:
    try:
        return _encode(body)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"the body cannot be written as JSON: {error}") from None


def _milliseconds(timeout_s: float) -> int:
    if not 0 < timeout_s <= LONGEST_TIMEOUT_MS / 1000:
        raise BadRequest(f"timeout_s is {timeout_s}; it takes seconds from above 0 to a day", param="timeout_s")
    return max(1, math.ceil(timeout_s * 1000))
