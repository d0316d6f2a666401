"""One request and its answer, before anything is measured: whether the server answers such requests at all."""

from __future__ import annotations

import asyncio
import os

import msgspec

from engine.errors import StokerError
from ui.bench.connection import FAILURES, Connection, Server, clock
from ui.bench.reading import Whole


class NotMeasurable(StokerError):
    """The server does not answer such requests; the text has its own words."""


async def get(server: Server, path: str, key: str | None, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Status and body of a page. Raises NotMeasurable."""
    return await _exchange(server, joined(server.request("GET", path, key), b""), timeout_s)


async def ask_once(server: Server, request: bytes, timeout_s: float) -> None:
    """One request, before anything is measured. Raises NotMeasurable unless it is answered, or refused for want of
    room.
    """
    status, body = await _exchange(server, request, timeout_s)
    if 200 <= status < 300 or status == 429:
        return
    hint = "; --api-key-env names the variable that holds the key" if status == 401 else ""
    raise NotMeasurable(f"{server.url} answers such a request with {status}: {message_of(body)}{hint}")


async def _exchange(server: Server, request: bytes, timeout_s: float) -> tuple[int, bytes]:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader = Whole()

    def done(connection: Connection) -> None:
        if not over.done():
            over.set_result(None)

    connection = Connection(reader, done)
    try:
        await server.connect(connection)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise NotMeasurable(f"no connection to {server.url}: {_why(error)}") from error
    try:
        connection.send(request, clock())
        await asyncio.wait_for(over, timeout_s)
    except TimeoutError:
        raise NotMeasurable(f"{server.url} did not answer within {timeout_s:g} s") from None
    finally:
        connection.close()
    if connection.failure is not None:
        raise NotMeasurable(f"{server.url} did not answer: {FAILURES[connection.failure]}")
    return connection.status, reader.body


def _why(error: Exception) -> str:
    """Why a connection could not be made."""
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)


def message_of(body: bytes) -> str:
    """The message of an error in OpenAI's shape, else how its body begins."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    return str(message) or "nothing"


def joined(head: bytes, body: bytes) -> bytes:
    """A request, of a head up to the value of its content-length."""
    return b"%s%d\r\n\r\n%s" % (head, len(body), body)
