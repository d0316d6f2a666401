"""`stoker golden`: write down what a model answers here, for other hosts and devices to be checked against (spec 5)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from engine.errors import StokerError
from ui.cli.completing import deployments
from ui.cli.reach import Where
from ui.cli.say import emit, say
from ui.cli.units import count
from ui.cli.verb import Verb, config_option, which_supervisor


class GoldenFailed(StokerError):
    """The process that was to answer ended without having done so."""


@click.command(
    cls=Verb,
    examples=(
        "stoker golden minilm -c stoker.yaml > minilm-golden.jsonl",
        "stoker golden > primary-golden.jsonl",
    ),
)
@click.argument("deployment", required=False, shell_complete=deployments)
@config_option("The config file that has the deployment. Unset: that of the running supervisor.")
@which_supervisor
def golden(where: Where, deployment: str | None, file: Path | None) -> None:
    """Print a model's answers, for other hosts to be checked against.

    They are those to the fixed inputs of the golden check. A process of its own loads the DEPLOYMENT's model on the
    CPU of this machine, which is the one to be trusted, and passes the golden check with it.

    Name the output in `engine_args.golden`, here or on another host, or put it beside the artifact as
    stoker-golden.jsonl: replicas must then give these answers, within 1e-3 on a CPU and 2e-2 on a GPU, before they
    are ready.
    """
    from ui.cli import one_shot

    wanted = one_shot.wanted(where, deployment, file)
    command = one_shot.command("engine.reference_writer")
    done = subprocess.run(command, input=wanted.launch, stdout=subprocess.PIPE, env=dict(wanted.env), check=False)
    lines = done.stdout.decode().splitlines()
    if done.returncode or not lines:
        raise GoldenFailed(f"the model of {wanted.deployment} gave no answers (exit code {done.returncode})")
    for line in lines:
        emit(line)
    say(f"{count(len(lines), 'known answer')} of {wanted.deployment}")
