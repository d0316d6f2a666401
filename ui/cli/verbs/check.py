"""`stoker check`: a config file, before anything runs it. Needs no supervisor."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import msgspec

from supervisor.config.load import LoadedConfig, load_config
from supervisor.config.schema import Deployment
from supervisor.host.devices import list_devices
from ui.cli import tables
from ui.cli.document import missing_devices
from ui.cli.presence import check_presence
from ui.cli.say import emit, json_text, say
from ui.cli.tables import Cell, Column, Table
from ui.cli.torch_build import remarks, torch_build
from ui.cli.units import count
from ui.cli.verb import Verb, json_option

COLUMNS = (
    Column("DEPLOYMENT"),
    Column("ENGINE"),
    Column("TASK"),
    Column("REPLICAS", right=True),
    Column("PLACES"),
    Column("ARTIFACT"),
)


@click.command(
    cls=Verb,
    examples=("stoker check stoker.yaml", "stoker check stoker.yaml --json", "stoker check stoker.yaml --syntax-only"),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--syntax-only",
    is_flag=True,
    help="Only the file itself: it is for another machine, and what this one has does not matter.",
)
@json_option
def check(file: Path, syntax_only: bool, as_json: bool) -> None:
    """Check a config file and show what it would run.

    All errors of the file are said at once, each with line, path, what was found and what is allowed; the
    exit code is then 2. So it is where a model's files, a module or a program are not on this machine, which
    `stoker serve` would not start with. Models of the hub are not looked up. Warnings name keys that are ignored
    and devices that this machine does not have.
    """
    loaded = load_config(file)
    if not syntax_only:
        check_presence(loaded)
    if as_json:
        emit(json_text(msgspec.json.encode(_plan(loaded))))
    else:
        tables.show(_table(loaded))
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    if not syntax_only:
        _remark_on_devices(loaded)
    deployments = loaded.config.deployments.values()
    replicas = sum(len(deployment.replicas) for deployment in deployments)
    default = loaded.config.default_deployment
    say(
        f"{file} is fine: {count(len(deployments), 'deployment')}, {count(replicas, 'replica')}, "
        + (f"requests without a model go to {default}" if default else "a request must name its model")
    )


def _remark_on_devices(loaded: LoadedConfig) -> None:
    devices = list_devices().devices
    for warning in missing_devices(loaded.config, devices):
        say(f"warning: {warning}")
    if any(_needs_torch(deployment) for deployment in loaded.config.deployments.values()):
        for words in remarks(torch_build(), devices):
            say(words)


def _needs_torch(deployment: Deployment) -> bool:
    return deployment.engine_args.engine == "transformers" and any(each.managed for each in deployment.replicas)


def _plan(loaded: LoadedConfig) -> dict[str, object]:
    """What would run, as plain data."""
    return {
        "deployments": [
            {
                "name": deployment.name,
                "artifact": deployment.artifact,
                "engine": deployment.engine_args.engine,
                "task": deployment.engine_args.task,
                "replicas": _places(deployment),
            }
            for deployment in loaded.config.deployments.values()
        ],
        "default_deployment": loaded.config.default_deployment,
        "listen": loaded.config.stoker.listen,
        "warnings": loaded.warnings,
    }


def _table(loaded: LoadedConfig) -> Table:
    return Table(COLUMNS, [_row(deployment) for deployment in loaded.config.deployments.values()])


def _row(deployment: Deployment) -> list[Cell]:
    places = [f"{number} x {place}" if number > 1 else place for place, number in Counter(_places(deployment)).items()]
    arguments = deployment.engine_args
    managed = any(placement.managed for placement in deployment.replicas)
    texts = (
        deployment.name,
        arguments.engine if managed else "attached",
        arguments.task if managed else "",
        str(len(deployment.replicas)),
        ", ".join(places),
        deployment.artifact or "",
    )
    return [Cell(text) for text in texts]


def _places(deployment: Deployment) -> list[str]:
    return [placement.endpoint or placement.device or "auto" for placement in deployment.replicas]
