"""`stoker top`: the dashboard on a supervisor that runs."""

from __future__ import annotations

import click

from ui.cli.dashboard import show_dashboard, show_in_browser
from ui.cli.kinds import Whole
from ui.cli.reach import Where
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker top", "stoker top --readonly --name other", "stoker top --web"))
@click.option("--readonly", is_flag=True, help="Look only: no key changes anything.")
@click.option("--web", is_flag=True, help="In a browser on this machine: prints the address. Look only.")
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=8180,
    show_default=True,
    help="Of --web, on 127.0.0.1; 0: any free one.",
)
@click.option("--allow-actions", is_flag=True, help="Of --web: the browser may change things, too.")
@which_supervisor
def top(where: Where, readonly: bool, web: bool, port: int, allow_actions: bool) -> int:
    """Open the dashboard on a running supervisor.

    It is a client of the control socket: quitting it, or losing the terminal, ends the dashboard and nothing
    else. `?` shows the keys.
    """
    if web:
        return show_in_browser(where.runtime(), port, readonly=readonly or not allow_actions)
    return show_dashboard(where.runtime(), readonly=readonly, owns_supervisor=False)
