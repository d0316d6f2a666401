"""The command `stoker`: finds the verb, and turns every error into an exit code in one place (spec 13).

Light on purpose: a verb's module, and with it msgspec, zmq, yaml or rich, is loaded only when that verb is
called, so that `stoker --help` costs little more than Python and click.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from engine.errors import StokerError
from ui.cli.exits import EXIT_SENTENCES, Exit
from ui.cli.say import emit, say
from ui.cli.verbs import SECTIONS, VERBS

PROGRAM = "stoker"
COMPLETE = "_STOKER_COMPLETE"
"""Environment variable by which a shell asks for completions."""

ERROR_EXITS = {
    "supervisor.config.problems.ConfigError": Exit.USAGE,
    "supervisor.config.write_back.CannotEdit": Exit.USAGE,
    "supervisor.core.placement.PlacementError": Exit.USAGE,
    "supervisor.slots.making.EnvironmentProblem": Exit.USAGE,
    "ui.cli.document.NotAModel": Exit.USAGE,
    "ui.cli.document.NothingToServe": Exit.USAGE,
    "ui.cli.document.NotResizable": Exit.USAGE,
    "ui.cli.presence.NotHere": Exit.USAGE,
    "ui.cli.reach.SeveralDeployments": Exit.USAGE,
    "ui.cli.reach.SeveralRunning": Exit.USAGE,
    "supervisor.control.client.NotRunning": Exit.NOT_RUNNING,
}
"""Exit codes of Stoker's errors, by name, so that no module is loaded for it; any other is a failure."""


class ForeignSupervisor(StokerError):
    """Another distribution owns the import name `supervisor`."""


class LazyGroup(click.Group):
    """Knows its verbs by the table and loads one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(f"ui.cli.verbs.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(_no_such_verb(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(max(map(len, VERBS))), text) for name, text in verbs.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), sentence) for code, sentence in EXIT_SENTENCES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        emit(f"{PROGRAM} {version(PROGRAM)}")
        ctx.exit()


@click.group(cls=LazyGroup, name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and leave.",
)
def stoker() -> None:
    """Serve a model from N replicas on this machine; watch, scale and drain them from the terminal.

    \b
      stoker serve owner/name -dp 2     start, with a dashboard
      stoker status                     see
      stoker scale primary 4 --wait     change
      stoker stop --wait                end

    `stoker VERB --help` tells all about one verb. Data goes to standard output, words go to standard error.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, this process's unless given; the exit code. Verbs raise, and this translates."""
    _hold_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(_run(sys.argv[1:] if arguments is None else list(arguments)))
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.UsageError as error:
        _say_usage(error)
        return Exit.USAGE
    except StokerError as error:
        say(f"{PROGRAM}: {error}")
        return exit_of(error)
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.PIPE_CLOSED
    finally:
        _close_stdout_quietly()


def _hold_standard_streams() -> None:
    """Where one was closed (`2>&-`), the next file or socket would get its number, and our words would go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one


def exit_of(error: StokerError) -> Exit:
    """The exit code that an error stands for: its own, or that of the nearest class it is derived from."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
    return next((ERROR_EXITS[name] for name in names if name in ERROR_EXITS), Exit.FAILED)


def check_owner(ours: str, theirs: str) -> None:
    """Raises ForeignSupervisor unless the `supervisor` at `theirs` came with the `ui` at `ours`.

    supervisord's package has the same import name: in one environment the two share a folder, or one hides
    the other.
    """
    folder = os.path.dirname(theirs)
    beside_ours = os.path.dirname(folder) == os.path.dirname(os.path.dirname(ours))
    if not beside_ours or os.path.exists(os.path.join(folder, "supervisord.py")):
        raise ForeignSupervisor(
            f"the Python package 'supervisor' in {folder} belongs to another distribution (supervisord?), "
            "and Stoker needs that name: install Stoker into an environment of its own, for example with "
            "'pipx install stoker'"
        )


def _run(arguments: list[str]) -> int:
    import supervisor
    import ui

    check_owner(str(ui.__file__), str(supervisor.__file__))
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(stoker, {}, PROGRAM, COMPLETE, instruction)
    with stoker.make_context(PROGRAM, arguments) as context:
        return stoker.invoke(context) or Exit.DONE


def _say_usage(error: click.UsageError) -> None:
    """What is wrong with the command line, and where it is told how it is right: two lines."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    say(f"{PROGRAM}: {_wrong(error)}")
    if error.ctx is not None:
        incomplete = isinstance(error, click.MissingParameter)
        say(error.ctx.get_usage() if incomplete else f"see `{error.ctx.command_path} --help`")


def _wrong(error: click.UsageError) -> str:
    """The error in one line, the parameter's name first."""
    if type(error) is click.BadParameter and error.param is not None and error.ctx is not None:
        return f"{_name_of(error.param, error.ctx)}: {error.message.rstrip('.')}"
    words = error.format_message().partition(". Choose from")[0].rstrip(".")
    return words[:1].lower() + words[1:]


def _name_of(param: click.Parameter, ctx: click.Context) -> str:
    """As it is typed (`-c / --config`), or as the usage line has it (`N`)."""
    is_option = isinstance(param, click.Option)
    return param.get_error_hint(ctx).replace("'", "") if is_option else param.human_readable_name


def _no_such_verb(word: str) -> str:
    from supervisor.names import nearest

    near = nearest(word, VERBS)
    hint = f"did you mean '{near}'?" if near else f"expected one of: {', '.join(VERBS)}."
    return f"there is no verb '{word}': {hint}"


def _close_stdout_quietly() -> None:
    """Drop what is left for a standard output that takes no more, before Python itself complains of it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
