"""`stoker top`: the dashboard on a supervisor that runs."""

from __future__ import annotations

import sys

import click

from ui.cli.reach import Where
from ui.cli.say import on_terminal
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker top", "stoker top --readonly --name other"))
@click.option("--readonly", is_flag=True, help="Look only: no key changes anything.")
@which_supervisor
def top(where: Where, readonly: bool) -> None:
    """Open the dashboard on a running supervisor.

    It is a client of the control socket: quitting it, or losing the terminal, ends the dashboard and nothing
    else. `?` shows the keys.
    """
    if not (on_terminal(sys.stdin) and on_terminal(sys.stdout)):
        raise click.UsageError("the dashboard needs a terminal; `stoker status --watch` works without one")
    from ui.dashboard.app import run_dashboard

    run_dashboard(str(where.runtime().control), readonly=readonly, owns_supervisor=False)
