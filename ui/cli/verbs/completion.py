"""`stoker completion`: Tab in the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ui.cli.say import emit
from ui.cli.verb import Verb


@click.command(
    cls=Verb,
    examples=(
        'bash:  eval "$(stoker completion bash)"       in ~/.bashrc',
        'zsh:   eval "$(stoker completion zsh)"        in ~/.zshrc',
        "fish:  stoker completion fish | source        in ~/.config/fish/config.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes verbs, options, and the names of deployments and replicas of the supervisor that runs.
    """
    from ui.cli.main import COMPLETE, PROGRAM, stoker

    kind = get_completion_class(shell)
    assert kind is not None, "every choice has its class"
    emit(kind(stoker, {}, PROGRAM, COMPLETE).source())
