"""When a foreign server is probed, and what its answers mean: on a clock that jumps, and against real servers."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

import pytest

from supervisor.links.health import Fetch, Health, HealthProbe, HealthState
from supervisor.links.rewrite import Broken
from tests.links.foreign import ANSWER, BODY, Answering, Scene, played, read_request, soon, unary, whole

READY, NOT_READY, MISSING = HealthState.READY, HealthState.NOT_READY, HealthState.MISSING
UNRESPONSIVE, UNREACHABLE = HealthState.UNRESPONSIVE, HealthState.UNREACHABLE
SHOWN = "http://there"


# ----------------------------------------------------------------------------------------- what an answer means


def pages(**found: tuple[int, bytes]) -> Fetch:
    """A server with these pages; others are 404."""

    async def fetch(path: str) -> tuple[int, bytes]:
        return found.get(path.rpartition("/")[2], (404, b"no such page"))

    return fetch


def look(fetch: Fetch, model: str | None = None) -> Health:
    return asyncio.run(HealthProbe(SHOWN, fetch, model, lambda _: None).look())


OTHERS = f"{SHOWN} has no model 'c', it has 'a', 'b'"
MODELS = b'{"object":"list","data":[{"id":"a","root":"/x"},{"id":"b"}]}'


@pytest.mark.parametrize(
    ("found", "model", "state", "reason", "models"),
    [
        ({"health": (200, b"")}, None, READY, "", None),
        ({"health": (200, b""), "models": (200, MODELS)}, None, READY, "", None),
        ({"health": (503, b"")}, None, NOT_READY, f"{SHOWN} answered /health with 503 Service Unavailable", None),
        ({"health": (308, b"")}, None, NOT_READY, f"{SHOWN} answered /health with 308 Permanent Redirect", None),
        ({"health": (503, b""), "models": (200, MODELS)}, "a", NOT_READY, None, None),
        ({"models": (200, MODELS)}, None, READY, "", ["a", "b"]),
        ({}, None, NOT_READY, f"{SHOWN} has no /health and answered /v1/models with 404 Not Found", None),
        ({"health": (200, b""), "models": (200, MODELS)}, "b", READY, "", ["a", "b"]),
        ({"health": (200, b""), "models": (200, MODELS)}, "c", MISSING, OTHERS, ["a", "b"]),
        ({"models": (200, MODELS)}, "c", MISSING, OTHERS, ["a", "b"]),
        ({"models": (200, b'{"data":[]}')}, "c", MISSING, f"{SHOWN} has no model 'c', nor any other", []),
        ({"health": (200, b"")}, "c", READY, "", None),
        ({"health": (200, b""), "models": (401, b"")}, "c", READY, "", None),
        ({"health": (200, b""), "models": (200, b"<html>")}, "c", READY, "", None),
        ({"health": (200, b""), "models": (200, b'{"data":[{"name":"c"}]}')}, "c", READY, "", None),
    ],
)  # fmt: skip
def test_what_pages_mean(
    found: dict[str, tuple[int, bytes]],
    model: str | None,
    state: HealthState,
    reason: str | None,
    models: list[str] | None,
) -> None:
    health = look(pages(**found), model)
    assert (health.state, health.models) == (state, models)
    assert reason is None or health.reason == reason
    assert health.ready is (state is READY)


def test_a_server_with_many_models_is_named_by_a_few() -> None:
    listed = b'{"data":[' + b",".join(b'{"id":"m%d"}' % n for n in range(100)) + b"]}"
    health = look(pages(models=(200, listed)), "x")
    assert health.reason.endswith("'m7' and 92 more")
    assert health.models is not None and len(health.models) == 100


def test_no_connection_is_unreachable() -> None:
    async def fetch(path: str) -> tuple[int, bytes]:
        raise Broken("connection refused")

    assert look(fetch) == Health(UNREACHABLE, f"{SHOWN}: connection refused")


# ----------------------------------------------------------------------------------------------- when it is asked


class Jumping(selectors.DefaultSelector):
    """Waits for nothing: the time of its loop jumps to whatever is due next."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop on whose clock hours pass in no time."""

    def __init__(self) -> None:
        self.jumping = Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class Timeline:
    """A probe on a jumping clock: when pages were fetched, and what each probe found, to the millisecond."""

    def __init__(self, answer: Callable[[float], int], takes_s: Callable[[float], float] = lambda now: 0.0) -> None:
        self.fetched: list[float] = []
        self.found: list[tuple[float, HealthState]] = []
        self.most_at_once = self._at_once = 0
        self._answer = answer
        self._takes_s = takes_s
        self.probe = HealthProbe(SHOWN, self._fetch, None, self._on_health)

    async def _fetch(self, path: str) -> tuple[int, bytes]:
        now = asyncio.get_running_loop().time()
        self.fetched.append(round(now, 3))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self._takes_s(now))
        finally:
            self._at_once -= 1
        return self._answer(now), b""

    def _on_health(self, health: Health) -> None:
        self.found.append((round(asyncio.get_running_loop().time(), 3), health.state))

    def play(self, until: float, *asks: float) -> Timeline:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            running = loop.create_task(self.probe.run())
            for at in asks:
                loop.call_at(at, self.probe.ask)
            await asyncio.sleep(until)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()

        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(main())
        assert self.most_at_once <= 1
        return self


def test_each_half_second_until_ready_then_each_five() -> None:
    played = Timeline(lambda now: 200 if now >= 1.4 else 503).play(until=12.0)
    assert played.fetched == [0.0, 0.5, 1.0, 1.5, 6.5, 11.5]


def test_a_server_that_fails_is_probed_fast_again() -> None:
    played = Timeline(lambda now: 500 if 4 <= now < 6 else 200).play(until=12.0)
    assert played.found == [(0.0, READY), (5.0, NOT_READY), (5.5, NOT_READY), (6.0, READY), (11.0, READY)]


def test_the_interval_is_from_probe_to_probe_however_long_one_takes() -> None:
    played = Timeline(lambda now: 503, takes_s=lambda now: 0.3).play(until=1.9)
    assert played.fetched == [0.0, 0.5, 1.0, 1.5]
    slow = Timeline(lambda now: 503, takes_s=lambda now: 0.8).play(until=2.0)
    assert slow.fetched == [0.0, 0.8, 1.6]


def test_a_probe_ends_at_its_limit() -> None:
    played = Timeline(lambda now: 200, takes_s=lambda now: 60.0 if now < 3 else 0.0).play(until=5.0)
    assert played.found == [(2.0, UNRESPONSIVE), (4.0, UNRESPONSIVE), (4.0, READY)]


def test_asking_makes_the_next_probe_now() -> None:
    played = Timeline(lambda now: 200).play(9.0, 1.2)
    assert played.fetched == [0.0, 1.2, 6.2]


def test_many_askings_are_one_probe() -> None:
    played = Timeline(lambda now: 200).play(4.0, *[1.0] * 50)
    assert played.fetched == [0.0, 1.0]


def test_asking_during_a_probe_is_one_more_right_after_it() -> None:
    played = Timeline(lambda now: 200, takes_s=lambda now: 1.0).play(6.0, 0.1, 0.2, 0.3)
    assert played.fetched == [0.0, 1.0]


def test_a_list_of_models_that_is_not_told_now_is_the_one_that_was_told_last() -> None:
    """llama-cpp-python tells its models only between two generations."""
    delays_s = iter((0.0, 60.0, 60.0))

    async def fetch(path: str) -> tuple[int, bytes]:
        if path == "/v1/models":
            await asyncio.sleep(next(delays_s))
        return 200, b'{"data":[{"id":"a"}]}'

    async def looks() -> list[Health]:
        probe, other = (HealthProbe(SHOWN, fetch, model, lambda _: None) for model in ("a", "b"))
        return [await probe.look(), await probe.look(), await other.look()]

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        told, untold, never_told = runner.run(looks())
    assert told == untold == Health(READY, models=["a"])
    assert never_told == Health(READY)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (200, READY, ""),
        (503, NOT_READY, f"{SHOWN} answered /live with 503 Service Unavailable"),
        (404, NOT_READY, f"{SHOWN} answered /live with 404 Not Found"),
    ],
)
def test_a_health_page_of_its_own_decides_alone(status: int, state: HealthState, reason: str) -> None:
    async def fetch(path: str) -> tuple[int, bytes]:
        assert path == "/live"
        return status, b""

    probe = HealthProbe(SHOWN, fetch, None, lambda _: None, "/live")
    assert asyncio.run(probe.look()) == Health(state, reason)


# --------------------------------------------------------------------------------------------------- real servers


@played
async def test_health_flaps_are_heard_in_order(scene: Scene) -> None:
    status = ["200 OK"]

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(whole(b"", status[0]))

    carrier = scene.attach(await scene.serve(connection))
    for said, state in (("200 OK", READY), ("503 Busy", NOT_READY), ("200 OK", READY), ("500 No", NOT_READY)):
        status[0] = said
        carrier.ask()
        while (await scene.heard.health()).state is not state:
            pass


@played
async def test_a_server_that_is_not_there_yet_is_ready_once_it_is(scene: Scene) -> None:
    path = scene.folder / "foreign.sock"
    scene.attach(f"unix://{path}")
    health = await scene.heard.health()
    assert health.state is UNREACHABLE
    assert health.reason == f"unix://{path}: no such file or directory"
    await scene.serve(Answering(), unix=True)
    while not (health := await scene.heard.health()).ready:
        assert health.state is UNREACHABLE
    assert health == Health(READY)


@played
async def test_a_server_without_its_model_is_missing_it(scene: Scene) -> None:
    server = Answering(models=["a", "b"])
    endpoint = await scene.serve(server)
    carrier = scene.attach(endpoint, "c")
    assert await scene.heard.health() == Health(MISSING, f"{endpoint} has no model 'c', it has 'a', 'b'", ["a", "b"])
    server.models = ["c"]
    carrier.ask()
    assert await scene.heard.health() == Health(READY, "", ["c"])


@played
async def test_a_server_that_does_not_speak_http_is_unreachable(scene: Scene) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()

    endpoint = await scene.serve(connection)
    scene.attach(endpoint)
    assert await scene.heard.health() == Health(UNREACHABLE, f"{endpoint}: its answer is not valid HTTP")


@played
async def test_two_replicas_of_one_server_have_a_health_of_their_own(scene: Scene) -> None:
    endpoint = await scene.serve(Answering(models=["a"]))
    scene.attach(endpoint, "a")
    assert (await scene.heard.health()).state is READY
    scene.attach(endpoint, "b")
    assert (await scene.heard.health()).state is MISSING


@played
async def test_a_probe_that_hangs_delays_no_exchange(scene: Scene) -> None:
    hangs = asyncio.Event()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            if (await read_request(reader)).method == "GET":
                hangs.set()
                await reader.read()
                return
            writer.write(whole(ANSWER))

    carrier = scene.attach(await scene.serve(connection))
    await soon(hangs.wait())
    carrier.send(unary(), BODY)
    assert await scene.heard.next() == ("answer", 1, 200, ANSWER)
    assert scene.heard.healths.empty()
