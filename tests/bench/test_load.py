"""The load generator against servers that answer, fail, stall and stream as they are told."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.served import Act, answer, raw, serving, stream
from ui.bench.asking import NotMeasurable
from ui.bench.bodies import Shape
from ui.bench.connection import BadAddress, Server
from ui.bench.load import run
from ui.bench.measured import Summary, spread
from ui.bench.plan import Plan

OK = answer()
PIECE = '{"choices":[{"text":"a"}]}'
STREAMED = Shape("completions", stream=True)


def measured(choose: object, plan: Plan) -> Summary:
    """The first answer is that to the question before the measurement."""
    with serving(lambda number: OK if number == 0 else choose(number - 1)) as served:  # type: ignore[operator]
        return run(plan, Server.at(served.url))


# ------------------------------------------------------------------------------------------------ what is counted


def test_a_number_of_requests_is_exactly_that_number() -> None:
    with serving(lambda number: OK) as served:
        found = run(Plan(Shape(tokens=(4, 9), inputs=3), clients=4, seconds=None, requests=50), Server.at(served.url))
    assert (found.requests, found.answered, found.failures) == (50, 50, {})
    assert len(served.bodies) == 51, "and the one that is asked first"
    assert found.inputs_per_s == pytest.approx(3 * found.requests_per_s)
    assert all(len(json.loads(body)["input"]) == 3 for body in served.bodies)


def test_a_load_for_a_time_ends_after_it() -> None:
    found = measured(lambda number: OK, Plan(clients=2, shape=Shape(), seconds=0.3))
    assert found.answered > 0 and 0.1 < found.seconds < 20
    assert found.requests_per_s == pytest.approx(found.answered / found.seconds)


def test_what_comes_before_the_measurement_is_not_counted() -> None:
    with serving(lambda number: OK) as served:
        plan = Plan(Shape(), clients=1, seconds=None, requests=5, warmup_s=0.2)
        found = run(plan, Server.at(served.url))
    assert found.requests == 5 < len(served.bodies) - 1


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (answer(429), "429"),
        (answer(503), "503"),
        (answer(500, b"oh"), "500"),
        (raw(b""), "connection"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), "cut"),
        (raw(b"SSH-2.0-nobody\r\n"), "not HTTP"),
    ],
)
def test_failures_are_counted_by_kind(act: Act, kind: str) -> None:
    plan = Plan(Shape(), clients=1, seconds=None, requests=4)
    found = measured(lambda number: act if number == 1 else OK, plan)
    assert (found.requests, found.answered, found.failures) == (4, 3, {kind: 1})
    assert found.sound is (kind in ("429", "503"))


def test_no_answer_within_the_limit_is_a_timeout() -> None:
    def hang(peer: socket.socket) -> bool:
        peer.recv(1)  # until the client goes
        return False

    plan = Plan(Shape(), clients=1, seconds=None, requests=3, timeout_s=0.2)
    found = measured(lambda number: hang if number == 1 else OK, plan)
    assert (found.answered, found.failures, found.sound) == (2, {"timeout": 1}, False)


def test_a_server_that_closes_after_each_answer_loses_nothing() -> None:
    plan = Plan(Shape(), clients=3, seconds=None, requests=20)
    found = measured(lambda number: answer(headers="connection: close\r\n"), plan)
    assert (found.answered, found.failures) == (20, {})


def test_a_server_that_is_gone_ends_in_failures_and_not_in_a_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = "http://{}:{}".format(*listener.getsockname())

        def answer_once_and_go() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
                OK(peer)

        server = threading.Thread(target=answer_once_and_go)
        server.start()
        with pytest.raises(NotMeasurable, match="no connection"):
            run(Plan(Shape(), clients=2, seconds=0.5), Server.at(url))
        server.join()


def test_a_dead_server_is_not_asked_as_fast_as_can_be() -> None:
    found = measured(lambda number: raw(b""), Plan(Shape(), clients=2, seconds=0.5))
    assert found.answered == 0 and found.failures.keys() == {"connection"}
    assert found.requests < 100


# ------------------------------------------------------------------------------------------------ open load


def test_a_stall_counts_for_every_request_that_was_due_in_it() -> None:
    """Coordinated omission: a closed load would have one slow request here."""
    stalled = threading.Lock()

    def choose(number: int) -> Act:
        if number == 20:
            with stalled:
                time.sleep(0.5)
        with stalled:
            return OK

    found = measured(choose, Plan(Shape(), None, rate=100, even=True, seconds=1.0))
    assert found.requests == found.answered == 100
    assert found.latency_ms is not None
    assert found.latency_ms.p90 > 200, "of 100 requests 50 were due while it stalled"


def test_arrivals_do_not_wait_for_answers() -> None:
    together = threading.Barrier(5)

    def meet(peer: socket.socket) -> bool:
        together.wait(20)
        return OK(peer)

    found = measured(lambda number: meet, Plan(Shape(), None, rate=200, seconds=None, requests=5))
    assert found.answered == 5


# ------------------------------------------------------------------------------------------------ streams


def test_a_stream_is_timed_by_its_tokens() -> None:
    def slowly(peer: socket.socket) -> bool:
        peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in (PIECE, PIECE, PIECE, '{"choices":[],"usage":{"completion_tokens":4}}', "[DONE]"):
            time.sleep(0.02)
            data = f"data: {event}\n\n".encode()
            peer.sendall(b"%x\r\n%s\r\n" % (len(data), data))
        peer.sendall(b"0\r\n\r\n")
        return True

    found = measured(lambda number: slowly, Plan(STREAMED, clients=1, seconds=None, requests=2))
    assert found.answered == 2
    assert found.tokens_per_s == pytest.approx(4 * found.requests_per_s), "as the server counts them"
    assert found.first_token_ms is not None and found.between_tokens_ms is not None and found.latency_ms is not None
    assert found.first_token_ms.p50 < found.latency_ms.p50 - 20
    assert found.between_tokens_ms.mean > 0


def test_the_role_that_begins_a_chat_is_no_token() -> None:
    role, text = '{"choices":[{"delta":{"role":"assistant","content":""}}]}', '{"choices":[{"delta":{"content":"a"}}]}'
    plan = Plan(Shape("chat", stream=True), clients=1, seconds=None, requests=2)
    found = measured(lambda number: stream(role, text, text, "[DONE]"), plan)
    assert found.tokens_per_s == pytest.approx(2 * found.requests_per_s)


@pytest.mark.parametrize(
    "events", [(PIECE,), (PIECE, '{"error":{"message":"lost"}}'), (PIECE, '{"error":{}}', "[DONE]")]
)
def test_a_stream_that_breaks_off_is_no_answer(events: tuple[str, ...]) -> None:
    found = measured(lambda number: stream(*events), Plan(STREAMED, clients=1, seconds=None, requests=1))
    assert (found.answered, found.failures) == (0, {"cut": 1})


# ------------------------------------------------------------------------------------------------ around it


def test_a_server_that_does_not_take_such_requests_says_so_before_anything_is_measured() -> None:
    refusal = answer(404, b'{"error":{"message":"no such model"}}')
    with serving(lambda number: refusal) as served, pytest.raises(NotMeasurable, match="404: no such model"):
        run(Plan(Shape()), Server.at(served.url))
    assert len(served.bodies) == 1


def test_nobody_there_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotMeasurable, match="no connection"):
        run(Plan(Shape()), Server.at(f"http://127.0.0.1:{port}"))


def test_a_signal_ends_the_run_with_what_there_is() -> None:
    def choose(number: int) -> Act:
        if number == 30:
            os.kill(os.getpid(), signal.SIGINT)
        return OK

    found = measured(choose, Plan(Shape(), clients=1, seconds=600))
    assert found.interrupted and 25 <= found.answered < 10_000


@pytest.mark.parametrize(
    ("url", "host", "port", "base"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://here/v1/", "here", 80, ""),
        ("https://there/api/v1", "there", 443, "/api"),
        ("http://[::1]:8000", "::1", 8000, ""),
    ],
)
def test_addresses(url: str, host: str, port: int, base: str) -> None:
    server = Server.at(url)
    assert (server.host, server.port, server.base) == (host, port, base)


@pytest.mark.parametrize("url", ["here:8000", "ftp://here", "http://", "http://here:port", "http://me:pw@here"])
def test_what_is_no_address_is_an_error(url: str) -> None:
    with pytest.raises(BadAddress, match=r"URL|expected"):
        Server.at(url)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_percentiles_are_values_that_were_measured(seconds: list[float]) -> None:
    found = spread(seconds)
    assert found is not None
    assert found.p50 <= found.p90 <= found.p99 <= found.max == max(seconds) * 1000
    assert {found.p50, found.p90, found.p99} <= {each * 1000 for each in seconds}
    assert sum(each * 1000 <= found.p90 for each in seconds) >= 0.9 * len(seconds)


def test_a_load_generator_is_light() -> None:
    import subprocess
    import sys

    script = "import sys, ui.bench.load; print([n for n in ('torch', 'rich', 'click', 'zmq') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
