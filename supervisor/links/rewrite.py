"""What is done to a foreign server's bodies: the model's name on the way in and out, errors in our shape (spec 11).

A foreign server may know the model under another name than our callers. Only the `model` at the top of a body is
read and replaced; every other value is copied byte for byte without being looked into, so numbers, escapes and
the order of keys stay as they were. At the top itself blanks are dropped, and of a key that stands twice the last
one counts, which is how every reader takes it.
"""

from __future__ import annotations

import itertools
import re
from http import HTTPStatus

import msgspec

from engine.errors import StokerError
from engine.messages import MAX_BODY_BYTES

EXCERPT_LENGTH = 200
"""Characters of a foreign error page that are shown."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_value = msgspec.json.Decoder(msgspec.Raw)
_name = msgspec.json.Decoder(str | None)
_encode = msgspec.json.Encoder().encode

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BOUNDARIES = (b"\n\n", b"\n\r\n")
_BOUNDARY = re.compile(rb"\n\r?\n")
_MARKUP = re.compile(r"<[^<>]*>")
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


class Broken(StokerError):
    """An exchange with a foreign server came to no answer, or to none that a caller may get.

    Its text says what went wrong; who catches it names the server.
    """


# -------------------------------------------------------------------------------------------- names of models


def to_server(body: bytes, served: str) -> tuple[bytes, str | None]:
    """A request for a server that knows the model as `served`, and the name that its caller used, if any.

    Equal names: the very bytes. A body that is no JSON object, or whose `model` is no text, goes as it is: the
    server says what is wrong with it.
    """
    try:
        fields = _fields.decode(body)
        caller = _name.decode(fields["model"]) if "model" in fields else None
    except _MALFORMED:
        return body, None
    if caller == served:
        return body, caller
    fields["model"] = msgspec.Raw(_encode(served))
    return _encode(fields), caller


def to_caller(body: bytes, served: str, caller: str) -> bytes:
    """An answer with the caller's name for the model where it had the served one.

    Equal names: the very bytes, unread. Raises Broken where it is no JSON.
    """
    if served == caller:
        return body
    try:
        return _renamed(body, served, caller)
    except _MALFORMED as error:
        raise Broken("answered with what is not JSON") from error


class EventRenamer:
    """`to_caller` for server-sent events that may be cut anywhere: an event leaves as soon as it is whole.

    An event whose data is no JSON (`[DONE]`, comments) passes as it is. Memory: one event. Equal names: the very
    bytes, unread and at once.
    """

    def __init__(self, served: str, caller: str) -> None:
        self._served = served
        self._caller = caller
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now. Raises Broken at an event that is larger than any answer may be."""
        if self._served == self._caller:
            return data
        held = self._held
        unseen = max(0, len(held) - 2)  # a boundary may begin in what was held
        held += data
        ends = [at + len(boundary) for boundary in _BOUNDARIES if (at := held.rfind(boundary, unseen)) >= 0]
        end = max(ends, default=0)
        if len(held) - end > MAX_BODY_BYTES:
            raise Broken(f"sent an event of more than {MAX_BODY_BYTES} bytes")
        if not end:
            return b""
        whole = bytes(held[:end])
        del held[:end]
        ends = [0, *(boundary.end() for boundary in _BOUNDARY.finditer(whole)), end]
        return b"".join([self._event(whole[a:b]) for a, b in itertools.pairwise(ends)])

    def flush(self) -> bytes:
        """What is left when the stream ends."""
        rest = bytes(self._held)
        self._held.clear()
        return self._event(rest)

    def _event(self, event: bytes) -> bytes:
        lines = event.splitlines(keepends=True)
        data = b"\n".join([_data_of(line) for line in lines if _is_data(line)])
        try:
            renamed = _renamed(data, self._served, self._caller)
        except _MALFORMED:
            return event
        return event if renamed is data else b"".join(_with_data(lines, renamed))


def _renamed(body: bytes, served: str, caller: str) -> bytes:
    """The body itself where there is nothing to rename. Raises what `_MALFORMED` names."""
    try:
        fields = _fields.decode(body)
    except msgspec.ValidationError:
        _value.decode(body)  # a list or a text has no model; whether it is JSON at all is still to be said
        return body
    try:
        named = "model" in fields and _name.decode(fields["model"]) == served
    except msgspec.ValidationError:
        return body
    if not named:
        return body
    fields["model"] = msgspec.Raw(_encode(caller))
    return _encode(fields)


def _is_data(line: bytes) -> bool:
    return line.startswith(b"data:")


def _data_of(line: bytes) -> bytes:
    return line[5:].rstrip(b"\r\n").removeprefix(b" ")


def _with_data(lines: list[bytes], data: bytes) -> list[bytes]:
    """The lines of an event with other data where its first data line stood."""
    first = next(index for index, line in enumerate(lines) if _is_data(line))
    ending = lines[first][len(lines[first].rstrip(b"\r\n")) :]
    new = [b"data: " + line + ending for line in data.split(b"\n")]
    return [*lines[:first], *new, *(line for line in lines[first:] if not _is_data(line))]


# ----------------------------------------------------------------------------------------------------- errors


def is_json(body: bytes) -> bool:
    """Whether a body is one JSON value."""
    try:
        _value.decode(body)
    except _MALFORMED:
        return False
    return True


def error_body(status: int, body: bytes) -> bytes:
    """The JSON of an error answer: the server's own where it is JSON, else our shape with its page's words."""
    if is_json(body):
        return body
    words = excerpt(body)
    message = f"the attached server answered {said(status)}" + (f": {words}" if words else "")
    kind, code = _kind(status)
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def said(status: int) -> str:
    """A status with its usual words."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _kind(status: int) -> tuple[str, str]:
    """Type and code of an error that only has a status, as OpenAI's clients know them."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error", "overloaded"
    if status >= 500:
        return "server_error", "unavailable" if status == HTTPStatus.SERVICE_UNAVAILABLE else "internal_error"
    return "invalid_request_error", "not_found" if status == HTTPStatus.NOT_FOUND else "invalid_request"


def excerpt(page: bytes) -> str:
    """The first words of a page, without markup, control characters and line breaks."""
    text = page[: 100 * EXCERPT_LENGTH].decode("utf-8", errors="replace")
    text = text[max(0, text.lower().find("<body")) :]
    words = _BLANKS.sub(" ", _MARKUP.sub(" ", text)).strip()
    return words if len(words) <= EXCERPT_LENGTH else words[:EXCERPT_LENGTH] + "…"
