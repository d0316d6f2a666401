"""`stoker status`: what runs, and how it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import click
import msgspec

from supervisor.control.client import ControlClient, NoAnswer, NotRunning
from supervisor.control.messages import Inventory
from supervisor.host.runtime import RuntimeDir
from ui.cli import tables
from ui.cli.picture import heading, inventory_table, warnings_of
from ui.cli.reach import Where, inventory_of
from ui.cli.say import emit, json_text, on_terminal, say
from ui.cli.verb import Verb, json_option, which_supervisor
from ui.literal import literal

REDRAW_S = 1.0


@click.command(
    cls=Verb,
    examples=(
        "stoker status",
        "stoker status --watch",
        "stoker status --json | jq '.deployments[].replicas[] | select(.state != \"ready\")'",
    ),
)
@json_option
@click.option("--watch", is_flag=True, help="Show it anew each second, also across restarts of the supervisor.")
@which_supervisor
def status(where: Where, as_json: bool, watch: bool) -> None:
    """Show deployments and replicas.

    A coloured table on a terminal, aligned lines in a pipe. With --json the whole inventory as one object;
    with --watch and --json one object a line, a line each second.
    """
    runtime = where.runtime()
    with ControlClient(str(runtime.control)) as client:
        inventory = inventory_of(client)
    if watch:
        _watch(runtime, as_json)
    else:
        _show(inventory, as_json)


def _show(inventory: Inventory, as_json: bool) -> None:
    if as_json:
        encoded = msgspec.json.encode(inventory)
        emit(json_text(msgspec.json.format(encoded, indent=2) if on_terminal(sys.stdout) else encoded))
        return
    tables.show(inventory_table(inventory), heading(inventory.supervisor))
    for warning in warnings_of(inventory):
        say(f"warning: {warning}")


# --------------------------------------------------------------------------------------------- --watch


def _watch(runtime: RuntimeDir, as_json: bool) -> None:
    if on_terminal(sys.stdout) and os.environ.get("TERM") != "dumb" and not as_json:
        _redraw(runtime)
        return
    for found in _each_second(runtime):
        if isinstance(found, Inventory):
            _show(found, as_json)
        else:
            say(found)


def _redraw(runtime: RuntimeDir) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = tables.console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for found in _each_second(runtime):
            if isinstance(found, Inventory):
                table = tables.drawn(inventory_table(found), console.width)
                notes = [Text(literal(f"warning: {text}"), style="yellow") for text in warnings_of(found)]
                live.update(Group(Text(literal(heading(found.supervisor))), table, *notes), refresh=True)
            else:
                live.update(Text(literal(found), style="red"), refresh=True)


def _each_second(runtime: RuntimeDir) -> Iterator[Inventory | str]:
    """The inventory, or why there is none just now."""
    while True:
        began = time.monotonic()
        try:
            with ControlClient(str(runtime.control)) as client:
                yield inventory_of(client)
        except (NotRunning, NoAnswer) as error:
            yield f"{error}; trying again each second"
        time.sleep(max(0.0, began + REDRAW_S - time.monotonic()))
