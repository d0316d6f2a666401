"""`stoker bench` on a real supervisor: numbers that agree with its own, layouts that are tried and put back."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import StokerError
from supervisor.control.events import Scaled
from supervisor.control.messages import (
    CONTROL_PROTOCOL,
    Accepted,
    Answer,
    Call,
    CommandRefused,
    GetStatus,
    Scale,
    Trial,
    encode,
)
from tests.cli.conftest import Ran, Stoker, command
from tests.cli.fake import FakeSupervisor
from tests.cli.rows import deployment, inventory, replica
from tests.cli.terminal import Terminal
from tests.support import Running, stub_config
from ui.bench.bodies import Shape
from ui.bench.measured import Spread, Summary, spread
from ui.bench.plan import Plan
from ui.cli import benching
from ui.cli.benching import CannotBench, Layout, address_of, best, route_for
from ui.cli.reach import find_deployment
from ui.cli.waiting import WaitFailed

THREE_CARDS = """\
global:
  model_catalog:
    deployments:
      stub:
        artifact: stub
        replicas:
          - device: cuda:0   # the fast one
          - device: cuda:1
          - device: "cuda:2" # the quoted one
        engine_args: {engine: stub}
stoker: {listen: 127.0.0.1:0}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two stubs."""
    with Running(tmp_path_factory.mktemp("bench"), stub_config(2, "tokens: 4, token_ms: 1")) as running:
        running.wait_ready(2)
        yield running


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three stubs, each on a simulated GPU of its own."""
    environ = {"STOKER_SIMULATE_DEVICES": "cuda:3"}
    with Running(tmp_path_factory.mktemp("cards"), THREE_CARDS, environ=environ) as running:
        running.wait_ready(3)
        yield running


def bench(running: Running, *words: str) -> Ran:
    done = subprocess.run(
        command("bench", *words), capture_output=True, text=True, timeout=60, env={**running.environ, "COLUMNS": "200"}
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def accepted(answer: Answer) -> Accepted:
    assert isinstance(answer, Accepted)
    return answer


def requests(running: Running) -> int:
    return running.inventory().deployments[0].requests


def places(running: Running) -> list[str]:
    return sorted(row.device for row in running.replicas() if row.state != "draining")


# ------------------------------------------------------------------------------------------------ one run


def test_it_counts_what_the_supervisor_counts(running: Running) -> None:
    before = requests(running)
    ran = bench(running, "--requests", "200", "--clients", "4", "--inputs", "3", "--tokens", "4-64", "--json")
    said = json.loads(ran.out)
    assert ran.code == 0
    assert (said["result"]["requests"], said["result"]["answered"], said["result"]["failures"]) == (200, 200, {})
    assert requests(running) == before + 201, "and the one that is asked first"
    assert said["load"]["shape"]["route"] == "embeddings"
    assert "4 clients, up to 200 requests: /v1/embeddings at http://127.0.0.1:" in ran.err
    assert "3 inputs of 4 to 64 tokens" in ran.err


def test_in_a_pipe_it_is_a_table_of_plain_lines(running: Running) -> None:
    ran = bench(running, "stub", "--requests", "20", "--rate", "500", "--arrivals", "even")
    heading, row = ran.out.splitlines()
    assert heading.split() == ["REQUESTS", "REQ/S", "INPUTS/S", "P50", "P90", "P99", "MAX", "FAILED"]
    assert row.split()[0] == "20" and row.split()[-1] == "-"
    assert "\x1b" not in ran.out + ran.err


def test_a_stub_streams_a_chat(running: Running) -> None:
    ran = bench(running, "--stream", "--requests", "10", "--json")
    result = json.loads(ran.out)["result"]
    assert result["tokens_per_s"] == pytest.approx(4 * result["requests_per_s"])
    assert result["first_token_ms"]["p50"] < result["latency_ms"]["p50"]
    assert result["between_tokens_ms"]["p50"] > 0


@pytest.mark.parametrize("route", ["completions", "classify", "rerank"])
def test_every_route_can_be_asked_for_at_a_url(running: Running, route: str) -> None:
    ran = bench(running, "stub", "--url", f"{running.url}/v1", "--route", route, "--requests", "5", "--json")
    assert json.loads(ran.out)["result"]["answered"] == 5


def test_a_full_deployment_refuses_and_that_is_a_finding(running: Running) -> None:
    running.faults("stub/0", slow_ms=200)
    running.faults("stub/1", slow_ms=200)
    try:
        ran = bench(running, "--clients", "80", "--requests", "100", "--json")
    finally:
        running.faults("stub/0")
        running.faults("stub/1")
    result = json.loads(ran.out)["result"]
    assert ran.code == 0
    assert result["failures"].keys() == {"429"} and result["answered"] > 0
    assert "all replicas were full" in ran.err


def test_an_answer_that_is_a_failure_is_exit_code_1(running: Running) -> None:
    ran = bench(running, "nope", "--url", running.url, "--route", "chat")
    assert (ran.code, ran.out) == (1, "")
    assert "404" in ran.err and "nope" in ran.err
    running.faults("stub/1", fail=True)
    try:
        ran = bench(running, "--requests", "40", "--clients", "1", "--json")
    finally:
        running.faults("stub/1")
    assert ran.code == 1


class _FirstAnswerOnly(http.server.BaseHTTPRequestHandler):
    """Answers one request, and the others with an error in OpenAI's shape."""

    protocol_version = "HTTP/1.1"
    answered = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        kind = type(self)
        body = b"{}" if kind.answered == 0 else b'{"error": {"message": "out of memory on card 3"}}'
        self.send_response(200 if kind.answered == 0 else 500)
        kind.answered += 1
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_failures_are_explained_in_the_words_of_the_server(stoker: Stoker) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _FirstAnswerOnly) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            ran = stoker("bench", "--url", address, "--route", "embeddings", "--requests", "6", "--json")
        finally:
            server.shutdown()
    result = json.loads(ran.out)["result"]
    assert ran.code == 1
    assert result["failures"] == {"500": 6}
    assert result["messages"] == {"500": "out of memory on card 3"}
    assert "500: out of memory on card 3\n" in ran.err


def test_a_server_that_is_not_there_is_one_sentence(stoker: Stoker) -> None:
    ran = stoker("bench", "--url", "http://127.0.0.1:1", "--route", "chat")
    assert ran.code == 1
    assert ran.err.endswith("stoker: no connection to http://127.0.0.1:1: Connection refused\n")


def test_ctrl_c_shows_what_was_measured_so_far(running: Running) -> None:
    before = requests(running)
    words = command("bench", "--duration", "600", "--json")
    started = subprocess.Popen(words, env=running.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.wait_status(lambda seen: seen.deployments[0].requests > before + 20)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=20)
    assert started.returncode == 130
    result = json.loads(out)["result"]
    assert result["answered"] >= 15
    assert f"had ended by then; {result['unfinished']} that had not are left out" in err


def test_a_terminal_shows_how_far_it_is_and_then_the_table(running: Running) -> None:
    words = command("bench", "--duration", "1.5")
    with Terminal(words, columns=120, environ=running.environ) as terminal:
        terminal.wait_for("in flight")
        assert terminal.wait() == 0
    assert "measuring" in terminal.text and "REQ/S" in terminal.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clients", "2", "--rate", "5"], "give one of them"),
        (["--tokens", "9-3"], "such as 16 or 4-256"),
        (["--compare", "1,1"], "each once"),
        (["--compare", "0"], "each once"),
        (["--compare", "1", "--url", "http://here", "--route", "chat"], "--url is none"),
        (["--url", "http://here"], "--url goes with --route"),
        (["--url", "http://here", "--route", "embeddings", "--stream"], "--stream goes with generated answers"),
        (["--url", "http://here", "--route", "chat", "--inputs", "2"], "--inputs goes with"),
        (["--api-key-env", "NOT_SET_ANYWHERE"], "not set in the environment"),
    ],
)
def test_options_that_do_not_go_together_are_exit_code_2(stoker: Stoker, words: list[str], said: str) -> None:
    ran = stoker("bench", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_the_api_key_comes_from_the_environment_and_a_socket_will_do(tmp_path: Path) -> None:
    listen = f"listen: unix://{tmp_path}/http\n  api_key_env: SOME_KEY"
    text = stub_config(1).replace("listen: 127.0.0.1:0", listen)
    with Running(tmp_path, text, environ={"SOME_KEY": "a-secret"}) as running:
        running.wait_ready(1)
        without = bench(running, "--requests", "2")
        ran = bench(running, "--requests", "2", "--api-key-env", "SOME_KEY", "--json")
    assert without.code == 1 and "--api-key-env" in without.err
    assert ran.code == 0 and "a-secret" not in ran.out + ran.err


# ------------------------------------------------------------------------------------------------ --compare


def test_layouts_are_measured_and_the_replicas_put_back_as_they_were(cards: Running) -> None:
    words = ("--compare", "1,2", "--duration", "0.3", "--warmup", "0.1", "--json")
    since = cards.inventory().supervisor.last_event
    ran = bench(cards, *words)
    said = json.loads(ran.out)
    assert ran.code == 0
    assert [each["replicas"] for each in said["layouts"]] == [1, 2]
    assert said["best"] in (1, 2)
    assert all(each["result"]["answered"] > 0 for each in said["layouts"])
    scales = [(event.before, event.after) for event in cards.events(Scaled) if event.seq > since]
    assert scales == [(3, 1), (1, 2), (2, 3)]
    cards.wait_status(lambda seen: seen.deployments[0].ready_replicas == 3)
    assert places(cards) == ["cuda:0", "cuda:1", "cuda:2"], "not one card three times"
    assert cards.config.read_text() == THREE_CARDS


def test_ctrl_c_in_a_comparison_puts_the_replicas_back(cards: Running) -> None:
    since = cards.inventory().supervisor.last_event
    words = command("bench", "--compare", "2,1", "--duration", "600", "--warmup", "0")
    started = subprocess.Popen(words, env=cards.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cards.wait_event(Scaled, lambda event: event.after == 2, since=since)
    before = requests(cards)
    cards.wait_status(lambda seen: seen.deployments[0].requests > before + 20)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=20)
    assert started.returncode == 130
    assert "RATIO" in out and "back to 3 replicas" in err
    cards.wait_status(lambda seen: seen.deployments[0].ready_replicas == 3)
    assert places(cards) == ["cuda:0", "cuda:1", "cuda:2"]
    assert cards.config.read_text() == THREE_CARDS


def test_the_end_of_whoever_measures_is_the_end_of_the_trial(cards: Running) -> None:
    since = cards.inventory().supervisor.last_event
    words = command("bench", "--compare", "1,2", "--duration", "600", "--warmup", "0")
    started = subprocess.Popen(words, env=cards.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cards.wait_event(Scaled, lambda event: event.after == 1, since=since)
    before = requests(cards)
    cards.wait_status(lambda seen: seen.deployments[0].requests > before + 20)
    started.kill()
    started.wait()
    assert "gone" in cards.wait_event(Scaled, lambda event: event.after == 3, since=since).by
    cards.wait_status(lambda seen: seen.deployments[0].ready_replicas == 3)
    assert cards.config.read_text() == THREE_CARDS


def test_a_supervisor_that_is_killed_ends_the_comparison_without_a_wait(tmp_path: Path) -> None:
    with Running(tmp_path, stub_config(1)) as running:
        running.wait_ready(1)
        words = command("bench", "--name", running.name, "--compare", "1,2", "--duration", "1", "--warmup", "0")
        ran = subprocess.Popen(words, env=running.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.wait_status(lambda seen: seen.deployments[0].requests > 20)
        running.kill()
        err = ran.communicate(timeout=15)[1]
    assert ran.returncode == 3 and "no supervisor is running" in err


def test_of_two_comparisons_at_once_the_second_is_refused(cards: Running) -> None:
    with cards.client() as first:
        first.ask(Trial(deployment="stub", replicas=2))
        ran = bench(cards, "--compare", "1", "--duration", "0.1", "--warmup", "0")
        assert ran.code == 1
        assert "somebody else tries" in ran.err and "stoker scale stub 3" in ran.err
        assert cards.inventory().deployments[0].desired_replicas == 2
        assert accepted(first.ask(Trial(deployment="stub"))).asked == 3


def test_a_trial_of_no_replicas_is_refused_like_such_a_scale(cards: Running) -> None:
    with pytest.raises(CommandRefused, match="1 to 64"):
        cards.accepted(Trial(deployment="stub", replicas=0))
    assert cards.inventory().deployments[0].desired_replicas == 3


def test_figures_of_replicas_that_were_scaled_meanwhile_are_left_out(cards: Running) -> None:
    since = cards.inventory().supervisor.last_event
    words = command("bench", "--compare", "1", "--duration", "1", "--warmup", "0")
    started = subprocess.Popen(words, env=cards.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cards.wait_event(Scaled, lambda event: event.after == 1, since=since)
    before = requests(cards)
    cards.wait_status(lambda seen: seen.deployments[0].requests > before + 20)
    cards.accepted(Scale(deployment="stub", replicas=3))
    out, err = started.communicate(timeout=20)
    assert started.returncode == 1
    assert "scaled to 3" in err and "RATIO" not in out
    cards.wait_status(lambda seen: seen.deployments[0].ready_replicas == 3)


def test_a_trial_right_behind_a_scale_is_not_what_is_saved(cards: Running) -> None:
    with cards.client() as client:
        for number, asked in enumerate((Scale(deployment="stub", replicas=3), Trial(deployment="stub", replicas=1))):
            client._socket.send(encode(Call(CONTROL_PROTOCOL, 1000 + number, asked)))
        client.ask(GetStatus())
        assert accepted(client.ask(Trial(deployment="stub"))).asked == 3
    cards.accepted(Scale(deployment="stub", replicas=3))  # saved in order
    assert cards.config.read_text() == THREE_CARDS
    cards.wait_status(lambda seen: seen.deployments[0].ready_replicas == 3)


def test_a_scale_by_somebody_else_ends_the_trial_and_wins(cards: Running) -> None:
    with cards.client() as client:
        client.ask(Trial(deployment="stub", replicas=1))
        cards.accepted(Scale(deployment="stub", replicas=2))
        cards.wait_status(lambda seen: len(seen.deployments[0].replicas) == seen.deployments[0].ready_replicas == 2)
        assert places(cards) == ["cuda:0", "cuda:1"]
        assert accepted(client.ask(Trial(deployment="stub"))).asked == 2, "there is no trial to end"
    assert "cuda:2" not in cards.config.read_text()


# ------------------------------------------------------------------------------------------------ deciding


def result(per_s: float, p99: float = 10.0, **failures: int) -> Summary:
    spread = Spread(p50=5.0, p90=8.0, p99=p99, max=20.0, mean=5.0)
    return Summary(
        requests=100,
        answered=100,
        failures=failures,
        seconds=1.0,
        requests_per_s=per_s,
        inputs_per_s=per_s,
        tokens_per_s=0.0,
        latency_ms=spread,
    )


def test_a_layout_that_does_not_come_up_leaves_those_before_it(
    root: Path, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_until(client: object, judge: object, timeout_s: float) -> str:
        if fake.asked[-1] == Trial(deployment="primary", replicas=4):
            raise WaitFailed("primary/3 failed: no memory")
        return "ready"

    monkeypatch.setattr(benching, "wait_until", wait_until)
    monkeypatch.setattr(benching, "measure", lambda *_: result(100))
    with FakeSupervisor(root) as fake:
        ran = stoker("bench", "--compare", "2,4")
    assert ran.code == 1
    assert ran.out.splitlines()[1].split()[:2] == ["2", "100"]
    assert "4 replicas: primary/3 failed: no memory" in ran.err
    assert fake.asked[-1] == Trial(deployment="primary")


def test_most_answers_a_second_win_and_of_equals_the_smallest() -> None:
    layouts = [Layout(1, result(100)), Layout(2, result(195)), Layout(4, result(198))]
    assert best(layouts, Plan(Shape())).replicas == 2
    assert benching.remarks(layouts, Plan(Shape()), compared=True) == [
        "2 replicas win by requests/s: 1.95 times that of 1 replica"
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"failures": {"cut": 2}}, "cut: an answer that began, and broke off or ended with an error"),
        ({"failures": {"timeout": 2}}, "timeout: no answer within the limit of a request (--timeout)"),
        ({"failures": {"503": 2}, "messages": {"503": "no replica is ready"}}, "503: no replica is ready"),
        (
            {"interrupted": True, "unfinished": 58},
            "interrupted: these are the requests that had ended by then; 58",
        ),
        ({"requests_per_s": 70.0}, "the server fell behind: 70.0 answers/s at 100 requests/s"),
    ],
)
def test_what_the_table_cannot_say_is_said(fields: dict[str, Any], said: str) -> None:
    found = msgspec.structs.replace(result(100), **fields)
    (words,) = benching.remarks([Layout(0, found)], Plan(Shape(), None, rate=100), compared=False)
    assert words.startswith(said)


def test_a_rate_that_chance_or_refusals_explain_is_no_server_that_fell_behind() -> None:
    for fields in ({"requests": 99}, {"failures": {"429": 30}, "messages": {}}):
        found = msgspec.structs.replace(result(70), **fields)
        words = benching.remarks([Layout(0, found)], Plan(Shape(), None, rate=100), compared=False)
        assert not any("fell behind" in each for each in words)


@given(st.lists(st.floats(1e-5, 60), min_size=1, max_size=300))
def test_percentiles_are_the_least_latency_that_so_many_answers_had(seconds: list[float]) -> None:
    found = spread(seconds)
    assert found is not None
    for percent, value in ((50, found.p50), (90, found.p90), (99, found.p99), (100, found.max)):
        reached = [each for each in seconds if 100 * sum(other <= each for other in seconds) >= percent * len(seconds)]
        assert value == min(reached) * 1000


def test_at_a_rate_the_shortest_p99_without_failures_wins() -> None:
    layouts = [Layout(1, result(50, 3.0, timeout=2)), Layout(2, result(50, 9.0)), Layout(4, result(50, 30.0))]
    assert best(layouts, Plan(Shape(), None, rate=50)).replicas == 2


@pytest.mark.parametrize(
    ("task", "stream", "route"),
    [
        ("embed", False, "embeddings"),
        ("classify", False, "classify"),
        ("rerank", False, "rerank"),
        ("generate", False, "chat"),
        ("any", False, "embeddings"),
        ("any", True, "chat"),
    ],
)
def test_the_route_follows_from_the_task(task: str, stream: bool, route: str) -> None:
    assert route_for(deployment(replica("primary/0"), task=task), stream) == route


def test_a_task_that_is_not_known_yet_asks_for_the_route() -> None:
    with pytest.raises(CannotBench, match="--route"):
        route_for(deployment(replica("primary/0"), task="auto"), False)


def test_of_several_deployments_one_has_to_be_named() -> None:
    two = inventory(deployment(replica("a/0"), name="a"), deployment(replica("b/0"), name="b"))
    assert find_deployment(two, "b").name == "b"
    for name in (None, "c"):
        with pytest.raises(StokerError, match="a, b"):
            find_deployment(two, name)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("0.0.0.0:8100", "http://127.0.0.1:8100"),
        ("[::]:8100", "http://[::1]:8100"),
        ("unix:///tmp/s", "unix:///tmp/s"),
    ],
)
def test_a_supervisor_is_reached_from_this_machine(listen: str, url: str) -> None:
    assert address_of(listen) == url
