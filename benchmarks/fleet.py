"""Starts a real supervisor for a benchmark, in a folder of its own, and ends it."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support import Running


@contextlib.contextmanager
def serving(config: str, replicas: int, environ: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A supervisor whose replicas are ready."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        running = Running(Path(folder), config, environ=environ)
        try:
            running.wait_ready(replicas)
            yield running
        finally:
            running.close()


def unwind_on_sigterm() -> None:
    """End by an exception, so that every server that was started is ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
