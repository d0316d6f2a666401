"""The link to attached replicas: running OpenAI-compatible servers that somebody else started (spec 6, 10).

    HttpCarrier.send ----> Session.post ----> foreign server      one task an exchange, one session a server
    Receiver <-- answer, chunk, end, broken ------'
    Receiver <-- Health <-- HealthProbe                           from its carrier's making until it is forgotten

The twin of `links.zeromq`: what that one reads from frames this one reads from HTTP. It judges no replica and has
no deadline; those are dispatch's, which says `cancel`. Light: aiohttp is behind `links.http_session`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from engine.messages import Request, Route
from supervisor.links.health import HEALTH_PATH, Health, HealthProbe
from supervisor.links.rewrite import Broken, EventRenamer, to_caller, to_server

if TYPE_CHECKING:
    from supervisor.links.http_session import Session, Way

PATHS: dict[int, str] = {
    Route.EMBEDDINGS: "/v1/embeddings",
    Route.COMPLETIONS: "/v1/completions",
    Route.CHAT: "/v1/chat/completions",
    Route.CLASSIFY: "/v1/classify",
    Route.RERANK: "/v1/rerank",
}
"""Where a foreign server answers each route: under the gateway's own paths."""


class Receiver(Protocol):
    """Who is told what comes back from one attached replica; never from within `send`, `cancel` or `forget`.

    An exchange that is neither cancelled nor forgotten ends with one of `on_answer`, `on_end`, `on_broken`.
    """

    def on_answer(self, number: int, status: int, body: bytes) -> None:
        """The whole answer of an exchange, as JSON."""

    def on_chunk(self, number: int, data: bytes) -> None:
        """The next bytes of a streamed answer."""

    def on_end(self, number: int) -> None:
        """A streamed answer is complete."""

    def on_broken(self, number: int, reason: str) -> None:
        """An exchange came to no answer, or to no more of it. The reason names the server."""

    def on_health(self, health: Health) -> None:
        """The result of a probe; every probe's, also where nothing changed."""


class HttpLink:
    """The supervisor's end of all connections to foreign servers."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def carrier(
        self,
        endpoint: str,
        model: str | None,
        logical_name: str,
        receiver: Receiver,
        health_path: str = HEALTH_PATH,
    ) -> HttpCarrier:
        """The way to one foreign server, which is probed from now on.

        model: the name under which the server knows it; None: callers' names pass as they are, no body is read.
        logical_name: what an answer calls the model where the request named none.
        """
        base = base_url(endpoint)
        server = self._servers.get(base)
        if server is None:
            server = self._servers[base] = _Server(base)
        carrier = HttpCarrier(server, model, logical_name, receiver, health_path, self._on_forgotten)
        server.carriers.add(carrier)
        return carrier

    async def close(self) -> None:
        """Forget every replica and close every connection."""
        for server in list(self._servers.values()):
            for carrier in list(server.carriers):
                carrier.forget()
        if self._closing:
            await asyncio.wait(self._closing)

    def _on_forgotten(self, carrier: HttpCarrier) -> None:
        """The last carrier of a server takes its connections along."""
        server = carrier.server
        server.carriers.discard(carrier)
        if not server.carriers:
            del self._servers[server.base]
            task = asyncio.get_running_loop().create_task(server.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class HttpCarrier:
    """The way to one attached replica (`links.carrier.Carrier`); made by `HttpLink.carrier`."""

    def __init__(
        self,
        server: _Server,
        model: str | None,
        logical_name: str,
        receiver: Receiver,
        health_path: str,
        on_forgotten: Callable[[HttpCarrier], None],
    ) -> None:
        self.server = server
        self._model = model
        self._logical_name = logical_name
        self._receiver = receiver
        self._on_forgotten = on_forgotten
        self._open: dict[int, _Exchange] = {}
        self._forgotten = False
        self._loop = asyncio.get_running_loop()
        self._probe = HealthProbe(server.shown, server.get, model, receiver.on_health, health_path)
        self._probing = self._loop.create_task(self._keep_probing())
        self._probing.add_done_callback(self._report)

    def send(self, request: Request, body: bytes) -> bool:
        if self._forgotten:
            return False
        exchange = self._open[request.exchange] = _Exchange()
        exchange.task = self._loop.create_task(self._carry(exchange, request, body))
        exchange.task.add_done_callback(functools.partial(self._on_done, request.exchange, exchange))
        return True

    def cancel(self, exchange: int) -> None:
        opened = self._open.pop(exchange, None)
        if opened is not None:
            opened.give_up()

    def ask(self) -> None:
        self._probe.ask()

    def forget(self) -> None:
        """That replica is over: its exchanges are cut, its probes end, its receiver hears no more of it."""
        if self._forgotten:
            return
        self._forgotten = True
        self._probing.cancel()
        for number in list(self._open):
            self.cancel(number)
        self._on_forgotten(self)

    async def _carry(self, exchange: _Exchange, request: Request, body: bytes) -> None:
        number = request.exchange
        try:
            tell = await self._answer(exchange, request, body)
        except Broken as error:
            tell = functools.partial(self._receiver.on_broken, number, f"{self.server.shown}: {error}")
        if self._close(number, exchange):
            tell()

    async def _answer(self, exchange: _Exchange, request: Request, body: bytes) -> Callable[[], None]:
        """Carry one exchange out, passing on what is streamed; how its end is to be told. Raises Broken."""
        number = request.exchange
        body, served, caller = self._named(body)
        renamer = EventRenamer(served, caller)

        def on_piece(piece: bytes) -> None:
            self._pass_on(number, exchange, renamer.feed(piece))

        session = await self.server.session()
        exchange.way = way = session.new_way()
        answer = await session.post(way, PATHS[request.route], body, on_piece if request.stream else None)
        if answer is None:
            self._pass_on(number, exchange, renamer.flush())
            return functools.partial(self._receiver.on_end, number)
        status, body = answer
        if status < 400:
            body = to_caller(body, served, caller)
        return functools.partial(self._receiver.on_answer, number, status, body)

    def _named(self, body: bytes) -> tuple[bytes, str, str]:
        """The request for the server, and the model's served and caller's name; equal ones: no renaming."""
        if self._model is None:
            return body, "", ""
        body, caller = to_server(body, self._model)
        return body, self._model, self._logical_name if caller is None else caller

    def _pass_on(self, number: int, exchange: _Exchange, data: bytes) -> None:
        if data and self._open.get(number) is exchange:
            self._receiver.on_chunk(number, data)

    def _close(self, number: int, exchange: _Exchange) -> bool:
        """Whether its end is still to be told: nobody gave it up, and it was not told yet."""
        if self._open.get(number) is not exchange:
            return False
        del self._open[number]
        return True

    async def _keep_probing(self) -> None:
        await self.server.session()  # the first use imports aiohttp, for which no probe is to blame
        await self._probe.run()

    def _on_done(self, number: int, exchange: _Exchange, task: asyncio.Task[None]) -> None:
        """A mistake of ours must not leave its exchange open."""
        self._report(task)
        if self._close(number, exchange):
            self._receiver.on_broken(number, f"{self.server.shown}: the exchange could not be carried out")

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": f"the link to {self.server.shown} failed", "exception": error, "task": task}
            )


class _Exchange:
    """One exchange that is open: what is needed to give it up."""

    __slots__ = ("task", "way")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.way: Way | None = None

    def give_up(self) -> None:
        """Close its connection, so that the server stops; whatever it has still to send."""
        if self.way is not None:
            self.way.abort()
        if self.task is not None:
            self.task.cancel()


class _Server:
    """One foreign server, shared by the carriers of all replicas that stand behind it."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.shown = shown(base)
        self.carriers: set[HttpCarrier] = set()
        self._session: Session | None = None

    async def session(self) -> Session:
        """The connections to it; made at the first use, which takes as long as importing aiohttp does."""
        if self._session is None:
            made = await asyncio.to_thread(_session_class)
            if self._session is None:
                self._session = made(self.base)
        return self._session

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page. Raises Broken."""
        return await (await self.session()).get(path)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _session_class() -> type[Session]:
    from supervisor.links.http_session import Session

    return Session


def base_url(endpoint: str) -> str:
    """What paths are appended to: the endpoint without slashes at its end and a client's `/v1`."""
    base = endpoint.rstrip("/")
    return base if base.startswith("unix://") else base.removesuffix("/v1").rstrip("/")


def shown(endpoint: str) -> str:
    """The endpoint as people may see it: without user, password, query and fragment."""
    scheme, separator, rest = endpoint.partition("://")
    if scheme == "unix":
        return endpoint
    parts = urlsplit(rest and f"//{rest}")
    return f"{scheme}{separator}{parts.netloc.rpartition('@')[2]}{parts.path}"
