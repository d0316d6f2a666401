"""Ray Serve: two replicas behind its HTTP proxy, on a Ray of their own without dashboard."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from typing import Any

import ray
from answers import CONSTANT
from ray import serve

REPLICAS = 2


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=128, ray_actor_options={"num_cpus": 0.1})
class Noop:
    """Answers the same to all."""

    async def __call__(self, request: Any) -> Any:
        """JSON in, JSON out."""
        await request.json()
        return CONSTANT


def main() -> None:
    """Serve until SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    folder = tempfile.gettempdir()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["BENCH_PORT"])})
    serve.run(Noop.bind(), route_prefix="/")
    ended.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
