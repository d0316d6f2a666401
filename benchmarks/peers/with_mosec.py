"""Mosec: two worker processes behind its Rust front. Requests of MiniLM are batched by it, up to 16 within 1 ms."""

from __future__ import annotations

import os
from typing import Any

from answers import CONSTANT, embeddings
from mosec import Server, Worker

WORKERS = 2


class Noop(Worker):
    """Answers the same to all."""

    def forward(self, data: Any) -> Any:
        """JSON in, JSON out."""
        return CONSTANT


class MiniLM(Worker):
    """Embeds a batch of requests, each of one or more texts."""

    def __init__(self) -> None:
        super().__init__()
        from sentences import SentenceEncoder

        self._encode = SentenceEncoder()

    def forward(self, data: list[Any]) -> list[Any]:
        """All texts of all requests in one go; the encoder splits them by length."""
        vectors = iter(self._encode([text for asked in data for text in asked["input"]]))
        return [embeddings([next(vectors) for _ in asked["input"]]) for asked in data]


def main() -> None:
    """Serve until SIGTERM."""
    os.environ |= {"MOSEC_PORT": os.environ["BENCH_PORT"], "MOSEC_ADDRESS": "127.0.0.1", "MOSEC_TIMEOUT": "120000"}
    os.environ |= {"MOSEC_LOG_LEVEL": "warning"}
    server = Server()
    if os.environ["BENCH_TASK"] == "minilm":
        server.append_worker(MiniLM, num=WORKERS, max_batch_size=16, max_wait_time=1)
    else:
        server.append_worker(Noop, num=WORKERS)
    server.run()


if __name__ == "__main__":
    main()
