"""`stoker threads`: what replicas learned about their thread counts, and the certificate behind it (spec 9)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from engine.messages import ThreadRange
from supervisor.control.messages import Inventory, ReplicaStatus
from ui.cli import tables
from ui.cli.completing import deployments
from ui.cli.exits import Exit
from ui.cli.picture import warnings_of
from ui.cli.reach import Where, inventory_of
from ui.cli.say import emit, json_text, on_terminal, say
from ui.cli.tables import Cell, Column, Table
from ui.cli.units import count, milliseconds, share
from ui.cli.verb import Verb, config_option, json_option, which_supervisor

COLUMNS = (
    Column("REPLICA"),
    Column("TOKENS"),
    Column("STATE"),
    Column("FORWARDS", right=True, least_width=90),
    Column("SAMPLES", right=True),
    Column("TIME BY COUNT"),
    Column("LEARNED", right=True),
    Column("GAIN", right=True),
)

STYLES = {"serving": "green", "learned": "green", "transition": "cyan", "exploring": "cyan", "retired": "red"}


@click.command(
    cls=Verb,
    examples=(
        "stoker threads",
        "stoker threads --json",
        "stoker threads certify minilm",
        "stoker threads certify minilm -c stoker.yaml",
    ),
)
@click.argument("action", metavar="[certify]", required=False, type=click.Choice(["certify"]))
@click.argument("deployment", required=False, shell_complete=deployments)
@config_option("With certify: the config file that has the deployment. Unset: that of the running supervisor.")
@json_option
@which_supervisor
def threads(where: Where, action: str | None, deployment: str | None, file: Path | None, as_json: bool) -> int:
    """Show what was learned about thread counts, or certify them.

    A row for each replica and range of padded tokens that saw a forward: how long forwards take at each count,
    the fastest one, and the time that it saves. Replicas learn where `cpu.adaptive` is 1 or 2.

    With certify, a process of its own loads the DEPLOYMENT's model, computes a grid of batch sizes and lengths
    at every count, and writes a record of whether the answers had the same bits. Mode 2 wants a clean one. The
    exit code is 1 where an answer drifted.
    """
    if action is None:
        if file is not None:
            raise click.UsageError("-c goes with certify")
        _show(where, as_json)
        return Exit.DONE
    from ui.cli import certifying

    wanted = certifying.wanted(where, deployment, file)
    verdict = certifying.run(wanted)
    certificate = verdict.certificate
    if as_json:
        emit(json_text(msgspec.json.encode(verdict)))
    else:
        tried = f"{count(len(certificate.shapes), 'shape')} at {_threads(certificate.counts)}"
        for drift in certificate.drift:
            emit(f"{drift.shape}: other bits with {drift.count} than with {_threads(certificate.counts[-1:])}")
        drifts = count(len(certificate.drift), "drift") if certificate.drift else "no drift"
        emit(f"{wanted.deployment}: {tried} ({certificate.key.flags}): {drifts}")
        say(f"written to {verdict.file}; replicas take it up when they start")
    return Exit.DONE if certificate.clean else Exit.FAILED


def _threads(counts: Sequence[int]) -> str:
    """`1, 2 threads`; `1 thread`."""
    listed = ", ".join(map(str, counts))
    return f"{listed} thread" if listed == "1" else f"{listed} threads"


def _show(where: Where, as_json: bool) -> None:
    with where.connect() as client:
        inventory = inventory_of(client)
    replicas = [row for each in inventory.deployments for row in each.replicas if row.thread_table is not None]
    if as_json:
        found = {row.name: row.thread_table for row in replicas}
        encoded = msgspec.json.encode(found)
        emit(json_text(msgspec.json.format(encoded, indent=2) if on_terminal(sys.stdout) else encoded))
        return
    tables.show(threads_table(replicas))
    for words in _notes(inventory, replicas):
        say(words)


def threads_table(replicas: list[ReplicaStatus]) -> Table:
    """A row a replica and range that saw a forward; one row for a replica that saw none."""
    rows = []
    for replica in replicas:
        assert replica.thread_table is not None
        seen = [each for each in replica.thread_table.ranges if each.forwards]
        rows += [_row(replica.name, each) for each in seen]
        if not seen:
            rows.append(_row(replica.name, ThreadRange(label="", state=replica.thread_table.state)))
    return Table(COLUMNS, rows)


def _row(name: str, each: ThreadRange) -> list[Cell]:
    times = [f"{time.count}: {milliseconds(time.seconds * 1000)}" for time in each.times]
    samples = [f"{time.count}: {time.samples}" for time in each.times]
    return [
        Cell(name),
        Cell(each.label),
        Cell(each.state, STYLES.get(each.state, "")),
        Cell(str(each.forwards)),
        Cell(", ".join(samples)),
        Cell(", ".join(times)),
        Cell("" if each.learned is None else str(each.learned)),
        Cell(share(each.gain) if each.learned is not None else ""),
    ]


def _notes(inventory: Inventory, replicas: list[ReplicaStatus]) -> list[str]:
    """What the table cannot say."""
    if not replicas:
        return ["nothing is learned: set cpu.adaptive to 1 (learn and report) or 2 (also serve)"]
    notes = [f"warning: {text}" for text in warnings_of(inventory) if "threads_uncertified" in text]
    for replica in replicas:
        table = replica.thread_table
        if table is not None and table.drift is not None:
            notes.append(
                f"{replica.name} is retired: {table.drift.shape} had other bits with "
                f"{count(table.drift.count, 'thread')} than with {table.configured}"
            )
    return notes
