"""What all verbs share: examples on the help page, and the options that say which supervisor is meant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ui.cli.completing import supervisors
from ui.cli.kinds import Number

Function = Callable[..., Any]


class Verb(click.Command):
    """A command whose help page ends with examples, shown as they are typed."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example}\n")


def which_supervisor(function: Function) -> Function:
    """Adds `--name` and `--runtime-dir`; the function gets `where: ui.cli.reach.Where`, one that runs."""
    return _where("Name of the supervisor; unset: 'default', or the only one that runs.")(function)


def new_supervisor(function: Function) -> Function:
    """The same options for a supervisor that is to be started."""
    return _where("Name of this supervisor; unset: the config's. Two on one machine need two names.")(function)


def wait_options(function: Function) -> Function:
    """Adds `--wait` and `--timeout`; the function gets `wait: bool` and `timeout: float` (seconds)."""
    timeout = click.option(
        "--timeout",
        type=Number(min=0, min_open=True),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest wait of --wait; what was asked for goes on after it.",
    )
    wait = click.option("--wait", is_flag=True, help="Return when it is done, not when it is accepted.")
    return wait(timeout(function))


def config_option(about: str) -> Callable[[Function], Function]:
    """Adds `-c`; the function gets `file: Path | None`. about: its help."""
    path = click.Path(path_type=Path)
    return click.option("-c", "--config", "file", type=path, metavar="FILE", help=about)


def json_option(function: Function) -> Function:
    """Adds `--json`; the function gets `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="JSON for programs.")(function)


def _where(about_the_name: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        @click.option(
            "--name",
            envvar="STOKER_NAME",
            show_envvar=True,
            metavar="NAME",
            shell_complete=supervisors,
            help=about_the_name,
        )
        @click.option(
            "--runtime-dir",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Folder of the running supervisors; unset: $STOKER_RUNTIME_DIR, else a folder of your own.",
        )
        @functools.wraps(function)
        def with_where(*args: Any, name: str | None, runtime_dir: Path | None, **kwargs: Any) -> Any:
            from ui.cli.reach import Where

            return function(*args, where=Where(name, runtime_dir), **kwargs)

        return with_where

    return add
