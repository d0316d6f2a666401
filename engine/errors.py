"""The root of every error that Stoker raises on purpose.

An error says what was expected, what was found and what to do. Each boundary (HTTP, control socket, exit code)
turns it into its own language in one place: `supervisor.gateway.errors`, `supervisor.control.server`, `ui.cli.main`.
"""

from __future__ import annotations

import contextlib
import traceback


class StokerError(Exception):
    """Root of Stoker's own errors; its text is fit to be shown to a user as it is."""


class ProtocolError(StokerError):
    """A frame from outside that is not what the wire allows: wrong version, type, size or identity."""


MOST_WORDS = 2000
"""Characters of somebody else's error that are passed on; all of it is in the log."""


def words_of(error: BaseException) -> str:
    """An error of somebody else's code, fit to be sent: its kind and its message, whatever that is."""
    try:
        said = str(error)
    except BaseException as broken:  # user code too, and what it was about to say is worth less than the answer
        said = f"(its message cannot be had: {type(broken).__name__})"
    words = f"{type(error).__name__}: {said}" if said else type(error).__name__
    cut = f"{words[:MOST_WORDS]}…" if len(words) > MOST_WORDS else words
    return cut.encode("utf-8", "replace").decode()


def log_traceback(error: BaseException) -> None:
    """The traceback, into the replica's log; user code may have closed or replaced that."""
    with contextlib.suppress(Exception):
        traceback.print_exception(error)
