"""What a request means: routes by a table, bodies passed through as bytes (spec 2, 11).

Of a request's body only `model` and `stream` are read here; everything else is the engine's. The way of one request:
head -> `judge` -> body -> `model` -> deployment -> `Exchanges.submit`, and from there the replica's answer goes to the
sink that was given along.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import urllib.parse
from typing import Protocol

import httptools
import msgspec

from engine import bodies
from engine.messages import Route
from supervisor.exchanges import Exchanges, Failure, Lane
from supervisor.gateway import errors
from supervisor.gateway.connection import Connection
from supervisor.gateway.errors import HttpError
from supervisor.gateway.reader import Request
from supervisor.gateway.sinks import StreamSink, UnarySink, head, reply_error


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


ROUTES: dict[bytes, Route] = {
    b"/v1/embeddings": Route.EMBEDDINGS,
    b"/v1/completions": Route.COMPLETIONS,
    b"/v1/chat/completions": Route.CHAT,
    b"/v1/classify": Route.CLASSIFY,
    b"/v1/rerank": Route.RERANK,
}
ADMIN_SCALE = "/v1/admin/scale"
OPEN_PAGES = frozenset({"/health", "/ready"})
"""Answered without an API key: probes have none."""
LONGEST_TIMEOUT_MS = 86_400_000


class Gateway:
    """The application behind the HTTP server. `api_key`: what callers must present; None lets everybody in."""

    def __init__(self, exchanges: Exchanges, directory: Directory, pages: Pages, api_key: str | None) -> None:
        self._exchanges = exchanges
        self._directory = directory
        self._pages = pages
        self._api_key = None if api_key is None else b"Bearer " + api_key.encode()
        self._peek = msgspec.json.Decoder(Peek)
        self._prefix = b"req-%b-%%x" % secrets.token_hex(4).encode()
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------------------------------------- connection.Application

    def judge(self, request: Request) -> HttpError | None:
        """Everything that can be said before the body is read: what is refused here is not waited for."""
        route = ROUTES.get(request.target)
        if route is None:
            request.path = _path(request.target)
            route = ROUTES.get(request.path.encode())
        if self._api_key is not None and request.path not in OPEN_PAGES and (why := self._why_no_key(request)):
            return HttpError(errors.UNAUTHORIZED, why)
        if route is None:
            return None
        request.route = route
        if request.method != b"POST":
            method, path = request.method.decode(), request.target.decode("latin-1")
            return HttpError(errors.METHOD_NOT_ALLOWED, f"{path} takes POST, not {method}")
        if (limit := request.headers.get(b"x-request-timeout-ms")) is not None and not _is_timeout(limit):
            found = repr(limit[:40].decode("latin-1"))
            message = f"X-Request-Timeout-Ms is {found}; it takes whole milliseconds from 1 to a day"
            return HttpError(errors.BAD_REQUEST, message, "X-Request-Timeout-Ms")
        return None

    def serve(self, request: Request, connection: Connection) -> None:
        if request.route:
            self._submit(request, connection)
        elif request.method in (b"GET", b"HEAD"):
            page = self._pages.get(request.path)
            if page is None:
                raise HttpError(
                    errors.NOT_FOUND, f"there is no {request.path}; see GET /v1/models, POST /v1/embeddings"
                )
            self._show(page, request, connection)
        elif request.path == ADMIN_SCALE and request.method == b"POST":
            self._show(self._pages.scale(request.body), request, connection)
        else:
            raise HttpError(errors.NOT_FOUND, f"there is no {request.method.decode()} {request.path}")

    def refuse(self, request: Request, error: HttpError, connection: Connection) -> None:
        reply_error(connection, self._request_id(request), error.kind, str(error), error.param)

    def fail(self, request: Request, connection: Connection) -> None:
        request.keep_alive = False
        message = "a mistake of the supervisor's own; its log says more"
        reply_error(connection, self._request_id(request), errors.INTERNAL, message)

    # ------------------------------------------------------------------------------------------- inside

    def _submit(self, request: Request, connection: Connection) -> None:
        if self._directory.stopping:
            request.keep_alive = False
            raise HttpError(errors.OF_FAILURE[Failure.STOPPING], "the supervisor is stopping")
        try:
            peek = bodies.decode(self._peek, request.body)
        except bodies.BadBody as error:
            raise HttpError(errors.BAD_REQUEST, error.fault.sentence, error.fault.param) from None
        lane = self._directory.find(peek.model)
        if lane is None:
            kind = errors.BAD_REQUEST if peek.model is None else errors.MODEL_NOT_FOUND
            raise HttpError(kind, self._directory.why_none(peek.model), "model")
        limit = request.headers.get(b"x-request-timeout-ms")
        limit_s = None if limit is None else int(limit) / 1000
        stream = peek.stream is True
        sink = (StreamSink if stream else UnarySink)(self._exchanges, connection, self._request_id(request))
        exchange = self._exchanges.submit(lane, request.route, stream, request.body, sink, limit_s)
        if exchange is not None:
            sink.exchange = exchange
            connection.caller = sink

    def _show(self, page: Page, request: Request, connection: Connection) -> None:
        lines = head(b"content-type: %b\r\n" % page.content_type, self._request_id(request), "")
        connection.respond(page.status, lines, page.body)

    def _request_id(self, request: Request) -> bytes:
        """The caller's own, where it can be sent back as it is."""
        own = request.headers.get(b"x-request-id")
        if own is not None and 0 < len(own) <= 128 and own.isascii():
            return own
        return self._prefix % next(self._numbers)

    def _why_no_key(self, request: Request) -> str | None:
        assert self._api_key is not None
        given = request.headers.get(b"authorization")
        if given is None:
            return "an API key is needed: send it as 'Authorization: Bearer KEY'"
        return None if hmac.compare_digest(given, self._api_key) else "the API key is not right"


def _path(target: bytes) -> str:
    """The path of a target, without query, percent-decoded. A target that has none stays as it is, and is not found."""
    try:
        path: bytes = httptools.parse_url(target).path or b"/"
    except httptools.HttpParserInvalidURLError:
        path = target
    return urllib.parse.unquote(path.decode("latin-1"))


def _is_timeout(value: bytes) -> bool:
    return value.isdigit() and len(value) <= 8 and 0 < int(value) <= LONGEST_TIMEOUT_MS
