"""`stoker stop`: the end of a supervisor."""

from __future__ import annotations

import click

from supervisor.control.client import ControlClient
from supervisor.control.messages import Stop
from ui.cli.reach import Where, order
from ui.cli.say import say
from ui.cli.verb import Verb, wait_options, which_supervisor
from ui.cli.waiting import wait_until_gone


@click.command(cls=Verb, examples=("stoker stop", "stoker stop --wait", "stoker stop --now --wait --name other"))
@click.option("--now", is_flag=True, help="Do not drain: cut what is in flight.")
@wait_options
@which_supervisor
def stop(where: Where, now: bool, wait: bool, timeout: float) -> None:
    """Drain everything and end the supervisor.

    New requests get 503 from this moment on, exchanges in flight finish, engines are stopped. Asked a second
    time, the drain is cut. With --wait it ends when the supervisor is gone.
    """
    runtime = where.runtime()
    with ControlClient(str(runtime.control)) as client:
        order(client, Stop(now=now))
    if wait:
        wait_until_gone(runtime, timeout)
        say(f"the supervisor {runtime.name!r} is gone")
