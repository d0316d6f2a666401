"""`stoker threads certify`: the process that computes the grid, with a progress bar."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from engine.errors import StokerError
from engine.threads.records import Said, Step, Verdict
from supervisor.host.cpu import cpu_budget
from ui.cli import one_shot, say
from ui.cli.one_shot import Wanted
from ui.cli.reach import Where
from ui.cli.units import count

MOST_COUNT = 16
"""Counts up to this are tried where only one thread is configured and there is nothing to compare."""

_said = msgspec.json.Decoder(Said)


class CertifyFailed(StokerError):
    """The process that was to certify ended without a verdict."""


def wanted(where: Where, name: str | None, file: Path | None) -> Wanted:
    """What to certify, with more than one thread where there are several. Raises StokerError."""
    found = one_shot.wanted(where, name, file)
    if found.spec.threads > 1:
        return found
    return found.with_threads(min(MOST_COUNT, cpu_budget().cores))


def run(asked: Wanted) -> Verdict:
    """Start the process, show how far it is, and wait for its verdict. Raises CertifyFailed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    command = one_shot.command("engine.threads.certificate")
    pipe = subprocess.PIPE
    with (
        Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not say.on_terminal(sys.stderr)
        ) as bar,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, env=dict(asked.env)) as process,
    ):
        task = bar.add_task(f"loading {asked.spec.artifact}", total=None)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(asked.launch)
        process.stdin.flush()
        verdict, in_a_log = None, say.Progress()  # beside the bar: where nobody watches, a line now and then
        for line in process.stdout:
            said = _said.decode(line)
            if isinstance(said, Step):
                bar.update(task, description=f"{said.rows} x {said.tokens} tokens", completed=said.done, total=said.of)
                if bar.disable:
                    in_a_log.show(f"{asked.deployment}: {said.done} of {count(said.of, 'shape')}")
            else:
                verdict = said
        process.stdin.close()
    if verdict is None:
        raise CertifyFailed(f"the model of {asked.deployment} could not be certified (exit code {process.returncode})")
    return verdict
