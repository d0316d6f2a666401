"""Bytes to requests: the same ones wherever the bytes are cut, and nothing that two readers could read differently."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import MAX_BODY_BYTES
from supervisor.core.body_room import BodyRoom
from supervisor.gateway import reader as reader_module
from supervisor.gateway.errors import HttpError
from supervisor.gateway.reader import MAX_HEAD_BYTES, Reader, Request

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


def reader() -> Reader:
    return Reader(lambda request: None, BodyRoom(MAX_BODY_BYTES))


def read(*pieces: bytes) -> list[Request]:
    """The requests in some bytes."""
    fed = reader()
    for piece in pieces:
        fed.feed(piece)
    return list(fed.ready)


def with_length(target: bytes, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX-Request-Id: a b\r\n\r\n%b" % (
        target,
        len(body),
        body,
    )


def chunked(target: bytes, pieces: list[bytes]) -> bytes:
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    head = b"PUT %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nx-request-id: a b\r\n\r\n" % target
    return head + chunks + b"0\r\nx-request-id: of a trailer\r\n\r\n"


def without_body(target: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: x\r\nx-request-id: a b\r\n\r\n" % target


TARGETS = st.text("abc/%20?=", min_size=1, max_size=12).map(lambda text: b"/" + text.encode())
REQUESTS = st.one_of(
    st.tuples(TARGETS, st.just(b"")).map(lambda one: (without_body(one[0]), one[0], b"")),
    st.tuples(TARGETS, st.binary(max_size=60)).map(lambda one: (with_length(*one), *one)),
    st.tuples(TARGETS, st.lists(st.binary(max_size=20), max_size=4)).map(
        lambda one: (chunked(*one), one[0], b"".join(one[1]))
    ),
)


@settings(max_examples=150, deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=4), cuts=st.lists(st.integers(0, 700), max_size=12))
def test_requests_are_the_same_wherever_their_bytes_are_cut(
    requests: list[tuple[bytes, bytes, bytes]], cuts: list[int]
) -> None:
    data = b"".join(raw for raw, _, _ in requests)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    found = read(*(data[start:end] for start, end in itertools.pairwise(places)))
    assert [(request.target, request.body) for request in found] == [(target, body) for _, target, body in requests]
    assert all(request.headers[b"x-request-id"] == b"a b" for request in found)
    assert all(request.refusal is None and request.keep_alive for request in found)


def test_byte_by_byte_too() -> None:
    data = with_length(b"/a", b"body") + chunked(b"/b", [b"bo", b"dy"]) + without_body(b"/c")
    found = read(*(bytes([byte]) for byte in data))
    assert [(request.target, request.body) for request in found] == [(b"/a", b"body"), (b"/b", b"body"), (b"/c", b"")]


SMUGGLING = {
    "a length and a coding": HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding and a length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "the same length twice": HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"content-length: 3, 3\r\n\r\nabc",
    "a signed length": HEAD + b"content-length: +3\r\n\r\nabc",
    "an endless length": HEAD + b"content-length: 99999999999999999999999999\r\n\r\nabc",
    "another coding": HEAD + b"transfer-encoding: gzip\r\n\r\nabc",
    "a coding nearly called chunked": HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "two codings in two headers": HEAD + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": HEAD + b"content-length : 3\r\n\r\nabc",
    "a folded header": HEAD + b"a: b\r\n content-length: 3\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nhost: x\n\n",
    "a bare carriage return": HEAD + b"a: b\rcontent-length: 3\r\n\r\n",
    "a zero byte": HEAD + b"a: b\0c\r\n\r\n",
    "a signed chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "an endless chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk with bare line feeds": HEAD + b"transfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "a length in the trailer": HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 3\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET / HTTP/0.9\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an unknown method": b"FOO / HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_what_two_readers_could_read_differently_is_refused_whole(name: str) -> None:
    first, *_ = read(SMUGGLING[name] + NEXT)
    assert first.refusal is not None and first.refusal.kind.status == 400
    assert first.keep_alive is False or name in ("no host", "two hosts", "two codings in two headers")


@pytest.mark.parametrize("step", [10**9, 1000, 17])
def test_a_head_without_end_is_refused_however_it_comes(step: int) -> None:
    data = HEAD + b"x: " + b"y" * (MAX_HEAD_BYTES + 1000)
    for end in (b"\r\n\r\n", b""):
        whole = data + end
        (request,) = read(*(whole[start : start + step] for start in range(0, len(whole), step)))
        assert request.refusal is not None and request.refusal.kind.status == 431


def test_thousands_of_upgrades_in_one_piece_are_thousands_of_requests() -> None:
    asked = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: b\r\n\r\n"
    assert [request.target for request in read(asked * 3000 + NEXT)] == [b"/a"] * 3000 + [b"/smuggled"]


def test_requests_that_come_together_are_not_a_large_head() -> None:
    many = NEXT * (2 * MAX_HEAD_BYTES // len(NEXT))
    for cut in (len(NEXT) - 5, 5):
        requests = read(many + NEXT[:cut], NEXT[cut:])
        assert all(request.refusal is None for request in requests)
        assert len(requests) == 2 * MAX_HEAD_BYTES // len(NEXT) + 1
    big = with_length(b"/", b"y" * 3 * MAX_HEAD_BYTES)
    assert [request.refusal for request in read(big[:1000], big[1000:] + NEXT[:-5], NEXT[-5:])] == [None, None]


@pytest.mark.parametrize("start", [b"0\r\nx: ", b"0\r\n", b"3;x="])
def test_a_trailer_or_an_extension_without_end_is_refused(start: bytes) -> None:
    fed = reader()
    fed.feed(HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n" + start)
    piece = b"a: b\r\n" * 100 if start == b"0\r\n" else b"y" * 600
    for _ in range(2 * MAX_HEAD_BYTES // len(piece)):
        fed.feed(piece)
    (request,) = fed.ready
    assert fed.broken and request.refusal is not None and request.refusal.kind.status == 431


def test_a_body_in_many_small_pieces_is_not_a_large_head() -> None:
    fed = reader()
    fed.feed(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    for byte in b"1;a=b\r\nx\r\n" * 20_000 + b"0\r\na: b\r\n\r\n":
        fed.feed(bytes([byte]))
    (request,) = fed.ready
    assert request.refusal is None and len(request.body) == 20_000


def test_a_length_with_thousands_of_zeros_is_that_length() -> None:
    (request,) = read(HEAD + b"content-length: " + b"0" * 6000 + b"3\r\n\r\nabc")
    assert request.refusal is None and request.body == b"abc"


def test_a_wish_to_close_is_heard_beside_the_wish_for_another_protocol() -> None:
    (request,) = read(HEAD + b"connection: close, upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc")
    assert request.body == b"abc" and not request.keep_alive


def test_many_small_headers_are_a_large_head_too() -> None:
    (request,) = read(HEAD + b"a: b\r\n" * 20_000 + b"\r\n")
    assert request.refusal is not None and request.refusal.kind.status == 431


def test_a_body_that_grows_past_the_limit_is_refused_at_once_and_its_rest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "MAX_BODY_BYTES", 100_000)
    fed = reader()
    fed.feed(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(1001):
        fed.feed(b"64\r\n" + b"x" * 100 + b"\r\n")
    (request,) = fed.ready
    assert request.refusal is not None and request.refusal.kind.status == 413
    fed.ready.clear()
    for _ in range(1000):
        fed.feed(b"400\r\n" + b"x" * 1024 + b"\r\n")
    assert not fed.ready and not fed._pieces
    fed.feed(b"0\r\n\r\n" + NEXT)
    (following,) = fed.ready
    assert following.target == b"/smuggled" and following.refusal is None


def test_a_length_over_the_limit_is_refused_before_the_body() -> None:
    (request,) = read(HEAD + b"content-length: 99999999999\r\n\r\n")
    assert request.refusal is not None and request.refusal.kind.status == 413


def test_a_body_of_single_bytes_takes_no_more_than_itself() -> None:
    fed = reader()
    fed.feed(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(5000):
        fed.feed(b"1\r\nx\r\n")
    assert len(fed._pieces) == 2 and fed._size == 5000
    fed.feed(b"2000\r\n" + b"y" * 0x2000 + b"\r\n1\r\nz\r\n0\r\n\r\n")
    (request,) = fed.ready
    assert request.body == b"x" * 5000 + b"y" * 0x2000 + b"z"


def test_what_the_judge_refuses_is_handed_over_before_its_body_comes() -> None:
    from supervisor.gateway import errors

    fed = Reader(lambda request: HttpError(errors.UNAUTHORIZED, "no"), BodyRoom(MAX_BODY_BYTES))
    fed.feed(HEAD + b"content-length: 3\r\n\r\n")
    (request,) = fed.ready
    assert request.refusal is not None and request.keep_alive
    fed.feed(b"abc" + HEAD + b"content-length: 0\r\n\r\n")
    assert len(fed.ready) == 2


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([HEAD, b"\r\n", b"content-length: 3\r\n\r\n", b"abc", NEXT])),
        max_size=8,
    )
)
def test_no_bytes_whatever_make_it_stumble(pieces: list[bytes]) -> None:
    fed = reader()
    for piece in pieces:
        fed.feed(piece)
    refused = [request for request in fed.ready if request.refusal is not None]
    assert not fed.broken or refused or not fed.ready or not fed.ready[-1].keep_alive
