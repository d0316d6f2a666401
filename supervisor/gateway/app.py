"""The HTTP side as one bare ASGI function: routes by a table, bodies passed through as bytes (spec 2, 11).

Of a request's body only `model` and `stream` are read here; everything else is the engine's. The way of one request:
body -> `model` -> deployment -> `Exchanges.submit` -> a future that the replica's answer resolves -> response.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec

from engine import bodies
from engine.messages import MAX_BODY_BYTES, Route
from supervisor.exchanges import Exchange, Exchanges, Failure, Lane
from supervisor.gateway import errors
from supervisor.gateway.errors import HttpError
from supervisor.gateway.sinks import StreamSink, UnarySink

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

WATCH_AFTER_S = 0.05
"""A request that takes longer is watched for its caller's leaving. Most are answered before, and cost no watcher."""

JSON = (b"content-type", b"application/json")
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


class Peek(msgspec.Struct, frozen=True):
    """What the supervisor reads of a body."""

    model: str | None = None
    stream: bool | None = None


class Page(msgspec.Struct, frozen=True):
    """What a page of the status side answers."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"


class Pages(Protocol):
    """The status side (`gateway.status`)."""

    def get(self, path: str) -> Page | None:
        """The page under a path; None where there is none."""

    def scale(self, body: bytes) -> Page:
        """`POST /v1/admin/scale`."""


class Directory(Protocol):
    """Who answers which model (`supervisor.directory`)."""

    @property
    def stopping(self) -> bool:
        """No request is taken any more."""

    def find(self, model: str | None) -> Lane | None:
        """The deployment that a request's `model` means."""

    def why_none(self, model: str | None) -> str:
        """The sentence for a request whose `model` means no deployment."""


ROUTES: dict[str, Route] = {
    "/v1/embeddings": Route.EMBEDDINGS,
    "/v1/completions": Route.COMPLETIONS,
    "/v1/chat/completions": Route.CHAT,
    "/v1/classify": Route.CLASSIFY,
    "/v1/rerank": Route.RERANK,
}
ADMIN_SCALE = "/v1/admin/scale"
OPEN_PAGES = frozenset({"/health", "/ready"})
"""Answered without an API key: probes have none."""


class Gateway:
    """The ASGI application. `api_key`: what callers must present; None lets everybody in."""

    def __init__(self, exchanges: Exchanges, directory: Directory, pages: Pages, api_key: str | None) -> None:
        self._exchanges = exchanges
        self._directory = directory
        self._pages = pages
        self._api_key = None if api_key is None else b"Bearer " + api_key.encode()
        self._peek = msgspec.json.Decoder(Peek)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = b"req-%s-%x" % (self._prefix.encode(), next(self._numbers))
        try:
            await self._route(scope, receive, send, request_id)
        except HttpError as error:
            await _reply_error(send, error, request_id)

    async def _route(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        path, method = scope["path"], scope["method"]
        route = ROUTES.get(path)
        facts = _Facts(scope["headers"])
        if facts.request_id is not None:
            request_id = facts.request_id
        if self._api_key is not None and path not in OPEN_PAGES:
            self._check_key(facts)
        if route is not None:
            if method != "POST":
                raise HttpError(errors.METHOD_NOT_ALLOWED, f"{path} takes POST, not {method}")
            body = await _read_body(receive, facts)
            await self._serve(route, body, facts, receive, send, request_id)
        elif method in ("GET", "HEAD"):
            page = self._pages.get(path)
            if page is None:
                raise HttpError(errors.NOT_FOUND, f"there is no {path}; see GET /v1/models, POST /v1/embeddings")
            await _reply(send, page.status, page.body, [(b"content-type", page.content_type)], request_id)
        elif path == ADMIN_SCALE and method == "POST":
            page = self._pages.scale(await _read_body(receive, facts))
            await _reply(send, page.status, page.body, [JSON], request_id)
        else:
            raise HttpError(errors.NOT_FOUND, f"there is no {method} {path}")

    def _check_key(self, facts: _Facts) -> None:
        assert self._api_key is not None
        if facts.authorization is None:
            raise HttpError(errors.UNAUTHORIZED, "an API key is needed: send it as 'Authorization: Bearer KEY'")
        if not hmac.compare_digest(facts.authorization, self._api_key):
            raise HttpError(errors.UNAUTHORIZED, "the API key is not right")

    async def _serve(
        self, route: Route, body: bytes, facts: _Facts, receive: Receive, send: Send, request_id: bytes
    ) -> None:
        if self._directory.stopping:
            raise _failed(Failure.STOPPING, "the supervisor is stopping")
        peek = self._peek_at(body)
        lane = self._directory.find(peek.model)
        if lane is None:
            kind = errors.BAD_REQUEST if peek.model is None else errors.MODEL_NOT_FOUND
            raise HttpError(kind, self._directory.why_none(peek.model), "model")
        if peek.stream:
            await self._stream(route, lane, body, facts, receive, send, request_id)
        else:
            await self._answer(route, lane, body, facts, receive, send, request_id)

    async def _answer(
        self, route: Route, lane: Lane, body: bytes, facts: _Facts, receive: Receive, send: Send, request_id: bytes
    ) -> None:
        sink = UnarySink()
        exchange = self._exchanges.submit(lane, route, False, body, sink, facts.timeout_s)
        if exchange is not None:
            watch = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch, exchange, receive, sink)
            try:
                await sink.done
            finally:
                watch.cancel()
                sink.stop_watching()
                self._exchanges.cancel(exchange)
        if sink.failure is not None:
            raise _failed(sink.failure, sink.message, sink.replica)
        if sink.replica is None:
            return
        replica = (b"x-stoker-replica", sink.replica.encode())
        await _reply(send, sink.status, sink.body, [JSON, replica], request_id)

    async def _stream(
        self, route: Route, lane: Lane, body: bytes, facts: _Facts, receive: Receive, send: Send, request_id: bytes
    ) -> None:
        sink = StreamSink()
        exchange = self._exchanges.submit(lane, route, True, body, sink, facts.timeout_s)
        if exchange is not None:
            self._watch(exchange, receive, sink)
        try:
            await sink.ready()
            if sink.whole is not None:
                status, answer, replica = sink.whole
                await _reply(send, status, answer, [JSON, (b"x-stoker-replica", replica.encode())], request_id)
            elif sink.replica is None and sink.failure is not None:
                raise _failed(sink.failure, sink.message, sink.failed_by)
            elif not sink.left:
                await self._pour(sink, send, request_id)
        finally:
            sink.stop_watching()
            if exchange is not None:
                self._exchanges.cancel(exchange)

    async def _pour(self, sink: StreamSink, send: Send, request_id: bytes) -> None:
        """Send the pieces as they come; a stream that breaks off ends with an error event, never silently."""
        assert sink.replica is not None
        headers = [
            EVENT_STREAM,
            (b"cache-control", b"no-cache"),
            (b"x-stoker-replica", sink.replica.encode()),
            (b"x-request-id", request_id),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not sink.left:
            over = sink.over  # read before the pieces: what comes while they are sent is taken in the next turn
            if data := sink.take():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if over:
                break
            await sink.ready()
        last = b""
        if sink.failure is not None:
            kind = errors.OF_FAILURE[sink.failure]
            last = b"data: " + errors.body(kind, sink.message) + b"\n\n"
        elif sink.whole is not None:
            last = b"data: " + sink.whole[1] + b"\n\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _watch(self, exchange: Exchange, receive: Receive, sink: UnarySink | StreamSink) -> None:
        """Notice when the caller leaves: cancel its exchange in the engine (spec 6)."""

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._exchanges.cancel(exchange)
            sink.leave()

        sink.watcher = asyncio.get_running_loop().create_task(until_gone())

    def _peek_at(self, body: bytes) -> Peek:
        try:
            return bodies.decode(self._peek, body)
        except bodies.BadBody as error:
            raise HttpError(errors.BAD_REQUEST, error.fault.sentence, error.fault.param) from None


class _Facts:
    """What the gateway reads of the request's headers."""

    __slots__ = ("authorization", "length", "request_id", "timeout_s")

    def __init__(self, headers: Headers) -> None:
        self.authorization: bytes | None = None
        self.length: int | None = None
        self.request_id: bytes | None = None
        self.timeout_s: float | None = None
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value) if value.isdigit() else None
            elif name == b"authorization":
                self.authorization = value
            elif name == b"x-request-timeout-ms":
                self.timeout_s = _timeout(value)
            elif name == b"x-request-id" and 0 < len(value) <= 128 and value.isascii():
                self.request_id = value


def _timeout(value: bytes) -> float:
    if not value.isdigit() or not 0 < int(value) <= 86_400_000:
        raise HttpError(
            errors.BAD_REQUEST,
            f"X-Request-Timeout-Ms is {value[:40].decode('latin-1')!r}; it takes whole milliseconds from 1 to a day",
            "X-Request-Timeout-Ms",
        )
    return int(value) / 1000


async def _read_body(receive: Receive, facts: _Facts) -> bytes:
    """The whole body. Raises HttpError 413 as soon as it is known to be too large."""
    if facts.length is not None and facts.length > MAX_BODY_BYTES:
        raise HttpError(errors.TOO_LARGE, f"a body of {facts.length} bytes; {MAX_BODY_BYTES} are the most")
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    pieces, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise HttpError(errors.TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes, which are the most")
    return b"".join(pieces)


async def _reply(send: Send, status: int, body: bytes, headers: Headers, request_id: bytes) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    headers.append((b"x-request-id", request_id))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _reply_error(send: Send, error: HttpError, request_id: bytes) -> None:
    headers = [JSON, *error.kind.headers]
    if error.replica is not None:
        headers.append((b"x-stoker-replica", error.replica.encode()))
    await _reply(send, error.kind.status, errors.body(error.kind, str(error), error.param), headers, request_id)


def _failed(failure: Failure, message: str, replica: str | None = None) -> HttpError:
    return HttpError(errors.OF_FAILURE[failure], message, replica=replica)
