"""The dashboard in a browser: textual-serve on loopback, behind a key of this run (spec 14, 15).

Each browser tab is a dashboard process of its own, a client of the control socket like any other. Control needs the
same user, but any user of the machine reaches a loopback port, and so does any web page that a browser shows. So the
address that is printed carries a key; whoever opens it gets a cookie, and only the cookie opens the socket. What comes
under another host name or from another page's script is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import select
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from engine.errors import StokerError
from ui.dashboard.terminal import sane_size

LOOPBACK = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
"""Where the page around the terminal is."""
CLOSING_S = 3.0
"""How long open tabs may take to end when the server does, in seconds."""
HEARTBEAT_S = 15.0
"""How often a browser is asked whether it is still there, in seconds."""

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws:; frame-ancestors 'none'"
)
"""Nothing is fetched from elsewhere, and no page may frame this one."""


log = logging.getLogger("stoker.web")


class CannotListen(StokerError):
    """The port cannot be had."""


class Tab(AppService):
    """One tab's dashboard process. Its socket closes when the process ends, however that was: the page says so."""

    async def start(self, width: int, height: int) -> None:
        await super().start(*sane_size(width, height))

    async def set_terminal_size(self, width: int, height: int) -> None:
        await super().set_terminal_size(*sane_size(width, height))

    async def run(self) -> None:
        """Pass on what it draws, until it ends."""
        try:
            await super().run()
        finally:
            await self.remote_close()


class Guarded(Server):
    """textual-serve, for those who have the key."""

    def __init__(self, command: str, port: int, title: str) -> None:
        super().__init__(command, host=LOOPBACK, port=port, title=title, templates_path=PAGE)
        self._key = secrets.token_urlsafe(24)
        self._cookie = f"stoker-{port}"

    @property
    def address(self) -> str:
        """What the user opens."""
        return f"{self.public_url}/?key={self._key}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Silent: who has started it says where it is."""

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """A tab from its first picture to its end. What it sends is believed no more than its size is."""
        browser = web.WebSocketResponse(heartbeat=HEARTBEAT_S)
        await browser.prepare(request)

        async def close() -> None:
            await browser.close()

        tab = Tab(
            self.command,
            write_bytes=browser.send_bytes,
            write_str=browser.send_str,
            close=close,
            download_manager=self.download_manager,
        )
        await tab.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
        try:
            await self._process_messages(browser, tab)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            log.warning("a tab sent what no page of ours sends, and is closed: %r", error)
        except asyncio.CancelledError:
            await browser.close()
        finally:
            await tab.stop()
        return browser

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_mine(request):
            raise web.HTTPForbidden(text="this address is answered under its own name and to its own page only")
        if request.path == "/" and (key := request.query.get("key")) is not None:
            return self._let_in(key)
        if not request.path.startswith("/static/"):
            self._require(request.cookies.get(self._cookie, ""))
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = POLICY
            response.headers["Referrer-Policy"] = "no-referrer"
        return response

    def _is_mine(self, request: web.Request) -> bool:
        """Whether browser and page mean this server; a name of somebody else's may have been bent to this address."""
        origin = request.headers.get("Origin")
        hosts = {f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"}
        return request.host in hosts and (origin is None or urlsplit(origin).netloc in hosts)

    def _let_in(self, key: str) -> web.Response:
        self._require(key)
        response = web.Response(status=302, headers={"Location": "/"})
        response.set_cookie(self._cookie, self._key, httponly=True, samesite="Strict")
        return response

    def _require(self, key: str) -> None:
        if not hmac.compare_digest(key.encode(errors="surrogateescape"), self._key.encode()):
            raise web.HTTPForbidden(text="open the whole address that `stoker top --web` has printed, with its key")


def serve_in_browser(control_path: str, name: str, port: int, *, readonly: bool, tell: Callable[[str], None]) -> None:
    """Serve the dashboard of the supervisor behind `control_path` until a signal. tell: told the address.

    port: of 127.0.0.1, 0 for any free one. Raises CannotListen.
    """
    listening = _listen(port)
    child = [sys.executable, "-m", "ui.dashboard.web", control_path, *(["readonly"] if readonly else [])]
    server = Guarded("exec " + shlex.join(child), listening.getsockname()[1], f"stoker {name}")
    logging.getLogger("textual-serve").setLevel(logging.WARNING)
    tell(server.address)
    web.run_app(server._make_app(), sock=listening, print=None, access_log=None, shutdown_timeout=CLOSING_S)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise CannotListen(f"cannot listen on {LOOPBACK}:{port}: {error.strerror}; give another --port") from error


def _tab() -> None:
    """One tab's dashboard; textual-serve has set the driver that talks to it."""
    from ui.dashboard.app import run_dashboard

    threading.Thread(target=_leave_with_the_server, daemon=True).start()
    os.environ["LC_ALL"] = "C.UTF-8"  # a browser can draw all of it
    run_dashboard(sys.argv[1], readonly="readonly" in sys.argv[2:], owns_supervisor=False)


def _leave_with_the_server() -> None:
    """A server that was killed reads no more; the driver would wait for it."""
    nobody_reads = select.poll()
    nobody_reads.register(sys.stdout.fileno(), 0)  # errors and hang-ups are told without being asked for
    nobody_reads.poll()
    os._exit(1)


if __name__ == "__main__":
    _tab()
