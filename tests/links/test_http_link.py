"""Exchanges over HTTP with servers of every kind of manners: what is passed on, what is called broken, what is cut."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import shutil
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import psutil
import pytest
from aiohttp import web

from engine.messages import Route
from supervisor.gateway.app import ROUTES
from supervisor.links import http_session
from supervisor.links.http import PATHS, base_url, shown
from tests.links.foreign import (
    ANSWER,
    BODY,
    DONE,
    Answering,
    Asked,
    Heard,
    Scene,
    chunk,
    event,
    once,
    played,
    read_request,
    soon,
    stream_head,
    streaming,
    unary,
    whole,
)

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


def reset(writer: Writer) -> None:
    """Break a connection off with RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# ---------------------------------------------------------------------------------------------------------- unary


@played
async def test_bytes_pass_through_both_ways_untouched(scene: Scene) -> None:
    server = Answering()
    carrier = scene.attach(await scene.serve(server))
    odd = b'{ "model" : "m",\n "input": "\\u00e9", "n": 1.0E+2 }'
    assert await scene.ask(carrier, odd) == ("answer", 1, 200, ANSWER)
    [asked] = server.asked
    assert asked.body == odd
    assert asked.path == "/v1/embeddings"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["accept-encoding"] == "identity"
    assert "authorization" not in asked.headers


def test_each_route_has_the_gateways_path() -> None:
    assert {path.encode(): Route(route) for route, path in PATHS.items()} == ROUTES


@played
async def test_a_prefix_and_a_clients_v1_are_understood(scene: Scene) -> None:
    server = Answering()
    endpoint = await scene.serve(server)
    for suffix in ("", "/", "/v1", "/v1/", "/team/a", "/team/a/v1"):
        carrier = scene.attach(endpoint + suffix)
        assert (await scene.ask(carrier))[2] == 200
    plain, prefixed = "/v1/embeddings", "/team/a/v1/embeddings"
    assert [asked.path for asked in server.asked] == [plain] * 4 + [prefixed] * 2


@played
async def test_a_unix_socket_is_a_server_like_any_other(scene: Scene) -> None:
    server = Answering()
    carrier = scene.attach(await scene.serve(server, unix=True))
    assert (await scene.heard.health()).ready
    assert await scene.ask(carrier) == ("answer", 1, 200, ANSWER)
    assert server.asked[0].headers["host"] == "localhost"


@played
async def test_a_real_server_of_aiohttp_answers_streams_and_sees_the_caller_leave(scene: Scene) -> None:
    left = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": []})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event({"n": 1}))
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    scene.stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    carrier = scene.attach(f"http://127.0.0.1:{runner.addresses[0][1]}")
    carrier.send(unary(1, Route.CHAT), b"{}")
    assert await scene.heard.next() == ("answer", 1, 200, b'{"choices": []}')
    carrier.send(streaming(2), b'{"stream":true}')
    assert await scene.heard.next() == ("chunk", 2, event({"n": 1}))
    carrier.cancel(2)
    await soon(left.wait())


@played
async def test_statuses_of_the_server_are_kept(scene: Scene) -> None:
    body = b'{"error":{"message":"no","type":"t","code":"c"}}'
    for status in ("400 Bad Request", "404 Not Found", "422 X", "429 X", "500 X", "503 X", "599 X"):
        carrier = scene.attach(await scene.serve(Answering(whole(body, status))))
        assert await scene.ask(carrier) == ("answer", 1, int(status[:3]), body)


@played
async def test_pages_of_a_proxy_become_errors_in_our_shape(scene: Scene) -> None:
    page = (
        b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n"
        b"<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx/1.18.0</center>\r\n</body>\r\n</html>\r\n"
    )
    carrier = scene.attach(await scene.serve(Answering(whole(page, "502 Bad Gateway", "text/html"))))
    for request in (unary(1), streaming(2)):
        carrier.send(request, BODY)
        kind, _, status, body = await scene.heard.next()
        assert (kind, status) == ("answer", 502)
        error = json.loads(body)["error"]
        assert error["type"] == "server_error"
        assert error["message"] == ("the attached server answered 502 Bad Gateway: 502 Bad Gateway nginx/1.18.0")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (whole(b"<html>welcome</html>", kind="text/html"), "answered 200 OK with text/html where JSON was expected"),
        (whole(b""), "answered 200 OK with nothing where JSON was expected"),
        (whole(b"", "204 No Content"), "answered 204 No Content with nothing where JSON was expected"),
        (
            b"HTTP/1.1 308 Permanent Redirect\r\nlocation: https://elsewhere/\r\ncontent-length: 0\r\n\r\n",
            "answered 308 Permanent Redirect, which is followed nowhere",
        ),
    ],
)
def test_an_answer_no_caller_can_use_is_broken(answer: bytes, why: str) -> None:
    async def story(scene: Scene) -> None:
        endpoint = await scene.serve(Answering(answer))
        assert await scene.ask(scene.attach(endpoint)) == ("broken", 1, f"{endpoint}: {why}")

    played(story)()


@played
async def test_json_under_another_content_type_is_json(scene: Scene) -> None:
    carrier = scene.attach(await scene.serve(Answering(whole(ANSWER, kind="text/plain"))))
    assert await scene.ask(carrier) == ("answer", 1, 200, ANSWER)


@played
async def test_what_comes_compressed_though_nobody_asked_is_unpacked(scene: Scene) -> None:
    packed = whole(gzip.compress(ANSWER), "200 OK", "application/json", "content-encoding: gzip")
    carrier = scene.attach(await scene.serve(Answering(packed)))
    assert await scene.ask(carrier) == ("answer", 1, 200, ANSWER)


@played
async def test_a_large_body_arrives_whole(scene: Scene) -> None:
    server = Answering(lambda asked: whole(b'"%d"' % len(asked.body)))
    carrier = scene.attach(await scene.serve(server))
    large = b'{"input":"' + b"x" * 8_000_000 + b'"}'
    assert await scene.ask(carrier, large) == ("answer", 1, 200, b'"%d"' % len(large))
    assert server.asked[0].body == large


@pytest.mark.parametrize("chunked", [False, True])
def test_an_answer_over_the_limit_is_broken(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_session, "MAX_BODY_BYTES", 1000)

    def answer(asked: Asked) -> bytes:
        size = int(asked.json["size"])
        body = b'"' + b"x" * (size - 2) + b'"'
        return stream_head("application/json") + chunk(body) + chunk(b"") if chunked else whole(body)

    async def story(scene: Scene) -> None:
        carrier = scene.attach(await scene.serve(Answering(answer)))
        assert (await scene.ask(carrier, b'{"size":1000}'))[0] == "answer"
        kind, _, reason = await scene.ask(carrier, b'{"size":1001}')
        assert kind == "broken" and reason.endswith("answered with more than 1000 bytes")
        assert (await scene.ask(carrier, b'{"size":1000}'))[0] == "answer"

    played(story)()


# -------------------------------------------------------------------------------------------------------- streams


@played
async def test_a_stream_is_passed_on_piece_by_piece_as_it_comes(scene: Scene) -> None:
    more = asyncio.Queue[bytes]()

    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(stream_head())
        while data := await more.get():
            writer.write(chunk(data))
        writer.write(chunk(b""))

    carrier = scene.attach(await scene.serve(once(answer)))
    carrier.send(streaming(), BODY)
    for piece in (b"data: 1\n\n", b"data: half", b" and half\n\n", DONE):
        more.put_nowait(piece)
        assert await scene.heard.next() == ("chunk", 1, piece)
    assert scene.heard.silent
    more.put_nowait(b"")
    assert await scene.heard.next() == ("end", 1)


@played
async def test_an_error_on_a_stream_request_is_a_whole_answer(scene: Scene) -> None:
    body = b'{"error":{"message":"too long"}}'
    carrier = scene.attach(await scene.serve(Answering(whole(body, "400 Bad Request"))))
    carrier.send(streaming(), BODY)
    assert await scene.heard.next() == ("answer", 1, 400, body)


@played
async def test_a_whole_answer_to_a_stream_request_is_a_whole_answer(scene: Scene) -> None:
    carrier = scene.attach(await scene.serve(Answering()))
    carrier.send(streaming(), BODY)
    assert await scene.heard.next() == ("answer", 1, 200, ANSWER)


@played
async def test_a_stream_cut_in_the_middle_is_broken_after_its_first_bytes(scene: Scene) -> None:
    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(stream_head() + chunk(b"data: 1\n\n") + b"20\r\ndata: 2")
        await writer.drain()

    endpoint = await scene.serve(once(answer))
    scene.attach(endpoint).send(streaming(), BODY)
    data, told = await scene.heard.streamed()
    assert data.startswith(b"data: 1\n\n")
    assert told == ("broken", 1, f"{endpoint}: broke off in the middle of its answer")


@played
async def test_a_stream_that_is_reset_is_broken(scene: Scene) -> None:
    cut = asyncio.Event()

    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(stream_head() + chunk(b"data: 1\n\n"))
        await soon(cut.wait())
        reset(writer)

    scene.attach(await scene.serve(once(answer))).send(streaming(), BODY)
    assert await scene.heard.next() == ("chunk", 1, b"data: 1\n\n")
    cut.set()
    assert (await scene.heard.next())[0] == "broken"


@pytest.mark.parametrize(("last", "ending"), [(DONE, "end"), (b"", "broken")])
def test_a_stream_that_only_closing_ends_is_complete_after_its_done(last: bytes, ending: str) -> None:
    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n" + last)
        await writer.drain()

    async def story(scene: Scene) -> None:
        scene.attach(await scene.serve(once(answer))).send(streaming(), BODY)
        data, told = await scene.heard.streamed()
        assert data == b"data: 1\n\n" + last
        assert told[0] == ending

    played(story)()


# --------------------------------------------------------------------------------------------------------- broken


@played
async def test_a_refused_connection_is_broken(scene: Scene) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        told = await scene.ask(scene.attach(endpoint))
    assert told == ("broken", 1, f"{endpoint}: connection refused")


@played
async def test_a_socket_that_is_not_there_is_broken(scene: Scene) -> None:
    endpoint = f"unix://{scene.folder}/nobody.sock"
    assert await scene.ask(scene.attach(endpoint)) == ("broken", 1, f"{endpoint}: no such file or directory")


@played
async def test_a_name_without_an_address_is_broken(scene: Scene) -> None:
    told = await scene.ask(scene.attach("http://nobody.invalid:8000"))
    assert told[2].startswith("http://nobody.invalid:8000: ")


@pytest.mark.skipif(sys.platform != "linux", reason="what a full queue does is Linux's own")
def test_a_server_that_accepts_no_connection_is_broken_at_the_connect_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_session, "CONNECT_S", 0.2)

    async def story(scene: Scene) -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):  # what nobody accepts fills the queue, and further connections get no answer
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            endpoint = f"http://127.0.0.1:{full.getsockname()[1]}"
            told = await scene.ask(scene.attach(endpoint))
            assert told == ("broken", 1, f"{endpoint}: no connection within 0.2 s")

    played(story)()


BREAKS: dict[str, Callable[[Writer], None]] = {
    "closed": lambda writer: None,
    "reset": reset,
    "half a head": lambda writer: writer.write(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "garbage": lambda writer: writer.write(b"\x16\x03\x01\x00\xa5\x01\x00 what is this\r\n\r\n"),
    "another protocol": lambda writer: writer.write(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "a wrong length": lambda writer: writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}"),
    "two lengths": lambda writer: writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "a wrong chunk": lambda writer: writer.write(stream_head("application/json") + b"zz\r\n{}\r\n"),
    "a head without end": lambda writer: writer.write(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000),
    "end before its length": lambda writer: writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{}"
    ),
    "end before its last chunk": lambda writer: writer.write(stream_head("application/json") + chunk(b"{}")),
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("request_of", [unary, streaming])
def test_an_answer_that_is_not_one_is_broken_once(how: str, request_of: Callable[[], object]) -> None:
    posts = 0

    async def answer(_: Reader, writer: Writer) -> None:
        nonlocal posts
        posts += 1
        BREAKS[how](writer)

    async def story(scene: Scene) -> None:
        endpoint = await scene.serve(once(answer))
        carrier = scene.attach(endpoint)
        carrier.send(request_of(), BODY)  # type: ignore[arg-type]
        kind, number, reason = await scene.heard.next()
        assert (kind, number) == ("broken", 1)
        assert reason.startswith(endpoint + ": ") and len(reason) < 200 and "0x" not in reason
        assert posts == 1 and scene.heard.silent

    played(story)()


MODELS_OF_ANSWERS = (
    whole(ANSWER),
    whole(ANSWER, "200 OK", "application/json", "content-encoding: gzip"),
    whole(b"<html>bad</html>", "502 Bad Gateway", "text/html"),
    stream_head() + chunk(b'data: {"model":"m"}\n\n') + chunk(DONE) + chunk(b""),
    stream_head("application/json") + chunk(ANSWER) + chunk(b""),
)
SPLICES = (b"\r\n", b"\n", b": ", b"0", b"content-length: 5\r\n", b"HTTP/1.1 100 C\r\n\r\n")


def damaged(answer: bytes, chance: random.Random) -> bytes:
    """An answer with a few bytes changed, added or lost."""
    for _ in range(chance.randrange(5)):
        at = chance.randrange(len(answer))
        new = chance.choice([*SPLICES, bytes([chance.randrange(256)]), b""])
        answer = answer[:at] + new + answer[at + chance.randrange(3) :]
    return answer


@pytest.mark.parametrize("model", [None, "m"])
def test_whatever_a_server_says_an_exchange_ends_once_and_is_told_in_text(model: str | None) -> None:
    said = b""

    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(said)

    async def story(scene: Scene) -> None:
        nonlocal said
        chance = random.Random(7)
        carrier = scene.attach(await scene.serve(once(answer)), model)
        for number in range(200):
            said = damaged(chance.choice(MODELS_OF_ANSWERS), chance)
            carrier.send(chance.choice([unary, streaming])(number), BODY)
            while (told := await scene.heard.next())[0] == "chunk":
                assert told[1] == number
            assert told[1] == number, said
            if told[0] == "broken":
                assert len(told[2].encode()) < 200
            elif told[0] == "answer":
                assert told[2] >= 200 and (told[2] < 400 or json.loads(told[3]))
        assert scene.heard.silent

    played(story)()


@played
async def test_a_broken_exchange_disturbs_no_other(scene: Scene) -> None:
    go = asyncio.Event()

    def server() -> Callable[[Reader, Writer], object]:
        async def connection(reader: Reader, writer: Writer) -> None:
            while True:
                asked = await read_request(reader)
                if asked.body == b"bad":
                    writer.write(b"nonsense\r\n\r\n")
                    return
                if asked.body == b"slow":
                    await soon(go.wait())
                writer.write(whole(ANSWER))

        return connection

    carrier = scene.attach(await scene.serve(server()))  # type: ignore[arg-type]
    carrier.send(unary(1), b"slow")
    for number in range(2, 12):
        assert (await scene.ask(carrier, b"bad", number))[:2] == ("broken", number)
    assert await scene.ask(carrier, b"good", 12) == ("answer", 12, 200, ANSWER)
    go.set()
    assert await scene.heard.next() == ("answer", 1, 200, ANSWER)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
@played
async def test_a_certificate_nobody_vouches_for_is_broken(scene: Scene) -> None:
    key, certificate = str(scene.folder / "key"), str(scene.folder / "certificate")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -subj /CN=localhost"
    made = await asyncio.create_subprocess_exec(*make.split(), stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    endpoint = await scene.serve(Answering(), tls=context)
    assert await scene.ask(scene.attach(endpoint)) == ("broken", 1, f"{endpoint}: its certificate is not trusted")


@played
async def test_a_slow_head_is_waited_for(scene: Scene) -> None:
    head, _, body = whole(ANSWER).partition(b"\r\n\r\n")

    async def answer(_: Reader, writer: Writer) -> None:
        for byte in head + b"\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(body)
        await writer.drain()

    assert await scene.ask(scene.attach(await scene.serve(once(answer)))) == ("answer", 1, 200, ANSWER)


@played
async def test_words_ahead_of_the_answer_are_skipped(scene: Scene) -> None:
    server = Answering(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + whole(ANSWER))
    assert await scene.ask(scene.attach(await scene.serve(server))) == ("answer", 1, 200, ANSWER)


@played
async def test_an_answer_before_the_body_was_read_is_the_answer(scene: Scene) -> None:
    too_large = b'{"error":{"message":"too large"}}'

    async def connection(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(too_large, "413 Too Large", "application/json", "connection: close"))
        await writer.drain()
        await reader.read()

    carrier = scene.attach(await scene.serve(connection))
    told = await scene.ask(carrier, b'{"input":"' + b"x" * 4_000_000 + b'"}')
    assert told == ("answer", 1, 413, too_large)


# ------------------------------------------------------------------------------------------------------ connections


@played
async def test_connections_are_kept_and_shared_by_replicas_of_one_server(scene: Scene) -> None:
    server = Answering()
    endpoint = await scene.serve(server)
    first, second = scene.attach(endpoint), scene.attach(endpoint + "/")
    for _ in range(2):
        assert (await scene.heard.health()).ready
    opened = server.connections
    assert opened <= 2
    for number in range(20):
        assert (await scene.ask(first if number % 2 else second))[0] == "answer"
    assert server.connections == opened


@played
async def test_no_more_than_64_connections_are_kept(scene: Scene) -> None:
    here, all_here = 0, asyncio.Event()
    closed = asyncio.Event()
    open_now: set[Writer] = set()

    async def connection(reader: Reader, writer: Writer) -> None:
        nonlocal here
        open_now.add(writer)
        try:
            while True:
                asked = await read_request(reader)
                if asked.method == "POST":
                    here += 1
                    if here == 100:
                        all_here.set()
                    await soon(all_here.wait())
                writer.write(whole(ANSWER))
                if asked.headers.get("connection") == "close":
                    return
        finally:
            open_now.discard(writer)
            if len(open_now) <= 65:
                closed.set()

    carrier = scene.attach(await scene.serve(connection))
    assert (await scene.heard.health()).ready
    for number in range(100):
        carrier.send(unary(number), BODY)
    for _ in range(100):
        assert (await scene.heard.next())[0] == "answer"
    await soon(closed.wait())
    assert len(open_now) <= 65


@played
async def test_a_kept_connection_that_closes_under_a_request_is_not_the_servers_failure(scene: Scene) -> None:
    """A server's idle limit may pass just while a request is on its way, which goes again, on a new connection."""
    posts = 0

    async def connection(reader: Reader, writer: Writer) -> None:
        nonlocal posts
        served = 0
        while True:
            asked = await read_request(reader)
            if asked.method == "POST":
                posts += 1
                if served:
                    return
                served += 1
            writer.write(whole(ANSWER))

    carrier = scene.attach(await scene.serve(connection))
    assert (await scene.heard.health()).ready
    assert await scene.ask(carrier, BODY, 1) == ("answer", 1, 200, ANSWER)
    assert await scene.ask(carrier, BODY, 2) == ("answer", 2, 200, ANSWER)
    assert posts == 3


@played
async def test_a_server_that_died_on_kept_connections_is_broken(scene: Scene) -> None:
    dead = False

    async def connection(reader: Reader, writer: Writer) -> None:
        while True:
            await read_request(reader)
            if dead:
                return
            writer.write(whole(ANSWER))

    carrier = scene.attach(await scene.serve(connection))
    assert (await scene.ask(carrier))[0] == "answer"
    dead = True
    for number in (2, 3, 4):
        kind, _, reason = await scene.ask(carrier, BODY, number)
        assert kind == "broken" and reason.endswith("closed the connection without an answer")


# --------------------------------------------------------------------------------------------------- giving up


def watching(gone: asyncio.Event, first: bytes, here: asyncio.Event) -> Callable[[Reader, Writer], object]:
    """A server that says `first` to a POST and then waits until its caller is gone."""

    async def answer(reader: Reader, writer: Writer) -> None:
        writer.write(first)
        here.set()
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            gone.set()

    return once(answer)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nconte", stream_head() + chunk(b"data: 1\n\n")])
@pytest.mark.parametrize("how", ["cancel", "forget", "close"])
def test_giving_up_closes_the_connection_to_the_server(first: bytes, how: str) -> None:
    async def story(scene: Scene) -> None:
        gone, here = asyncio.Event(), asyncio.Event()
        carrier = scene.attach(await scene.serve(watching(gone, first, here)))  # type: ignore[arg-type]
        carrier.send(streaming(), BODY)
        if b"data" in first:
            assert (await scene.heard.next())[0] == "chunk"
        await soon(here.wait())
        if how == "cancel":
            carrier.cancel(1)
        elif how == "forget":
            carrier.forget()
        else:
            await scene.link.close()
        await soon(gone.wait())
        assert scene.heard.silent
        assert carrier.send(unary(2), BODY) is (how == "cancel")

    played(story)()


@played
async def test_giving_up_a_large_request_closes_a_connection_that_nobody_reads(scene: Scene) -> None:
    """As of a server that was stopped: neither its connection nor the rest of the request is kept for it."""
    here, over = asyncio.Event(), asyncio.Event()

    async def connection(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            here.set()
            await soon(over.wait())
        writer.write(whole(b"", "200 OK", "text/plain", "connection: close"))

    endpoint = await scene.serve(connection)
    carrier = scene.attach(endpoint)
    carrier.send(unary(), b"x" * 32_000_000)
    await soon(here.wait())
    seen_stuck = 0
    while seen_stuck < 10:  # until the kernel takes nothing more
        way = carrier._open[1].way
        assert way is not None and way.connection is not None and way.connection.transport is not None
        seen_stuck += way.connection.transport.get_write_buffer_size() > 0
        await asyncio.sleep(0.005)
    assert connections_to(endpoint)
    carrier.cancel(1)
    while connections_to(endpoint):
        await asyncio.sleep(0.005)
    over.set()


def connections_to(endpoint: str) -> list[object]:
    """Our ends of connections to a server."""
    port = int(endpoint.rpartition(":")[2])
    return [one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == port]


@played
async def test_cancelling_is_silent_at_any_time(scene: Scene) -> None:
    server = Answering()
    carrier = scene.attach(await scene.serve(server))
    carrier.cancel(1)
    carrier.send(unary(1), BODY)
    carrier.cancel(1)
    assert (await scene.ask(carrier, BODY, 2))[:2] == ("answer", 2)
    carrier.cancel(2)
    carrier.send(unary(3), BODY)
    await asyncio.sleep(0)
    carrier.cancel(3)
    assert (await scene.ask(carrier, BODY, 4))[:2] == ("answer", 4)
    assert scene.heard.silent


@played
async def test_cancelling_one_exchange_leaves_its_neighbours_alone(scene: Scene) -> None:
    """Also where the cancelled one was just done, and its connection is another's by now."""
    carrier = scene.attach(await scene.serve(Answering()))
    ended = set()
    for number in range(300):
        carrier.send(unary(number), BODY)
        if number % 3 == 0:
            carrier.cancel(number - 1)
        if number % 7 == 0:
            kind, which, *_ = await scene.heard.next()
            assert kind == "answer"
            ended.add(which)
            carrier.cancel(which)
    carrier.send(unary(1000), BODY)
    while 1000 not in ended:
        kind, which, *_ = await scene.heard.next()
        assert kind == "answer", (kind, which)
        ended.add(which)


@played
async def test_a_forgotten_replica_leaves_the_other_one_of_its_server(scene: Scene) -> None:
    endpoint = await scene.serve(Answering())
    first, second = scene.attach(endpoint), scene.attach(endpoint)
    assert (await scene.ask(first))[0] == "answer"
    first.forget()
    first.forget()
    assert (await scene.ask(second))[0] == "answer"
    second.forget()
    assert (await scene.ask(scene.attach(endpoint)))[0] == "answer"


@played
async def test_a_receiver_may_forget_its_carrier_in_what_it_is_told(scene: Scene) -> None:
    class Leaver(Heard):
        def on_answer(self, number: int, status: int, body: bytes) -> None:
            super().on_answer(number, status, body)
            carrier.forget()

    leaver = Leaver()
    carrier = scene.link.carrier(await scene.serve(Answering()), None, "primary", leaver)
    carrier.send(unary(1), BODY)
    assert (await leaver.next())[0] == "answer"
    assert not carrier.send(unary(2), BODY)


@played
async def test_a_mistake_of_ours_ends_its_exchange_and_is_reported(scene: Scene) -> None:
    class Mistaken(Heard):
        def on_chunk(self, number: int, data: bytes) -> None:
            raise RuntimeError("a mistake")

    reported: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.put_nowait(context))
    mistaken = Mistaken()
    endpoint = await scene.serve(Answering(stream_head() + chunk(DONE) + chunk(b"")))
    scene.link.carrier(endpoint, None, "primary", mistaken).send(streaming(), BODY)
    assert await mistaken.next() == ("broken", 1, f"{endpoint}: the exchange could not be carried out")
    assert str((await soon(reported.get()))["exception"]) == "a mistake"


@played
async def test_a_number_may_be_used_again_once_it_was_given_up(scene: Scene) -> None:
    carrier = scene.attach(await scene.serve(Answering()))
    for _ in range(20):
        carrier.send(unary(1), BODY)
        carrier.cancel(1)
        assert await scene.ask(carrier) == ("answer", 1, 200, ANSWER)
    assert scene.heard.silent


# ------------------------------------------------------------------------------------------------------------ names


@played
async def test_the_server_hears_its_own_name_and_the_caller_its_own(scene: Scene) -> None:
    server = Answering(
        lambda asked: whole(json.dumps({"model": asked.json["model"], "said": "served"}).encode()), ["served"]
    )
    carrier = scene.attach(await scene.serve(server), "served")
    for body, caller in ((b'{"model":"primary"}', "primary"), (b'{"model":"o/n"}', "o/n"), (b"{}", "primary")):
        _, _, _, answer = await scene.ask(carrier, body)
        assert json.loads(answer) == {"model": caller, "said": "served"}
    assert [asked.json["model"] for asked in server.asked] == ["served"] * 3


@played
async def test_a_stream_calls_the_model_by_the_callers_name(scene: Scene) -> None:
    events = b": ping\n\n" + b"".join(event({"model": "served", "n": n}) for n in range(50)) + DONE

    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(stream_head())
        for at in range(0, len(events), 7):
            writer.write(chunk(events[at : at + 7]))
            await writer.drain()
        writer.write(chunk(b""))
        await writer.drain()

    carrier = scene.attach(await scene.serve(once(answer)), "served")
    carrier.send(streaming(), b'{"model":"primary"}')
    data, told = await scene.heard.streamed()
    assert told == ("end", 1)
    frames = [frame.removeprefix(b"data: ") for frame in data.split(b"\n\n")]
    assert frames[0] == b": ping" and frames[-2:] == [b"[DONE]", b""]
    assert [json.loads(frame) for frame in frames[1:-2]] == [{"model": "primary", "n": n} for n in range(50)]


@played
async def test_equal_names_leave_the_very_bytes(scene: Scene) -> None:
    odd = b' { "model" : "same" } '
    server = Answering(whole(odd))
    carrier = scene.attach(await scene.serve(server), "same", "same")
    assert await scene.ask(carrier, odd) == ("answer", 1, 200, odd)
    assert server.asked[0].body == odd


@played
async def test_an_answer_that_cannot_be_read_for_renaming_is_broken(scene: Scene) -> None:
    carrier = scene.attach(await scene.serve(Answering(whole(b'{"model":"served"'))), "served")
    kind, _, reason = await scene.ask(carrier)
    assert kind == "broken" and reason.endswith("answered with what is not JSON")


# ------------------------------------------------------------------------------------------------------ what it costs


def test_the_link_is_light_until_a_replica_is_attached() -> None:
    code = "import sys, supervisor.links.http; assert not {'aiohttp', 'yarl'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_secret_of_an_endpoint_is_shown() -> None:
    assert shown("https://user:secret@host:1/p?key=1#f") == "https://host:1/p"
    assert shown("http://[::1]:8000") == "http://[::1]:8000"
    assert shown("unix:///run/x.sock") == "unix:///run/x.sock"
    assert base_url("unix:///run/v1") == "unix:///run/v1"
