"""HTTP/1.1 as clients see it: order, framing, limits, patience, and the end (spec 11)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from unittest import mock

from supervisor.core.dispatch import MOST_IN_FLIGHT
from supervisor.gateway import connection as connection_module
from supervisor.gateway import server as server_module
from supervisor.gateway.connection import HEAD_S, KEEP_ALIVE_S, LINGER_S, MOST_BEHIND_BYTES, STALL_S
from tests.gateway.house import LONG_S, MOST_CLIENTS, Client, House, in_house, post, until

STREAM = b'{"stream": true}'


async def one_answer(house: House, client: Client) -> int:
    """Ask, have it answered; the status."""
    client.send(post())
    ((target, number),) = await house.opened(1)
    house.answer(target, number)
    return (await client.answer()).status


# ------------------------------------------------------------------------------------------------- one after another


@in_house
async def test_the_first_connection_after_a_long_time_without_any_is_served(house: House) -> None:
    house.server.now -= KEEP_ALIVE_S + 1  # nobody looked at the clock since
    client = await house.connect()
    assert await one_answer(house, client) == 200


@in_house
async def test_pipelined_requests_are_served_one_at_a_time_and_answered_in_order(house: House) -> None:
    client = await house.connect()
    client.send(b"".join(post(b'{"user": "%d"}' % number) for number in range(5)))
    for number in range(5):
        ((target, exchange),) = await house.opened(1)
        assert house.body_of(exchange) == b'{"user": "%d"}' % number
        house.answer(target, exchange, b'{"said": %d}' % number)
        assert (await client.answer()).body == b'{"said": %d}' % number


@in_house
async def test_a_client_that_pipelines_without_end_is_not_read_further(house: House) -> None:
    client = await house.connect()
    client.send(post() * 100_000)
    await house.opened(1)
    (connection,) = house.connections
    await until(lambda: connection._pausing_reads)
    held = len(connection._reader.ready)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(connection._reader.ready) == held < 300_000 / len(post())


@in_house
async def test_thousands_of_pipelined_pages_are_answered_without_recursion(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 3000)
    for _ in range(3000):
        assert (await client.answer()).status == 200


@in_house
async def test_an_answer_that_nobody_takes_stops_the_next_request(house: House) -> None:
    client = await house.connect(receive_buffer=4096)
    for connection in house.connections:
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.send(post() * 3)
    ((target, number),) = await house.opened(1)
    house.answer(target, number, b"x" * 8_000_000)
    (connection,) = house.connections
    await until(lambda: connection._paused)
    assert not house.open()
    assert len((await client.answer()).body) == 8_000_000
    await house.opened(1)


# ------------------------------------------------------------------------------------------------- framing


@in_house
async def test_a_body_in_chunks_reaches_the_replica_as_one(house: House) -> None:
    client = await house.connect()
    client.send(b'POST /v1/embeddings?a=b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{"us\r\n')
    client.send(b'8\r\ner": ""}\r\n0\r\n\r\n')
    ((target, number),) = await house.opened(1)
    assert house.body_of(number) == b'{"user": ""}'
    house.answer(target, number)
    assert (await client.answer()).status == 200


@in_house
async def test_a_client_that_asks_first_is_told_to_continue(house: House) -> None:
    client = await house.connect()
    client.send(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
    assert (await client.answer(body=False)).status == 100
    client.send(b"{}")
    ((target, number),) = await house.opened(1)
    house.answer(target, number)
    assert (await client.answer()).status == 200


@in_house
async def test_a_client_that_asks_first_while_it_waits_for_another_answer_is_told_after_that(house: House) -> None:
    client = await house.connect()
    client.send(post() + post(headers="expect: 100-continue\r\n")[:-2])
    ((target, number),) = await house.opened(1)
    house.answer(target, number)
    assert (await client.answer()).status == 200
    assert (await client.answer(body=False)).status == 100
    client.send(b"{}")
    await house.opened(1)


@in_house
async def test_a_status_that_no_standard_names_is_passed_on(house: House) -> None:
    client = await house.connect()
    for status in (499, 520, 999):
        client.send(post())
        ((target, number),) = await house.opened(1)
        house.answer(target, number, status=status)
        assert (await client.answer()).status == status
        house.lane.pool.readmit_by_hand(target.member)


@in_house
async def test_a_client_that_asks_first_and_is_refused_need_not_send(house: House) -> None:
    client = await house.connect()
    client.send(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\nexpect: 100-continue\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (413, "request_too_large", "close")
    assert await client.closed() == b""


@in_house
async def test_a_body_that_is_too_long_is_refused_at_once_and_the_connection_lives(house: House) -> None:
    client = await house.connect()
    size = 65 * 1024 * 1024
    client.send(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
    assert (await client.answer()).status == 413
    client.send(bytes(size))
    assert await one_answer(house, client) == 200


@in_house
async def test_head_has_the_head_of_get_and_no_body(house: House) -> None:
    client = await house.connect()
    client.send(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    head, whole = await client.answer(body=False), await client.answer()
    assert head.status == whole.status == 200
    assert int(head.headers["content-length"]) == len(whole.body) > 0


@in_house
async def test_http_1_0_closes_unless_asked_to_stay(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    assert (await client.answer()).headers["connection"] == "keep-alive"
    client.send(b"GET /health HTTP/1.0\r\n\r\n")
    assert (await client.answer()).headers["connection"] == "close"
    assert await client.closed() == b""


@in_house
async def test_connection_close_is_obeyed_and_what_follows_is_not_served(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + post())
    assert (await client.answer()).headers["connection"] == "close"
    assert await client.closed() == b"" and not house.open()


@in_house
async def test_a_stream_is_chunked_and_for_http_1_0_it_ends_with_the_connection(house: House) -> None:
    for version, framing in (("1.1", "chunked"), ("1.0", None)):
        client = await house.connect()
        client.send(post(STREAM, "/v1/completions").replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        ((target, number),) = await house.opened(1)
        for piece in (b"data: 1\n\n", b"", b"data: 2\n\n"):
            house.exchanges.on_chunk(target, number, piece)
        house.exchanges.on_end(target, number)
        answer = await client.answer()
        assert answer.headers.get("transfer-encoding") == framing
        assert answer.headers["x-stoker-replica"] == target.member.name
        assert answer.body == b"data: 1\n\ndata: 2\n\n"


@in_house
async def test_an_upgrade_is_answered_in_http_1_1(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
    assert (await client.answer()).status == 200
    wish = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAM\r\nx-request-id: mine\r\n"
    asked = post(b'{"user": "u"}', headers=wish)
    client.send(asked[:-3])
    await until(lambda: house.connections[0]._reader.in_message)
    client.send(asked[-3:] + post())
    ((target, number),) = await house.opened(1)
    assert house.body_of(number) == b'{"user": "u"}'
    house.answer(target, number)
    assert (await client.answer()).headers["x-request-id"] == "mine"
    await house.opened(1)


@in_house
async def test_a_tunnel_is_not_granted(house: House) -> None:
    client = await house.connect()
    client.send(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n\0\1\2")
    answer = await client.answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (404, "not_found", "close")
    assert await client.closed() == b""


@in_house
async def test_a_path_may_come_with_a_query_in_percents_or_as_a_whole_url(house: House) -> None:
    client = await house.connect()
    for target in ("/health?a=b", "/%68ealth", "http://x:1/health", "/a%20page"):
        client.send(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await client.answer()).status == 200, target
    for target in ("*", "//", "http://", "/%ff", "/nowhere"):
        client.send(f"OPTIONS {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await client.answer()).code == "not_found", target


@in_house
async def test_every_answer_says_when_and_which_request_it_was(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /nowhere HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n")
    answer = await client.answer()
    assert answer.headers["x-request-id"] == "mine" and answer.headers["date"].endswith("gmt")


# ------------------------------------------------------------------------------------------------- what goes wrong


@in_house
async def test_bytes_that_are_no_http_get_400_in_our_shape_and_the_end(house: House) -> None:
    client = await house.connect()
    client.send(b"\x16\x03\x01 hello\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (400, "invalid_request", "close")
    assert await client.closed() == b""


@in_house
async def test_a_client_that_is_refused_while_it_sends_still_sees_why(house: House) -> None:
    client = await house.connect()
    client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: nonsense\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(50):
            client.send(bytes(100_000))
            await client.writer.drain()
    assert (await client.answer()).status == 400
    client.writer.close()


@in_house
async def test_a_body_that_breaks_off_after_its_refusal_ends_the_connection(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /v1/embeddings HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (await client.answer()).status == 405
    client.send(b"no chunk\r\n")
    assert await client.closed() == b""


@in_house
async def test_connections_beyond_the_most_are_turned_away_and_those_before_are_served(house: House) -> None:
    clients = [await house.connect() for _ in range(MOST_CLIENTS)]
    await until(lambda: len(house.connections) == MOST_CLIENTS)
    for _ in range(3):
        one_more = await house.connect()
        answer = await one_more.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert await one_more.closed() == b""
    clients[0].send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await clients[0].answer()).status == 200
    house.server._sweep()
    assert house.turned_away == [3]
    clients[0].writer.close()
    await until(lambda: len(house.connections) < MOST_CLIENTS)
    late = await house.connect()
    late.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await late.answer()).status == 200


@in_house
async def test_a_mistake_of_ours_is_a_500_in_our_shape_and_is_told(house: House) -> None:
    client = await house.connect()
    client.send(b"GET /mistake HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.code) == (500, "internal_error")
    assert await client.closed() == b""
    assert isinstance(house.mistakes[0]["exception"], ZeroDivisionError)


@in_house
async def test_a_client_that_hangs_up_cancels_what_it_waited_for(house: House) -> None:
    for body in (b"{}", STREAM):
        client = await house.connect()
        client.send(post(body, "/v1/completions"))
        ((_, number),) = await house.opened(1)
        client.writer.close()
        await house.opened(0)
        assert house.cancelled()[-1] == number


@in_house
async def test_a_client_that_closes_its_side_only_has_hung_up_too(house: House) -> None:
    """TCP shows the same FIN for both; nginx, uvicorn and hyper (Mosec) decide the same (docs/decisions.md)."""
    client = await house.connect()
    client.send(post())
    ((_, number),) = await house.opened(1)
    client.writer.write_eof()
    assert await client.closed() == b""
    assert house.cancelled() == [number] and not house.open()


@in_house
async def test_a_client_that_asks_again_at_once_after_429_waits_a_moment_and_others_do_not(house: House) -> None:
    for target in house.targets:
        target.member.in_flight = MOST_IN_FLIGHT
    refused, other = await house.connect(), await house.connect()
    with mock.patch.object(server_module, "REST_S", LONG_S):
        refused.send(post() * 2)
        answer = await refused.answer()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "overloaded", "1")
    for target in house.targets:
        target.member.in_flight = 0
    other.send(post())
    ((target, number),) = await house.opened(1)
    house.answer(target, number)
    assert (await other.answer()).status == 200 and not house.open()
    house.server._wake()
    ((target, number),) = await house.opened(1)
    house.answer(target, number)
    assert (await refused.answer()).status == 200


# ------------------------------------------------------------------------------------------------- slow clients


@in_house
async def test_a_client_that_does_not_read_its_stream_is_cut_and_holds_up_nobody(house: House) -> None:
    slow, quick = await house.connect(receive_buffer=4096), await house.connect()
    for connection in house.connections:
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for client in (slow, quick):
        client.send(post(STREAM, "/v1/completions"))
    streams = await house.opened(2)
    reading = asyncio.ensure_future(quick.answer())
    piece, sent = b"data: " + b"x" * 1000 + b"\n\n", 0
    while len(house.open()) == 2:
        for target, number in streams:
            house.exchanges.on_chunk(target, number, piece)
        sent += len(piece)
        assert sent < 10 * MOST_BEHIND_BYTES, "it is held for a client that does not read"
        await asyncio.sleep(0)
    assert all(
        connection._transport.get_write_buffer_size() < 2 * MOST_BEHIND_BYTES for connection in house.connections
    )
    ((target, number),) = house.open()
    house.exchanges.on_end(target, number)
    assert (await reading).body == piece * (sent // len(piece))
    assert len(house.cancelled()) == 1
    cut = (await slow.answer()).body
    assert b"overloaded" in cut and cut.endswith(b"}}\n\n")


@in_house
async def test_sixty_streams_get_their_pieces_alike(house: House) -> None:
    clients = [await house.connect() for _ in range(60)]
    for client in clients:
        client.send(post(STREAM, "/v1/completions"))
    streams = await house.opened(60)
    for turn in range(3):
        for target, number in streams:
            house.exchanges.on_chunk(target, number, b"data: %d\n\n" % turn)
    for target, number in streams:
        house.exchanges.on_end(target, number)
    bodies = {(await client.answer()).body for client in clients}
    assert bodies == {b"data: 0\n\ndata: 1\n\ndata: 2\n\n"}


@in_house
async def test_a_client_that_takes_nothing_for_too_long_is_let_go(house: House) -> None:
    client = await house.connect(receive_buffer=4096)
    client.send(post())
    ((target, number),) = await house.opened(1)
    house.answer(target, number, b"x" * 8_000_000)
    await until(lambda: house.connections[0]._paused)
    house.sweep(STALL_S - 1)
    assert house.connections
    house.sweep(STALL_S + 1)  # what was taken meanwhile counts as patience well spent
    house.sweep(3 * STALL_S)
    await until(lambda: not house.connections)


@in_house
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(house: House) -> None:
    idle, busy = await house.connect(), await house.connect()
    busy.send(post())
    ((target, number),) = await house.opened(1)
    house.sweep(KEEP_ALIVE_S + 2)
    assert await idle.closed() == b""
    house.answer(target, number)
    assert (await busy.answer()).status == 200


@in_house
async def test_a_head_or_a_body_that_never_comes_whole_is_408(house: House) -> None:
    for begun, limit_s in ((b"POST /v1/emb", HEAD_S), (post()[:-1], STALL_S)):
        client = await house.connect()
        client.send(begun)
        await until(lambda: any(connection._reader.in_message for connection in house.connections))
        house.sweep(limit_s - 1)
        assert len(house.connections) == 1
        house.sweep(limit_s + 1)
        answer = await client.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (408, "request_timeout", "close")
        client.writer.close()
        await until(lambda: not house.connections)


@in_house
async def test_a_head_that_drips_in_gets_no_more_time(house: House) -> None:
    client = await house.connect()
    client.send(b"GET / HT")
    await until(lambda: any(connection._reader.in_message for connection in house.connections))
    (connection,) = house.connections
    began = connection._since
    house.server.now += 10
    client.send(b"TP/1.1\r\n")
    await until(lambda: connection._reader._beside > 8)
    assert connection._since == began
    house.server.now -= 10


@in_house
async def test_a_client_that_sends_on_after_its_last_answer_is_cut_after_a_moment(house: House) -> None:
    client = await house.connect()
    client.send(b"nonsense\r\n\r\n")
    assert (await client.answer()).status == 400
    assert house.connections, "its answer could be lost"
    house.sweep(LINGER_S + 2)
    await until(lambda: not house.connections)


# ------------------------------------------------------------------------------------------------- the end


@in_house
async def test_at_the_end_idle_connections_close_and_answers_in_flight_arrive(house: House) -> None:
    idle, busy = await house.connect(), await house.connect()
    busy.send(post())
    ((target, number),) = await house.opened(1)
    closing = asyncio.ensure_future(house.server.close())
    assert await idle.closed() == b""
    assert not closing.done()
    house.answer(target, number)
    answer = await busy.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await closing


@in_house
async def test_at_the_end_a_request_that_is_on_its_way_in_is_still_answered(house: House) -> None:
    client = await house.connect()
    client.send(post()[:-1])
    await until(lambda: house.connections[0]._reader.in_message)
    house.directory.stopping = True
    closing = asyncio.ensure_future(house.server.close())
    await until(lambda: house.server.stopping)
    client.send(b"}")
    assert (await client.answer()).code == "stopping"
    client.writer.close()
    await closing


@in_house
async def test_at_the_end_an_idle_connection_whose_request_comes_just_then_gets_an_answer(house: House) -> None:
    client = await house.connect()
    await until(lambda: len(house.connections) == 1)
    house.directory.stopping = True
    closing = asyncio.ensure_future(house.server.close())
    await until(lambda: house.server.stopping)
    client.send(post())
    assert (await client.answer()).code == "stopping"
    assert await client.closed() == b""
    await closing


@in_house
async def test_at_the_end_who_connected_and_was_not_taken_in_yet_gets_an_answer(house: House) -> None:
    house.directory.stopping = True
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    waiting: list[socket.socket] = []
    async with server_module.serving(house.server._app, listener, MOST_CLIENTS, house.room, house.turned_away.append):
        for _ in range(3):  # no turn of the loop between these and the end
            waiting.append(socket.create_connection(address))
            waiting[-1].sendall(post())
    for client in waiting:
        client.settimeout(LONG_S)
        with client, client.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 503 ")
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(address).close()
        raise AssertionError("it still listens")


@in_house
async def test_while_it_stops_new_requests_get_503_and_the_end(house: House) -> None:
    house.directory.stopping = True
    client = await house.connect()
    client.send(post())
    answer = await client.answer()
    assert (answer.status, answer.code, answer.headers["connection"]) == (503, "stopping", "close")


@in_house
async def test_no_limit_is_shorter_than_the_sweep(house: House) -> None:
    from supervisor.gateway.server import SWEEP_S

    assert min(KEEP_ALIVE_S, HEAD_S, STALL_S, LINGER_S) > SWEEP_S
    assert connection_module.ONE_WRITE_BYTES < MOST_BEHIND_BYTES
