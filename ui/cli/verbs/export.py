"""`stoker export`: the same supervisor, started by a service manager."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import click

from supervisor.config.load import LoadedConfig, load_config
from supervisor.config.schema import is_deployment_name
from supervisor.core.grace import stop_grace_s
from ui.cli.document import DEFAULT_FILE
from ui.cli.export import systemd
from ui.cli.say import emit, say
from ui.cli.verb import Verb


@click.command(
    cls=Verb,
    examples=(
        "stoker export systemd -c stoker.yaml",
        "stoker export systemd -c stoker.yaml | sudo tee /etc/systemd/system/stoker.service",
    ),
)
@click.argument("kind", metavar="systemd", type=click.Choice(["systemd"]))
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_FILE,
    show_default=True,
    metavar="FILE",
    help="Config file that the unit serves; it is read and checked now.",
)
@click.option(
    "--name",
    envvar="STOKER_NAME",
    show_envvar=True,
    metavar="NAME",
    help="Name of the supervisor; unset: the config's.",
)
def export(kind: str, file: Path, name: str | None) -> None:
    """Print a systemd unit that serves a config file.

    It starts the `stoker` of this environment as the user who asks, in the folder that is the current one now. The time
    that systemd gives it to stop follows from the config's `drain_timeout_s`.
    """
    del kind  # there is one
    loaded = load_config(file)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    emit(systemd.unit(_facts(loaded, file, name or loaded.config.stoker.name)))


def _facts(loaded: LoadedConfig, file: Path, name: str) -> systemd.Facts:
    if not is_deployment_name(name):
        raise click.UsageError(f"--name: expected 1 to 64 letters, digits, '.', '_' or '-', found {name!r}")
    config = loaded.config
    return systemd.Facts(
        name=name,
        command=_this_stoker(),
        config=file.absolute(),
        folder=Path.cwd(),
        user=_user(),
        grace_s=stop_grace_s(deployment.drain_timeout_s for deployment in config.deployments.values()),
        key_variable=config.stoker.api_key_env,
    )


def _this_stoker() -> list[str]:
    """The command of this environment; where it has none, its Python with our module."""
    script = Path(sysconfig.get_path("scripts"), "stoker")
    if os.access(script, os.X_OK):
        return [str(script)]
    return [sys.executable, "-P", "-m", "ui.cli.main"]


def _user() -> str:
    """The name of the user that this process acts for; the number where there is no name."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
