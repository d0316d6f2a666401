"""The bodies of all requests together are bounded: what finds no room is refused, and room is always given back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.body_room import CALM_LOOKS, SMALL_BYTES, BodyRoom, Ebb
from supervisor.gateway.connection import STALL_S
from supervisor.native import Client as NativeClient
from supervisor.native import Overloaded, Route
from supervisor.native.doors import IpcDoor
from supervisor.native.server import NativeServer
from tests.gateway.house import BODY_ROOM_BYTES, Answer, Client, House, in_house, post, until

MIB = 1024 * 1024
LARGE = b'{"input": "%b"}' % (b"x" * 10 * MIB)
"""One of these fits, two do not."""
HEAD = "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"


async def fill(house: House) -> Client:
    """A client whose large request waits for its replica."""
    client = await house.connect()
    client.send(post(LARGE))
    await house.opened(1)
    assert house.room.held == len(LARGE)
    return client


async def refused(client: Client) -> Answer:
    answer = await client.answer()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "overloaded", "1")
    assert f"{BODY_ROOM_BYTES // MIB} MiB" in answer.body.decode()
    return answer


@in_house
async def test_a_body_that_finds_no_room_is_refused_before_it_is_sent(house: House) -> None:
    await fill(house)
    for expect, connection in (("expect: 100-continue\r\n", "close"), ("", "")):
        client = await house.connect()
        client.send(f"{HEAD}{expect}content-length: {len(LARGE)}\r\n\r\n".encode())
        assert (await refused(client)).headers.get("connection", "") == connection
    assert len(house.open()) == 1 and house.room.held == len(LARGE)


@in_house
async def test_a_body_of_untold_length_is_refused_where_the_room_ends_and_its_connection_lives(house: House) -> None:
    await fill(house)
    client = await house.connect()
    client.send(f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode())
    piece = b"%x\r\n%b\r\n" % (MIB, b"x" * MIB)
    client.send(piece * 8)
    await refused(client)
    assert house.room.held == len(LARGE)
    client.send(piece * 5 + b"0\r\n\r\n" + post())
    await house.opened(2)


@in_house
async def test_ordinary_requests_are_served_while_large_ones_fill_the_room(house: House) -> None:
    await fill(house)
    house.room.most = house.room.held
    client = await house.connect()
    client.send(post(b" " * SMALL_BYTES))
    assert (await client.answer()).status == 400, "it was read to its end, and is no JSON"
    client.send(post())
    await house.opened(2)


@in_house
async def test_what_was_announced_and_not_sent_keeps_nobody_out(house: House) -> None:
    for _ in range(5):
        (await house.connect()).send(f"{HEAD}content-length: {12 * MIB}\r\n\r\n".encode())
    await fill(house)


@in_house
async def test_an_answer_gives_room_back(house: House) -> None:
    client = await fill(house)
    ((target, number),) = house.open()
    house.answer(target, number)
    assert (await client.answer()).status == 200 and house.room.held == 0
    await (await house.connect()).writer.drain()
    client.send(post(LARGE))
    await house.opened(1)


@pytest.mark.parametrize("complete", [True, False])
def test_a_client_that_leaves_gives_room_back(complete: bool) -> None:
    @in_house
    async def scene(house: House) -> None:
        client = await house.connect()
        client.send(post(LARGE) if complete else post(LARGE)[: 5 * MIB])
        await until(lambda: house.room.held >= 4 * MIB)
        client.writer.transport.abort()
        await until(lambda: house.room.held == 0)

    scene()


@in_house
async def test_requests_that_wait_in_their_connection_give_room_back_with_it(house: House) -> None:
    client = await house.connect()
    client.send(post() + post(LARGE[:MIB]) * 2)
    await house.opened(1)
    await until(lambda: house.room.held > MIB)
    client.writer.transport.abort()

    def is_noticed() -> bool:
        house.sweep(0)
        return house.room.held == 0 and not house.open()

    await until(is_noticed)


@in_house
async def test_a_body_that_stands_still_or_breaks_off_gives_room_back(house: House) -> None:
    stalled = await house.connect()
    stalled.send(post(LARGE)[: 5 * MIB])
    await until(lambda: house.room.held >= 4 * MIB)
    house.sweep(STALL_S + 1)
    assert (await stalled.answer()).status == 408 and house.room.held == 0
    broken = await house.connect()
    broken.send(f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode() + b"%x\r\n%b\r\nNO SIZE\r\n" % (MIB, b"x" * MIB))
    assert (await broken.answer()).status == 400 and house.room.held == 0


async def send_slowly(house: House, client: Client, data: bytes, piece: int, each_s: float) -> None:
    """So many bytes each so many seconds of the server's clock, which looks at its connections before each."""
    assert house.server._sweeper is not None
    house.server._sweeper.cancel()  # the clock is ours now
    (connection,) = house.connections
    reader = connection._reader
    for at in range(0, len(data), piece):
        house.server.now += each_s
        house.sweep(0)
        if reader.broken:
            return
        before = reader._size
        client.send(data[at : at + piece])
        await until(lambda before=before: reader._size != before)


@in_house
async def test_a_body_that_comes_by_the_byte_gives_room_back(house: House) -> None:
    client = await house.connect()
    head, _, body = post(LARGE).partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n" + body[: 5 * MIB])
    await until(lambda: house.room.held == 5 * MIB)
    await send_slowly(house, client, b"x" * 5, 1, STALL_S - 1)
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (408, "close") and house.room.held == 0


@in_house
async def test_a_body_over_a_slow_line_that_stands_still_now_and_then_is_served(house: House) -> None:
    client = await house.connect()
    head, _, body = post(LARGE).partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n" + body[:1])
    await until(lambda: len(house.connections) == 1 and house.connections[0]._reader._size == 1)
    one_megabit = 125 * 1000
    for at in range(1, len(body), 20 * one_megabit):
        house.server.now += STALL_S - 5
        await send_slowly(house, client, body[at : at + 20 * one_megabit], one_megabit, 1.0)
    await house.opened(1)


@in_house
async def test_bodies_of_native_clients_share_the_room(house: House) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        door = Path(folder) / "clients"
        server = NativeServer(context, IpcDoor(door), house.exchanges, house.directory, house.room, bad.append)
        async with NativeClient(door) as native:
            first = await fill(house)
            with pytest.raises(Overloaded, match=f"{BODY_ROOM_BYTES // MIB} MiB") as no_room:
                await native.request(Route.EMBEDDINGS, LARGE)
            assert no_room.value.retry_after_s == 1
            first.writer.transport.abort()
            await until(lambda: house.room.held == 0)
            asked = house.exchanges._loop.create_task(native.request(Route.EMBEDDINGS, LARGE))
            ((target, number),) = await house.opened(1)
            assert house.room.held == len(LARGE)
            house.answer(target, number)
            assert (await asked).status == 200 and house.room.held == 0
            given_up = house.exchanges._loop.create_task(native.request(Route.EMBEDDINGS, LARGE))
            await house.opened(1)
            given_up.cancel()
            await until(lambda: house.room.held == 0)
        server.close()
    context.destroy(linger=0)
    assert bad == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4 * SMALL_BYTES)), max_size=40))
def test_what_is_held_is_the_sum_of_the_large_bodies_and_never_more_than_there_is(steps: list[tuple[int, int]]) -> None:
    room = BodyRoom(6 * SMALL_BYTES)
    bodies: dict[int, int] = {}
    held: dict[int, int] = {}
    for who, grown in steps:
        size = bodies.get(who, 0) + grown
        holds = room.hold(held.get(who, 0), size)
        if holds is None:
            assert sum(held.values()) - held.get(who, 0) + size > room.most
            room.give_back(held.pop(who, 0))
            bodies.pop(who, None)
        else:
            bodies[who], held[who] = size, holds
        assert room.held == sum(size for size in bodies.values() if size > SMALL_BYTES) <= room.most


def test_memory_is_given_back_once_after_a_flood_when_it_was_calm_for_a_while() -> None:
    ebb = Ebb(flood=100, calm=10)
    quiet = [0] * (2 * CALM_LOOKS)
    assert not any(ebb.look(peak) for peak in [*quiet, 50, 100, *quiet]), "there was no flood"
    for waves in ([101], [101, 0, 500], [101, *[0] * (CALM_LOOKS - 1), 11]):
        assert not any(ebb.look(peak) for peak in waves)
        assert [ebb.look(10) for _ in quiet].index(True) == CALM_LOOKS - 1
        assert not any(ebb.look(peak) for peak in quiet), "it was given back"
