"""How a `stoker` command ends (spec 13). Scripts read these numbers, so each has one meaning and a
sentence.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes; the sentence of each is in `EXIT_SENTENCES`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    INTERRUPTED = 130
    PIPE_CLOSED = 141


EXIT_SENTENCES = {
    Exit.DONE: "done",
    Exit.FAILED: "failed or was refused; the reason is on standard error",
    Exit.USAGE: "the command line or the config is wrong",
    Exit.NOT_RUNNING: "no supervisor of that name is running",
    Exit.INTERRUPTED: "ended by Ctrl-C; what was asked for goes on in the supervisor",
    Exit.PIPE_CLOSED: "the reader of standard output went away",
}
