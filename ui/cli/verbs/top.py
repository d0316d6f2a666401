"""`stoker top`: the dashboard on a supervisor that runs."""

from __future__ import annotations

import click

from ui.cli.dashboard import show_dashboard
from ui.cli.reach import Where
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker top", "stoker top --readonly --name other"))
@click.option("--readonly", is_flag=True, help="Look only: no key changes anything.")
@which_supervisor
def top(where: Where, readonly: bool) -> int:
    """Open the dashboard on a running supervisor.

    It is a client of the control socket: quitting it, or losing the terminal, ends the dashboard and nothing
    else. `?` shows the keys.
    """
    return show_dashboard(where.runtime(), readonly=readonly, owns_supervisor=False)
