"""The dashboard from the command line: runs it, and says on the way out what goes on without it."""

from __future__ import annotations

import os
import sys

import click

from supervisor.host.runtime import RuntimeDir
from ui.cli.exits import Exit
from ui.cli.reach import DEFAULT_NAME
from ui.cli.say import emit, on_terminal, say
from ui.cli.waiting import wait_until_gone

STOP_WAIT_S = 3700.0
"""Longest wait for a supervisor that drains: more than the longest `drain_timeout_s` there is (spec 3)."""


def have_terminal() -> bool:
    """Whether a dashboard can be shown: a terminal that can draw, and this job is in front of it."""
    if not (on_terminal(sys.stdin) and on_terminal(sys.stdout)) or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


def load_dashboard() -> None:
    """Load its code, which takes longer than anything else here, while something else is waited for."""
    import ui.dashboard.app  # noqa: F401


def show_in_browser(runtime: RuntimeDir, port: int, *, readonly: bool) -> Exit:
    """Serve it to browsers on this machine until a signal; the address goes to standard output."""
    from ui.dashboard.web import serve_in_browser

    def tell(address: str) -> None:
        say(f"the dashboard of {runtime.name!r} is at this address, for whoever has its key; Ctrl-C ends it")
        emit(address)

    serve_in_browser(str(runtime.control), runtime.name, port, readonly=readonly, tell=tell)
    return Exit.DONE


def show_dashboard(runtime: RuntimeDir, *, readonly: bool, owns_supervisor: bool) -> Exit:
    """Show it until somebody leaves; where that somebody asked to stop everything, wait until it is done."""
    if not have_terminal():
        raise click.UsageError("the dashboard needs a terminal; `stoker status --watch` works without one")
    from ui.dashboard.app import run_dashboard
    from ui.dashboard.desk import QuitChoice

    choice = run_dashboard(str(runtime.control), readonly=readonly, owns_supervisor=owns_supervisor)
    if choice is QuitChoice.TERMINATED:
        return Exit.INTERRUPTED
    if choice is QuitChoice.STOP:
        wait_until_gone(runtime, STOP_WAIT_S)
    if runtime.running() is None:
        say(f"the supervisor {runtime.name!r} is gone")
    elif owns_supervisor or choice is QuitChoice.FAILED:
        named = "" if runtime.name == DEFAULT_NAME else f" --name {runtime.name}"
        say(f"the supervisor goes on; `stoker top{named}` comes back to it, `stoker stop{named}` ends it")
    return Exit.FAILED if choice is QuitChoice.FAILED else Exit.DONE
