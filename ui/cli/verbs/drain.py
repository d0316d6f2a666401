"""`stoker drain`: one replica leaves without losing a request."""

from __future__ import annotations

import click

from supervisor.control.client import ControlClient
from supervisor.control.events import DrainEnded
from supervisor.control.messages import DrainReplica, Events, GetEvents
from ui.cli.completing import replicas
from ui.cli.reach import Where, ask, find_replica, inventory_of, order
from ui.cli.say import say
from ui.cli.verb import Verb, wait_options, which_supervisor
from ui.cli.waiting import drained, wait_until


@click.command(cls=Verb, examples=("stoker drain primary/1", "stoker drain primary/1 --wait"))
@click.argument("replica", shell_complete=replicas)
@wait_options
@which_supervisor
def drain(where: Where, replica: str, wait: bool, timeout: float) -> None:
    """Take a replica out: it finishes what it has, then leaves.

    It gets no new request from this moment on. What still runs after the deployment's `drain_timeout_s` is
    cut, and the number is said. It stays out until it is restarted.
    """
    with where.connect() as client:
        before = inventory_of(client)
        row = find_replica(before, replica)
        order(client, DrainReplica(replica=replica, incarnation=row.incarnation))
        if wait:
            words = wait_until(client, drained(replica, row.incarnation), timeout)
            say(_how_it_ended(client, replica, row.incarnation, before.supervisor.last_event) or words)


def _how_it_ended(client: ControlClient, replica: str, incarnation: int, since: int) -> str | None:
    for event in reversed(ask(client, GetEvents(since=since), Events).events):
        if isinstance(event, DrainEnded) and (event.replica, event.incarnation) == (replica, incarnation):
            return event.sentence()
    return None
