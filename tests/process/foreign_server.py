"""A small OpenAI-compatible server that Stoker runs as a child: vLLM's metric names, and switches for what goes wrong.

    python foreign_server.py [--port N] [--model NAME]     where `--port` is missing, FOREIGN_PORT says it

`POST /switch` sets fields of `Switches` while it runs, `GET /state` says what it saw; FOREIGN_SWITCHES sets them from
the start. Standard library only, one thread a connection.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"

CHILD = """
import time
held = bytearray(b"x") * 50_000_000
print("a worker of the server", flush=True)
while time.process_time() < 600:
    pass
"""
"""A worker process that holds memory and is always busy."""

switches: dict[str, Any] = {
    "health": 200,
    "health_path": "/health",
    "held": 0,  # requests that it says it has and nobody sees
    "hold_at": None,  # the token before which a stream waits
    "lag_s": 0.0,  # how long its gauge goes on after a request ended
    "missing": "",  # a metric that it does not export
    "metrics": 200,
    "names": [RUNNING, WAITING],  # its two gauges
    "reuse": True,  # whether it sets SO_REUSEADDR, as nearly every server does
    "tokens": 5,
    "token_s": 0.01,
}
state: dict[str, Any] = {"running": 0, "busy_until": 0.0, "cancelled": 0, "served": 0}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match self.path:
            case path if path == switches["health_path"]:
                self._say(switches["health"], b"{}")
            case "/metrics":
                self._say(switches["metrics"], metrics().encode(), "text/plain")
            case "/v1/models":
                self._say(200, json.dumps({"data": [{"id": model}]}).encode())
            case "/state":
                self._say(200, json.dumps(state | {"env": dict(os.environ)}).encode())
            case _:
                self._say(404, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/switch":
            self._switch(body)
            return
        with lock:
            state["running"] += 1
        try:
            self._generate(body) if body.get("stream") else self._answer(body)
            state["served"] += 1
        except OSError:
            state["cancelled"] += 1
            self.close_connection = True
        finally:
            with lock:
                state["running"] -= 1
                state["busy_until"] = time.monotonic() + switches["lag_s"]

    def _switch(self, body: dict[str, Any]) -> None:
        if "exit" in body:
            print(f"exiting with {body['exit']}, as asked", flush=True)
            os._exit(body["exit"])
        if "child" in body:
            subprocess.Popen([sys.executable, "-c", CHILD])
        switches.update(body)
        self._say(200, b"{}")

    def _answer(self, body: dict[str, Any]) -> None:
        time.sleep(switches["token_s"])
        choice = {"index": 0, "text": "hello", "finish_reason": "stop"}
        self._say(200, json.dumps({"model": body["model"], "choices": [choice]}).encode())

    def _generate(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(switches["tokens"]):
            while number == switches["hold_at"]:
                time.sleep(0.01)
            event = {"model": body["model"], "choices": [{"index": 0, "text": f"token {number} "}]}
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
            time.sleep(switches["token_s"])
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _say(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet: what it prints is what a test looks for."""


def metrics() -> str:
    """The page as vLLM writes it, two label sets a gauge."""
    lags = time.monotonic() < state["busy_until"]
    running, waiting = switches["names"]
    values = {running: state["running"] + switches["held"] + lags, waiting: 0}
    lines = []
    for name, value in values.items():
        if name != switches["missing"]:
            lines += [f"# TYPE {name} gauge", f'{name}{{engine="0"}} {value}.0', f'{name}{{engine="1"}} 0.0']
    return "\n".join(lines) + "\n"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        self.allow_reuse_address = switches["reuse"]
        super().server_bind()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=int(os.environ.get("FOREIGN_PORT", "0")))
    parser.add_argument("--model", default="m")
    asked = parser.parse_args()
    model = asked.model
    switches.update(json.loads(os.environ.get("FOREIGN_SWITCHES", "{}")))
    with Server(("127.0.0.1", asked.port), Handler) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"serving {model} on port {server.server_address[1]}", flush=True)
        server.serve_forever()
