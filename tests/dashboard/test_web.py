"""The dashboard in a browser (spec 14, 15): who gets in, what a tab may do, and that no tab outlives what it shows."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.conftest import Serve
from tests.support import LONG_S, Running, stub_config

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_SEQUENCES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
LONGEST = aiohttp.ClientTimeout(total=LONG_S)


class Web:
    """A `stoker top --web` that has said where it is."""

    def __init__(self, running: Running, *options: str) -> None:
        self.command = [sys.executable, "-m", "ui.cli.main", "top", "--web", "--port", "0", "--name", "test", *options]
        self.process = subprocess.Popen(self.command, env=running.environ, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.base = self.address.split("/?")[0]

    def tabs(self) -> list[psutil.Process]:
        """The dashboards that it runs."""
        return psutil.Process(self.process.pid).children(recursive=True)


Open = Callable[..., Web]


@pytest.fixture
def running(serve: Serve) -> Running:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    return running


@pytest.fixture
def open_web(running: Running) -> Iterator[Open]:
    opened: list[Web] = []

    def start(*options: str) -> Web:
        opened.append(Web(running, *options))
        return opened[-1]

    yield start
    for web in opened:
        web.process.terminate()
        web.process.wait(20)
        assert web.process.stdout is not None
        web.process.stdout.close()


async def _seen(tab: aiohttp.ClientWebSocketResponse, text: str) -> None:
    """Read what is drawn until that text is in it."""
    picture = b""
    async with asyncio.timeout(LONG_S):
        while text.encode() not in _SEQUENCES.sub(b"", picture):
            message = await tab.receive()
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), (message, picture[-500:])
            if message.type is aiohttp.WSMsgType.BINARY:
                picture += message.data


def in_a_tab(web: Web, act: Callable[[aiohttp.ClientWebSocketResponse], Awaitable[None]]) -> None:
    """Open the printed address as a browser does, cookie and all, and act in it once the fleet is shown."""

    async def browse() -> None:
        jar = aiohttp.CookieJar(unsafe=True)  # it is an IP address
        async with aiohttp.ClientSession(cookie_jar=jar, timeout=LONGEST) as browser:
            async with browser.get(web.address) as page:
                assert page.status == 200 and page.url.query_string == "", "the key does not stay in the address"
                assert "default-src 'self'" in page.headers["Content-Security-Policy"]
                assert "/ws" in await page.text()
            async with browser.ws_connect(f"{web.base}/ws?width=100&height=30") as tab:
                await _seen(tab, "1 of 1 ready")
                await act(tab)

    asyncio.run(browse())


def status_of(web: Web, path: str, **headers: str) -> int:
    async def ask() -> int:
        async with (
            aiohttp.ClientSession(timeout=LONGEST) as stranger,
            stranger.get(web.base + path, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status

    return asyncio.run(ask())


def test_nobody_gets_in_without_the_key_or_from_another_page(open_web: Open) -> None:
    web = open_web()
    right = web.address.removeprefix(web.base)
    port = web.base.rsplit(":", 1)[1]
    assert status_of(web, right) == 302
    assert status_of(web, "/") == status_of(web, "/?key=guessed") == status_of(web, "/?key=%C3%A9") == 403
    assert status_of(web, "/ws") == status_of(web, "/download/x") == 403
    asked = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    asked.request("GET", "/", headers={"Cookie": b"stoker-%b=\xff" % port.encode()})
    assert asked.getresponse().status == 403, "bytes that are no text"
    asked.close()
    assert status_of(web, right, Host=f"attacker.example:{port}") == 403, "another name for this address"
    assert status_of(web, right, Origin="http://attacker.example") == 403, "another page's script"
    assert web.tabs() == []


def test_a_browser_only_looks_unless_it_was_allowed_more(running: Running, open_web: Open) -> None:
    async def press_plus_then_ask_for_help(tab: aiohttp.ClientWebSocketResponse) -> None:
        await tab.send_json(["stdin", "+"])
        await tab.send_json(["stdin", "?"])
        await _seen(tab, "Esc closes")

    in_a_tab(open_web(), press_plus_then_ask_for_help)
    assert len(running.replicas()) == 1

    async def press_plus(tab: aiohttp.ClientWebSocketResponse) -> None:
        await tab.send_json(["stdin", "+"])
        await _seen(tab, "2 of 2 ready")

    in_a_tab(open_web("--allow-actions"), press_plus)
    running.wait_ready(2)


def test_a_tab_that_is_closed_and_a_server_that_is_killed_leave_no_dashboard(open_web: Open) -> None:
    web = open_web()
    tabs: list[psutil.Process] = []

    async def look(tab: aiohttp.ClientWebSocketResponse) -> None:
        tabs.extend(web.tabs())

    in_a_tab(web, look)
    assert tabs and not psutil.wait_procs(tabs, timeout=20)[1], "the tab was closed"
    tabs.clear()

    async def kill(tab: aiohttp.ClientWebSocketResponse) -> None:
        tabs.extend(web.tabs())
        web.process.kill()
        while (await tab.receive()).type is aiohttp.WSMsgType.BINARY:
            pass

    in_a_tab(web, kill)
    assert tabs and not psutil.wait_procs(tabs, timeout=20)[1], "the server was killed"


def test_a_tab_that_is_killed_closes_its_socket_and_no_size_is_believed(open_web: Open) -> None:
    web = open_web()

    async def browse() -> None:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar, timeout=LONGEST) as browser:
            await (await browser.get(web.address)).read()
            async with browser.ws_connect(f"{web.base}/ws?width=999999999&height=999999999") as tab:
                await _seen(tab, "1 of 1 ready")
                await tab.send_json(["resize", {"width": 10**9, "height": -5}])
                await tab.send_json(["resize", {"width": 100, "height": 10**9}])
                await tab.send_json(["stdin", "?"])
                await _seen(tab, "Esc closes")
                for process in web.tabs():
                    process.kill()
                async with asyncio.timeout(LONG_S):
                    while not tab.closed:
                        await tab.receive()
            for nonsense in ("no json", '["resize", {"width": "wide"}]'):
                async with browser.ws_connect(f"{web.base}/ws?width=80&height=24") as tab:
                    await tab.send_str(nonsense)
                    async with asyncio.timeout(LONG_S):
                        while not tab.closed:
                            await tab.receive()

    asyncio.run(browse())
    assert not psutil.wait_procs(web.tabs(), timeout=20)[1]
    assert status_of(web, "/") == 403, "it still answers"


def test_a_port_that_is_taken_is_said(running: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "ui.cli.main", "top", "--web", "--port", port, "--name", "test"]
        done = subprocess.run(command, env=running.environ, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 1 and f"127.0.0.1:{port}" in done.stderr and "--port" in done.stderr


class Chromium:
    """One page of a headless browser, over its debugging socket."""

    def __init__(self, page: aiohttp.ClientWebSocketResponse) -> None:
        self._page = page
        self._calls = 0

    async def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        await self._page.send_json({"id": self._calls, "method": method, "params": parameters})
        while True:
            answer = json.loads((await self._page.receive()).data)
            if answer.get("id") == self._calls:
                return answer["result"]

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Ask again and again, until it is so."""
        async with asyncio.timeout(LONG_S):
            while not await self.value(expression):
                await asyncio.sleep(0.05)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_real_browser_draws_it_its_keys_arrive_and_a_lost_server_is_said(
    running: Running, open_web: Open, tmp_path: Path
) -> None:
    web = open_web("--allow-actions")
    assert CHROMIUM is not None
    browser = subprocess.Popen(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",  # it would look for its maker's hosts
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-port=0",
            f"--user-data-dir={tmp_path / 'profile'}",
            "about:blank",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert browser.stderr is not None
    try:
        socket_line = next(line for line in browser.stderr if line.startswith("DevTools listening on "))
        asyncio.run(_browse(web, running, socket_line.split("ws://")[1].split("/")[0]))
    finally:
        browser.terminate()
        browser.wait(20)
        browser.stderr.close()


async def _browse(web: Web, running: Running, debugging: str) -> None:
    async with aiohttp.ClientSession(timeout=LONGEST) as session:
        async with session.get(f"http://{debugging}/json") as answer:
            pages = [each for each in await answer.json() if each["type"] == "page"]
        async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Chromium(socket)
            await page.call("Page.navigate", url=web.address)
            async with asyncio.timeout(LONG_S):
                await page.until("document.querySelectorAll('.xterm-screen canvas').length > 0")
                await page.value("document.querySelector('.xterm-helper-textarea').focus()")
                pictures = set()
                while len(running.replicas()) < 2:
                    await page.call("Input.insertText", text="+")
                    pictures.add(base64.b64decode((await page.call("Page.captureScreenshot"))["data"]))
            assert await page.value("location.search") == "", "the key does not stay in the address"
            assert max(map(len, pictures)) > 10_000, "something is drawn"
            assert await page.value("document.title") == "stoker test"
            assert await page.value("document.querySelector('.xterm-screen').clientWidth > innerWidth - 20")
            for tab in web.tabs():
                tab.kill()
            await page.until("document.getElementById('words').textContent.includes('has ended')")
            assert await page.value("getComputedStyle(document.getElementById('again')).display") == "block"
            await page.value("window.isTheOldPage = true, document.getElementById('again').click()")
            await page.until("!window.isTheOldPage && document.body.classList.contains('-first-byte')")
            web.process.kill()
            await page.until("document.getElementById('words').textContent.includes('retrying')")
            assert await page.value("getComputedStyle(document.getElementById('notice')).display") == "flex"
