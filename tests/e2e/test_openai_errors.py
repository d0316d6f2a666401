"""The openai client's error classes: each refusal of ours is raised as the one that its users know (spec 11)."""

from __future__ import annotations

import http.client

import openai
import pytest

from supervisor.core.dispatch import MOST_IN_FLIGHT
from tests.conftest import Serve
from tests.support import Running, stub_config


def embed(client: openai.OpenAI, text: str | list[str] = "x", **headers: str) -> None:
    client.embeddings.create(model="stub", input=text, extra_headers=headers)


def begin(running: Running) -> http.client.HTTPConnection:
    """A request whose answer nobody waits for yet."""
    connection = running.connect()
    connection.request("POST", "/v1/embeddings", b'{"input": "x"}')
    return connection


def in_flight(running: Running, count: int) -> None:
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == count)


def test_each_refusal_is_the_error_that_openais_users_know(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="not needed", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="input") as bad:
        embed(client, [])
    assert bad.value.param == "input"
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.embeddings.create(model="nobody", input="x")
    running.faults("stub/0", hang=True)
    with pytest.raises(openai.InternalServerError) as late:
        embed(client, **{"X-Request-Timeout-Ms": "100"})
    assert late.value.status_code == 504
    in_flight(running, 0)
    filled = [begin(running) for _ in range(MOST_IN_FLIGHT)]
    in_flight(running, MOST_IN_FLIGHT)
    with pytest.raises(openai.RateLimitError) as full:
        embed(client)
    assert (full.value.status_code, full.value.response.headers["retry-after"]) == (429, "1")
    for connection in filled:
        connection.close()
    in_flight(running, 0)
    running.faults("stub/0", fail=True)
    with pytest.raises(openai.InternalServerError, match="the stub fails, as asked") as failed:
        embed(client)
    assert failed.value.status_code == 500


def test_a_wrong_key_is_an_authentication_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "right")
    running = serve(stub_config(replicas=1) + "  api_key_env: THE_KEY\n")
    running.wait_ready(1)
    embed(openai.OpenAI(base_url=f"{running.url}/v1", api_key="right", max_retries=0))
    with pytest.raises(openai.AuthenticationError):
        embed(openai.OpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0))
