"""Native clients of a real supervisor: the same answers, errors, deadlines and accounting as over HTTP (spec 6, 11)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import random
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from supervisor.control.messages import DrainReplica, Inventory, ReplicaStatus, Stop
from supervisor.native import (
    BadRequest,
    Client,
    EngineFailed,
    ModelNotFound,
    NotRunning,
    Overloaded,
    ReplicaLost,
    RequestFailed,
    Route,
    StokerError,
    Stopping,
    Timeout,
    TooLarge,
    Unavailable,
)
from supervisor.native import messages as wire
from supervisor.native.streams import EventReader
from tests.conftest import Serve
from tests.support import NOISE, Running, stub_config

PATHS = {
    Route.EMBEDDINGS: "/v1/embeddings",
    Route.COMPLETIONS: "/v1/completions",
    Route.CHAT: "/v1/chat/completions",
    Route.CLASSIFY: "/v1/classify",
    Route.RERANK: "/v1/rerank",
}
HELLO = [{"role": "user", "content": "hello"}]


def with_client(running: Running, use: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    """Run `use` in a loop of its own, with a client that is open meanwhile."""

    async def opened() -> Any:
        async with Client(running.runtime.clients) as client:
            return await use(client)

    return asyncio.run(opened())


async def until(running: Running, holds: Callable[[Inventory], bool], limit_s: float = 30.0) -> Inventory:
    """Until the status says so, while the client's loop goes on."""
    return await asyncio.to_thread(running.wait_status, holds, limit_s)


async def outcome(call: Awaitable[Any]) -> Any:
    """What a call returned, or the error it ended with."""
    try:
        return await call
    except StokerError as error:
        return error


def rows(inventory: Inventory) -> list[ReplicaStatus]:
    return inventory.deployments[0].replicas


def in_flight(inventory: Inventory) -> int:
    return sum(row.in_flight for row in rows(inventory))


def idle(inventory: Inventory) -> bool:
    """Nothing in flight on either side, no bytes held."""
    return all(row.in_flight == row.outstanding_bytes == row.engine_in_flight == 0 for row in rows(inventory))


def bad_frames(running: Running) -> float:
    for line in running.get("/metrics").body.decode().splitlines():
        if line.startswith('stoker_bad_frames_total{socket="clients"}'):
            return float(line.rpartition(" ")[2])
    return 0.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One supervisor for the tests that change nothing in it."""
    running = Running(tmp_path_factory.mktemp("native"), stub_config())
    try:
        running.wait_ready(2)
        yield running
    finally:
        running.close()


# ------------------------------------------------------------------------------------------- the same answers


def without_id(body: bytes) -> bytes:
    """An answer's bytes but for what is drawn anew for each."""
    return re.sub(rb'"id":"[a-z]+-[0-9a-f]{32}"|"created":\d+', b"", body)


SAME = {
    "a text": (Route.EMBEDDINGS, {"model": "stub", "input": "hello"}),
    "texts": (Route.EMBEDDINGS, {"input": ["hello", "wörld"], "encoding_format": "base64"}),
    "token ids": (Route.EMBEDDINGS, {"input": [[1, 2], [3]]}),
    "by artifact": (Route.CLASSIFY, {"model": "stub", "input": ["good", "bad"]}),
    "rerank": (Route.RERANK, {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}),
    "null input": (Route.EMBEDDINGS, {"input": None}),
    "no input": (Route.EMBEDDINGS, {}),
    "no documents": (Route.RERANK, {"query": "q", "documents": []}),
    "too cold": (Route.COMPLETIONS, {"prompt": "x", "temperature": -1}),
    "no messages": (Route.CHAT, {"messages": []}),
}


@pytest.mark.parametrize("name", SAME)
def test_status_and_bytes_are_those_of_http(shared: Running, name: str) -> None:
    route, body = SAME[name]
    over_http = shared.post(PATHS[route], body)
    native = with_client(shared, lambda client: client.request(route, json.dumps(body).encode()))
    assert (native.status, without_id(native.body)) == (over_http.status, without_id(over_http.body))
    assert native.replica in ("stub/0", "stub/1") and native.request_id.startswith("req-")


BROKEN = (
    b'{"input": "x"',
    b"",
    b'{"input": NaN}',
    b"[1, 2]",
    b"[" * 10_000,
    b'{"input": "\xff"}',
    b'{"input": "\\ud800"}',
)


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_http_refuses_is_refused(shared: Running, body: bytes) -> None:
    assert shared.post("/v1/embeddings", body).status == 400
    answer = with_client(shared, lambda client: client.request(Route.EMBEDDINGS, body))
    assert answer.status == 400
    with pytest.raises(BadRequest):
        answer.json()
    assert all((row.state, row.incarnation, row.failures) == ("ready", 1, 0) for row in shared.replicas())


def test_each_route_has_its_method(shared: Running) -> None:
    async def use(client: Client) -> None:
        embedded = await client.embeddings(["a", "b"], model="stub", encoding_format="float")
        assert [len(row["embedding"]) for row in embedded["data"]] == [8, 8]
        completed = await client.completions("hello", max_tokens=2)
        assert completed["choices"][0]["text"] == "token 0 token 1 "
        chatted = await client.chat(HELLO, max_tokens=1)
        assert chatted["choices"][0]["message"]["content"] == "token 0 "
        assert len((await client.classify(["a", "b"]))["data"]) == 2
        assert len((await client.rerank("q", ["a", "b"], top_n=1))["results"]) == 1

    with_client(shared, use)


def test_a_supervisor_is_found_by_its_name(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNTIME_DIR", str(shared.root))

    async def use() -> None:
        async with Client("test") as client:
            assert (await client.embeddings("x"))["object"] == "list"

    asyncio.run(use())


def test_many_requests_at_once_over_one_socket_get_each_its_own_answer(shared: Running) -> None:
    async def use(client: Client) -> None:
        free = asyncio.Semaphore(48)

        async def ask(number: int) -> list[float]:
            async with free:
                answer = await client.embeddings(str(number % 50))
                found: list[float] = answer["data"][0]["embedding"]
                return found

        answers = await asyncio.gather(*(ask(number) for number in range(1000)))
        assert all(answer == answers[number % 50] for number, answer in enumerate(answers))
        assert len({tuple(answer) for answer in answers[:50]}) == 50

    with_client(shared, use)


def test_large_bodies_pass_both_ways_and_the_largest_is_refused(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="dim: 1024"))
    running.wait_ready(1)

    async def use(client: Client) -> None:
        large = json.dumps({"input": ["x" * 8000] * 1000}).encode()
        answer = await client.request(Route.EMBEDDINGS, large)
        assert answer.status == 200 and len(answer.body) > 8 * 1024 * 1024
        assert answer.body == (await client.request(Route.EMBEDDINGS, large)).body
        with pytest.raises(TooLarge):
            await client.embeddings("x" * (65 * 1024 * 1024))

    with_client(running, use)


# -------------------------------------------------------------------------------------------- the same errors


def test_an_unknown_model_is_told_with_those_there_are(shared: Running) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(ModelNotFound, match=r"gpt-5.*stub") as failed:
            await client.embeddings("x", model="gpt-5")
        assert (failed.value.status, failed.value.param) == (404, "model")
        over_http = await asyncio.to_thread(shared.post, "/v1/embeddings", {"model": "gpt-5", "input": "x"})
        assert over_http.json["error"]["message"] == str(failed.value)

    with_client(shared, use)


def test_a_bad_field_is_named_and_a_limit_that_is_none_is_refused(shared: Running) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(BadRequest) as failed:
            await client.completions("x", temperature=-1)
        assert (failed.value.status, failed.value.code, failed.value.param) == (400, "invalid_request", "temperature")
        assert failed.value.replica in ("stub/0", "stub/1")
        for limit in (0, -1.0, float("nan"), 1e9):
            with pytest.raises(BadRequest, match="timeout_s"):
                await client.embeddings("x", timeout_s=limit)
        for nonsense in (object(), "\ud800"):
            with pytest.raises(BadRequest, match="JSON"):
                await client.embeddings(nonsense)  # type: ignore[arg-type]

    with_client(shared, use)


def test_an_engine_that_fails_and_one_that_is_not_ready(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)

    async def use(client: Client) -> None:
        running.faults("stub/0", fail=True)
        with pytest.raises(EngineFailed, match="as asked") as failed:
            await client.embeddings("x")
        assert (failed.value.status, failed.value.replica) == (500, "stub/0")
        running.faults("stub/0")
        running.accepted(DrainReplica(replica="stub/0"))
        with pytest.raises(Unavailable) as refused:
            await client.embeddings("x")
        assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (503, "unavailable", 1)

    with_client(running, use)


def test_overload_is_shared_with_http_and_seen_in_the_same_rows(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, hang=True)

    async def use(client: Client) -> None:
        over_http = [asyncio.create_task(asyncio.to_thread(running.embed)) for _ in range(4)]
        native = [asyncio.create_task(client.embeddings("x")) for _ in range(60)]
        await until(running, lambda inventory: [row.in_flight for row in rows(inventory)] == [32, 32])
        with pytest.raises(Overloaded) as refused:
            await client.embeddings("x")
        assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
        assert (await asyncio.to_thread(running.embed)).status == 429
        for name in ("stub/0", "stub/1"):
            running.faults(name)
        assert {answer.status for answer in await asyncio.gather(*over_http)} == {200}
        assert len(await asyncio.gather(*native)) == 60
        await until(running, idle)

    with_client(running, use)


# ----------------------------------------------------------------------------------- deadlines, cancellation


def test_the_callers_deadline_ends_it_at_once_and_cancels_it_in_the_engine(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)

    async def use(client: Client) -> None:
        blocker = asyncio.create_task(client.embeddings("in the forward"))
        await until(running, lambda inventory: rows(inventory)[0].forward_age_s > 0)
        started = time.monotonic()
        with pytest.raises(Timeout, match="the caller's limit") as failed:
            await client.embeddings(["a", "b", "c"], timeout_s=0.2)
        assert 0.2 <= time.monotonic() - started < 2.0
        assert failed.value.status == 504
        await until(running, lambda inventory: rows(inventory)[0].engine_in_flight == 1)
        assert rows(running.inventory())[0].in_flight == 1
        running.faults("stub/0")
        await blocker
        (row,) = rows(await until(running, lambda inventory: idle(inventory) and rows(inventory)[0].cancelled_rows > 0))
        assert (row.state, row.in_flight, row.outstanding_bytes) == ("ready", 0, 0)

    with_client(running, use)


def test_the_deployments_deadline_counts_against_the_replica(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, timeout_ms=300))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    with pytest.raises(Timeout, match="timeout_ms 300"):
        with_client(running, lambda client: client.embeddings("x", timeout_s=20))
    assert running.replica("stub/0").failures == 1


def test_cancelling_the_task_drops_the_rows_in_the_engine(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", slow_ms=300)
    before = running.replica("stub/0").rows

    async def use(client: Client) -> None:
        blocker = asyncio.create_task(client.embeddings("x"))
        await until(running, lambda inventory: in_flight(inventory) == 1)
        queued = asyncio.create_task(client.embeddings(["x"] * 5))
        await until(running, lambda inventory: in_flight(inventory) == 2)
        queued.cancel()
        await until(running, lambda inventory: in_flight(inventory) <= 1, 1.0)
        await blocker
        (row,) = rows(await until(running, lambda inventory: idle(inventory) and rows(inventory)[0].cancelled_rows > 0))
        assert (row.state, row.failures, row.rows - before) == ("ready", 0, 1), "what nobody waited for was computed"

    with_client(running, use)


def test_closing_the_client_frees_what_it_has_open(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)

    async def use(client: Client) -> Any:
        waiting = [asyncio.create_task(client.embeddings("x")) for _ in range(3)]
        await until(running, lambda inventory: in_flight(inventory) == 3)
        await client.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert all(isinstance(error, StokerError) for error in with_client(running, use))
    running.wait_status(lambda inventory: in_flight(inventory) == 0, 1.0)
    running.faults("stub/0")
    running.wait_status(idle)


def test_whatever_callers_do_everything_is_given_back_and_answered_once(serve: Serve) -> None:
    running = serve(stub_config(2, "tokens: 50, token_ms: 1", outlier_detection={"consecutive_timeouts": 0}))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, slow_ms=2)
    chance = random.Random(7)

    async def use(client: Client) -> None:
        async def unary(number: int) -> None:
            answer = await client.embeddings(f"{number}", timeout_s=chance.choice((0.005, 0.05, 5.0)))
            assert len(answer["data"]) == 1

        async def stream(number: int) -> None:
            most = chance.randrange(60)
            async for _ in client.stream_completions(f"{number}", timeout_s=chance.choice((0.03, 5.0))):
                most -= 1
                if most < 0:
                    break

        async def caller(number: int) -> None:
            for _ in range(12):
                task = asyncio.create_task(outcome(chance.choice((unary, stream))(number)))
                if chance.random() < 0.3:
                    asyncio.get_running_loop().call_later(chance.random() / 20, task.cancel)
                done = (await asyncio.gather(task, return_exceptions=True))[0]
                assert done is None or isinstance(done, (asyncio.CancelledError, Timeout, Overloaded)), repr(done)

        await asyncio.gather(*(caller(number) for number in range(80)))
        for row in rows(await until(running, idle)):
            assert (row.state, row.incarnation) == ("ready", 1)
        assert (await client.embeddings("x"))["object"] == "list"

    with_client(running, use)
    assert bad_frames(running) == 0


# --------------------------------------------------------------------------------------------------- streams


def test_streamed_events_joined_are_the_unstreamed_text(shared: Running) -> None:
    async def use(client: Client) -> None:
        stream = client.stream_completions("hello", max_tokens=5, stream_options={"include_usage": True})
        events = [event async for event in stream]
        text = "".join(choice["text"] for event in events for choice in event["choices"])
        assert text == (await client.completions("hello", max_tokens=5))["choices"][0]["text"]
        assert events[-1]["usage"]["completion_tokens"] == 5
        assert stream.replica in ("stub/0", "stub/1") and stream.request_id is not None
        deltas = [event["choices"][0]["delta"] async for event in client.stream_chat(HELLO, max_tokens=2)]
        assert "".join(delta.get("content", "") for delta in deltas) == "token 0 token 1 "

    with_client(shared, use)


def test_the_bytes_of_a_stream_are_those_of_http(shared: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 3, "stream": True}

    async def use(client: Client) -> bytes:
        return b"".join([piece async for piece in client.stream(Route.COMPLETIONS, body)])

    def shape(stream: bytes) -> list[Any]:
        parts = [part.removeprefix("data: ") for part in stream.decode().split("\n\n")]
        return [json.loads(part)["choices"] if part.startswith("{") else part for part in parts]

    assert shape(with_client(shared, use)) == shape(shared.post("/v1/completions", body).body)


def test_a_request_refused_before_its_first_event_raises_there(shared: Running) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(BadRequest, match="temperature"):
            _ = [event async for event in client.stream_chat(HELLO, temperature=-1)]
        with pytest.raises(ModelNotFound):
            _ = [event async for event in client.stream_chat(HELLO, model="gpt-5")]

    with_client(shared, use)


async def leave_by_break(client: Client) -> None:
    async for _ in client.stream_completions("x", max_tokens=10000):
        break


async def leave_by_close(client: Client) -> None:
    stream = client.stream_completions("x", max_tokens=10000)
    await anext(stream)
    stream.close()
    assert [event async for event in stream] == []


async def leave_by_context(client: Client) -> None:
    async with client.stream_completions("x", max_tokens=10000) as stream:
        await anext(stream)


async def leave_by_cancelling(client: Client) -> None:
    async def read() -> None:
        async for _ in stream:
            first.set()

    stream = client.stream_completions("x", max_tokens=10000)
    first = asyncio.Event()
    task = asyncio.create_task(read())
    await first.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_close, leave_by_context, leave_by_cancelling])
def test_a_stream_left_early_stops_the_generation(
    serve: Serve, leave: Callable[[Client], Coroutine[Any, Any, None]]
) -> None:
    running = serve(stub_config(replicas=1, engine_args="tokens: 10000, token_ms: 10"))
    running.wait_ready(1)

    async def use(client: Client) -> None:
        await leave(client)
        await until(running, lambda inventory: in_flight(inventory) == 0, 1.0)
        await until(running, lambda inventory: rows(inventory)[0].cancelled_rows == 1)
        (row,) = rows(await until(running, idle))
        assert row.forwards < 1000, "it did not stop early"
        await client.embeddings("still served")

    with_client(running, use)


# ------------------------------------------------------------------------------------------- deaths and ends


def test_a_replica_that_dies_with_requests_loses_none_of_them(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, slow_ms=300)

    async def use(client: Client) -> None:
        asked = [asyncio.create_task(client.request(Route.EMBEDDINGS, {"input": str(n)})) for n in range(8)]
        await until(running, lambda inventory: [row.in_flight for row in rows(inventory)] == [4, 4])
        os.kill(running.replica("stub/0").pid or 0, signal.SIGKILL)
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert {answer.replica for answer in answers} == {"stub/1"}

    with_client(running, use)


def test_without_retries_a_lost_replica_is_told_and_a_stream_never_ends_silently(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="tokens: 10000, token_ms: 10", retries=0))
    running.wait_ready(1)

    async def use(client: Client) -> None:
        stream = client.stream_completions("x", max_tokens=10000)
        await anext(stream)
        unary = asyncio.create_task(outcome(client.completions("x", max_tokens=10000)))
        await until(running, lambda inventory: in_flight(inventory) == 2)
        os.kill(running.replica("stub/0").pid or 0, signal.SIGKILL)
        with pytest.raises(ReplicaLost, match="stub/0 was lost"):
            _ = [event async for event in stream]
        lost = await unary
        assert isinstance(lost, ReplicaLost) and (lost.status, lost.code) == (502, "replica_lost")

    with_client(running, use)


CLIENT_PROCESS = """
import asyncio, sys
from supervisor.native import Client

async def main():
    async with Client(sys.argv[1]) as client:
        await asyncio.gather(*(client.embeddings("x") for _ in range(5)))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_process_that_is_killed_frees_its_exchanges(serve: Serve, number: signal.Signals) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, hang=True)
    with subprocess.Popen([sys.executable, "-c", CLIENT_PROCESS, str(running.runtime.clients)]) as client:
        running.wait_status(lambda inventory: in_flight(inventory) == 5)
        client.send_signal(number)
        client.wait()
    running.wait_status(lambda inventory: in_flight(inventory) == 0, 1.5)
    for name in ("stub/0", "stub/1"):
        running.faults(name)
    assert all(row.failures == 0 for row in rows(running.wait_status(idle)))


def test_a_supervisor_that_dies_fails_what_waits_at_once_and_its_successor_is_found(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)

    async def use(client: Client) -> None:
        waiting = [asyncio.create_task(outcome(client.embeddings("x"))) for _ in range(3)]
        await until(running, lambda inventory: in_flight(inventory) == 3)
        stream = client.stream_chat(HELLO)
        running.kill()
        started = time.monotonic()
        assert all(isinstance(error, NotRunning) for error in await asyncio.gather(*waiting))
        with pytest.raises(NotRunning):
            await anext(stream)
        assert time.monotonic() - started < 2.0
        running.launch()
        await asyncio.to_thread(running.wait_ready, 1)
        assert (await client.embeddings("x"))["object"] == "list"

    with_client(running, use)


def test_while_it_stops_open_requests_are_answered_and_new_ones_are_told(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", slow_ms=1000)

    async def use(client: Client) -> None:
        opened = asyncio.create_task(client.embeddings("x"))
        await until(running, lambda inventory: in_flight(inventory) == 1)
        running.accepted(Stop())
        with pytest.raises(Stopping) as refused:
            await client.embeddings("x")
        assert isinstance(refused.value, Unavailable) and refused.value.status == 503
        assert (await opened)["object"] == "list"
        assert await asyncio.to_thread(running.process.wait, 30) == 0
        with pytest.raises(NotRunning):
            await client.embeddings("x")

    with_client(running, use)
    assert not running.runtime.clients.exists()


def test_where_no_supervisor_runs_that_is_said_at_once(tmp_path: Path) -> None:
    async def use() -> None:
        async with Client(tmp_path / "clients.sock"):
            pass

    started = time.monotonic()
    with pytest.raises(NotRunning, match=r"clients\.sock"):
        asyncio.run(use())
    assert time.monotonic() - started < 1.0


# ------------------------------------------------------------------------------------ nonsense at the socket

GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + b"\0" * 32
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
GIBIBYTE = GREETING + READY + b"\x02" + struct.pack(">Q", 1 << 30) + b"x" * 100


class Raw:
    """A DEALER that says what it likes."""

    def __init__(self, path: Path, receive: int = 1000) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVHWM, receive)
        self.socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self.socket.connect(f"ipc://{path}")
        self.read = 0

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close(linger=0)
        self._context.term()

    def say(self, *frames: wire.FromClient | bytes) -> None:
        """Messages are encoded, bytes go as they are."""
        self.socket.send_multipart([one if isinstance(one, bytes) else wire.encode(one) for one in frames])

    def hear(self) -> tuple[wire.ToClient, bytes]:
        """The next message that is no sign of life."""
        while True:
            frames = self.socket.recv_multipart()
            message, body = wire.parse_to_client(frames)
            self.read += wire.weight(frames[0], body)
            if not isinstance(message, wire.Alive):
                return message, body


def asking(number: int, route: int = 1, read: int = 0, timeout_ms: int | None = None) -> wire.Request:
    return wire.Request(number, route, False, timeout_ms, None, read)


DROPPED: dict[str, list[tuple[wire.FromClient | bytes, ...]]] = {
    "random bytes": [(NOISE[:64],)],
    "an empty frame": [(b"",)],
    "a pickle": [(pickle.dumps({"a": 1}),)],
    "deep nesting": [(b"\x91" * 100_000,)],
    "a hundred frames": [(b"x",) * 100],
    "a request before Hello": [(asking(1), b"{}")],
    "another version": [(wire.Hello(99),), (asking(1), b"{}")],
    "no body": [(wire.Hello(1),), (asking(1),)],
    "a body too many": [(wire.Hello(1),), (asking(1), b"{}", b"{}")],
    "a body with Cancel": [(wire.Hello(1),), (wire.Cancel(1), b"{}")],
    "an unknown route": [(wire.Hello(1),), (asking(1, route=77), b"{}")],
    "a limit of nothing": [(wire.Hello(1),), (asking(1, timeout_ms=0), b"{}")],
    "a negative number": [(wire.Hello(1),), (asking(-1), b"{}")],
    "more read than sent": [(wire.Hello(1),), (wire.Read(10**9),)],
    "a server's message": [(wire.Hello(1),), (wire.encode(wire.Answer(1, 200, "stub/0")), b"{}")],
}


@pytest.mark.parametrize("name", DROPPED)
def test_nonsense_is_counted_and_dropped_and_disturbs_nobody(shared: Running, name: str) -> None:
    async def use(client: Client) -> None:
        before = await asyncio.to_thread(bad_frames, shared)
        with Raw(shared.runtime.clients) as raw:
            for frames in DROPPED[name]:
                raw.say(*frames)
            deadline = time.monotonic() + 10
            while await asyncio.to_thread(bad_frames, shared) == before:
                assert time.monotonic() < deadline, "it was not counted"
            assert (await client.embeddings("x"))["object"] == "list"
            raw.say(wire.Hello(1))
            raw.say(asking(5), b'{"input": "x"}')
            heard = [raw.hear()[0] for _ in range(sum(frames[0] == wire.Hello(1) for frames in DROPPED[name]) + 2)]
            while not isinstance(heard[-1], wire.Answer):
                heard.append(raw.hear()[0])
            assert heard[-1].status == 200, "a client that sent nonsense and then behaves is served"

    with_client(shared, use)
    assert all((row.state, row.incarnation, row.failures) == ("ready", 1, 0) for row in shared.replicas())


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", NOISE, GREETING[:20], GIBIBYTE],
    ids=["HTTP", "random bytes", "half a greeting", "a gibibyte announced"],
)
def test_what_is_no_zeromq_is_dropped_with_its_connection(shared: Running, data: bytes) -> None:
    before = bad_frames(shared)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(shared.runtime.clients))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(5)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
    if data != GIBIBYTE:  # libzmq ends that connection by itself and tells nobody
        deadline = time.monotonic() + 10
        while bad_frames(shared) == before:
            assert time.monotonic() < deadline, "it was not counted"
    assert with_client(shared, lambda client: client.embeddings("x"))["object"] == "list"


def test_a_number_that_is_still_open_is_refused_and_the_first_one_is_answered(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", slow_ms=300)
    with Raw(running.runtime.clients) as raw:
        raw.say(wire.Hello(1))
        raw.say(asking(1), b'{"input": "first"}')
        raw.say(asking(1), b'{"input": "second"}')
        assert isinstance(raw.hear()[0], wire.Welcome)
        assert raw.hear()[1] == running.embed("first").body
    assert bad_frames(running) == 1
    assert running.replica("stub/0").requests == 2


def test_a_second_hello_begins_anew_and_cancels_what_was_open(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    with Raw(running.runtime.clients) as raw:
        raw.say(wire.Hello(1))
        raw.say(asking(1), b'{"input": "x"}')
        running.wait_status(lambda inventory: in_flight(inventory) == 1)
        raw.say(wire.Hello(1))
        running.wait_status(lambda inventory: in_flight(inventory) == 0)
        running.faults("stub/0")
        raw.say(asking(1), b'{"input": "y"}')
        heard = [raw.hear() for _ in range(3)]
    assert [type(message) for message, _ in heard] == [wire.Welcome, wire.Welcome, wire.Answer]
    assert heard[2][1] == running.embed("y").body


def test_a_client_that_does_not_read_is_refused_before_it_costs_memory(serve: Serve) -> None:
    running = serve(stub_config(1, "dim: 4096, tokens: 100000, token_ms: 5", timeout_ms=100_000))
    running.wait_ready(1)
    running.embed(["x"] * 16)
    before = psutil.Process(running.process.pid).memory_info().rss
    body = json.dumps({"input": ["x"] * 16}).encode()
    stream, asked = 1000, range(96)
    with Raw(running.runtime.clients, receive=1) as raw:
        raw.say(wire.Hello(1))
        raw.say(wire.Request(stream, Route.COMPLETIONS, True, None, None, 0), b'{"prompt": "x", "max_tokens": 100000}')
        for number in asked:
            raw.say(asking(number), body)
            if number % 8 == 7:
                running.wait_status(lambda inventory: in_flight(inventory) <= 1)
        running.wait_status(idle)  # its stream was cut, too
        grown = psutil.Process(running.process.pid).memory_info().rss - before
        assert grown < 120 * 1024 * 1024, f"grown by {grown / 1024**2:.0f} MiB"
        assert with_client(running, lambda client: client.embeddings("x"))["object"] == "list"
        ends: dict[int, wire.Answer | wire.Failed] = {}
        while len(ends) < len(asked) + 1:
            message = raw.hear()[0]
            if isinstance(message, wire.Answer | wire.Failed):
                ends[message.number] = message
        refused = [end for end in ends.values() if isinstance(end, wire.Failed)]
        assert {(end.status, end.code) for end in refused} == {(429, "overloaded")}
        assert len(refused) > 8 and ends[stream] in refused and isinstance(ends[0], wire.Answer)
        raw.say(asking(stream + 1, read=raw.read), b'{"input": "x"}')
        assert isinstance(raw.hear()[0], wire.Answer), "one that has read is served again"


def test_the_socket_is_for_this_user_alone(shared: Running) -> None:
    assert stat.S_IMODE(shared.runtime.clients.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.runtime.clients.parent.stat().st_mode) == 0o700


# ------------------------------------------------------------------------------------- without a supervisor


@given(
    events=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).filter("[DONE]".__ne__)
    ),
    cuts=st.lists(st.integers(0, 400)),
    ending=st.sampled_from(["\n", "\r\n"]),
)
def test_events_are_found_wherever_their_bytes_are_cut(events: list[str], cuts: list[int], ending: str) -> None:
    stream = "".join(f"data: {event}{ending}{ending}: a comment{ending}{ending}" for event in events)
    data = (stream + f"data: [DONE]{ending}{ending}").encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = EventReader()
    found = [event for a, b in itertools.pairwise(edges) for event in reader.feed(data[a:b])]
    assert found == [event.encode() for event in events]


def test_every_failure_has_one_root_and_its_own_status() -> None:
    from supervisor.gateway import errors as http_errors
    from supervisor.native.errors import error_of

    for kind in (*http_errors.OF_FAILURE.values(), http_errors.MODEL_NOT_FOUND, http_errors.TOO_LARGE):
        error = error_of("why", kind.status, kind.code)
        assert (error.status, error.code, type(error).code) == (kind.status, kind.code, kind.code)
        assert isinstance(error, RequestFailed) and isinstance(error, StokerError)
    assert type(error_of("unheard of", 422, "odd")) is BadRequest
    assert type(error_of("unheard of", 599, "odd")) is EngineFailed


def test_importing_the_client_is_light() -> None:
    heavy = "torch transformers textual httptools prometheus_client supervisor.supervisor supervisor.native.server"
    code = f"import sys, supervisor.native; print([name for name in {heavy.split()} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
