"""A server that answers as it was told, one answer a request: what a load generator has to live with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Act = Callable[[socket.socket], bool]
"""Answers one request; whether the connection stays open."""


def answer(status: int = 200, body: bytes = b"{}", headers: str = "") -> Act:
    """A whole answer."""
    data = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%s\r\n%s" % (status, len(body), headers.encode(), body)

    def act(peer: socket.socket) -> bool:
        peer.sendall(data)
        return "close" not in headers

    return act


def raw(data: bytes) -> Act:
    """These bytes, and the end of the connection."""

    def act(peer: socket.socket) -> bool:
        peer.sendall(data)
        return False

    return act


def stream(*events: str) -> Act:
    """Server-sent events."""
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    def act(peer: socket.socket) -> bool:
        peer.sendall(head + chunk)
        return True

    return act


class Served:
    """`choose(n)` says what the n-th request gets; bodies are kept."""

    def __init__(self, choose: Callable[[int], Act]) -> None:
        self.bodies: list[bytes] = []
        self._choose = choose
        self._lock = threading.Lock()
        self._peers: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self._listener.getsockname())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(peer,))
            with self._lock:
                self._peers.append(peer)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as file:
            try:
                while (body := _body(file)) is not None:
                    with self._lock:
                        number = len(self.bodies)
                        self.bodies.append(body)
                    if not self._choose(number)(peer):
                        return
            except OSError:
                return


def _body(file: object) -> bytes | None:
    length = -1
    while line := file.readline():  # type: ignore[attr-defined]
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        if line == b"\r\n":
            return file.read(length)  # type: ignore[attr-defined, no-any-return]
    return None


@contextmanager
def serving(choose: Callable[[int], Act]) -> Iterator[Served]:
    """A server, ended with the block."""
    served = Served(choose)
    try:
        yield served
    finally:
        served.close()
