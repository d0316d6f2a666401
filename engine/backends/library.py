"""How the library `transformers` is imported and told to stay single-threaded, in one place for all tasks.

A template loads with it and is forked afterwards (spec 5): no thread may exist by then.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator


@contextlib.contextmanager
def calm() -> Iterator[None]:
    """Imports make many objects and no garbage: without the collector they take a fifth less time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def be_single_threaded() -> None:
    """Before a model is loaded: weights one after the other, and no progress bar, whose watcher is a thread."""
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    from transformers.utils import logging

    logging.disable_progress_bar()
