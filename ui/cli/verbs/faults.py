"""`stoker faults`: each rule of dispatch seen at work, on a stub replica."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from engine.messages import Faults
from supervisor.control.messages import SetReplicaFaults
from supervisor.names import nearest
from ui.cli.completing import replicas
from ui.cli.reach import Where, order
from ui.cli.verb import Verb, which_supervisor

KEYS = tuple(Faults.__struct_fields__)
ON = {"true": True, "on": True, "yes": True, "1": True}
OFF = {"false": False, "off": False, "no": False, "0": False}


@click.command(
    cls=Verb,
    examples=(
        "stoker faults primary/1 hang=true       its forwards do not return, heartbeats go on",
        "stoker faults primary/1 slow_ms=250     each forward and each token takes longer",
        "stoker faults primary/1 crash=true      its process ends with SIGSEGV",
        "stoker faults primary/1                 no fault any more",
    ),
)
@click.argument("replica", shell_complete=replicas)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@which_supervisor
def faults(where: Where, replica: str, pairs: tuple[str, ...]) -> None:
    """Make a stub replica misbehave on purpose.

    The faults given take the place of those that were set; without any, all are cleared. Keys that end in _ms
    take milliseconds, children and say_times a whole number, say a text, the others true or false. Replicas of
    other engines ignore it.

    Keys: hang, slow_ms, crash, leave, crash_on_request, refuse, fail, garbage, mute, hold_gil_ms, children,
    say, say_times, and, looked at when the replica starts next, noise, wrong_card,
    wrong_limits, exit_while_loading.
    """
    wanted = parse(pairs)
    with where.connect() as client:
        order(client, SetReplicaFaults(replica=replica, faults=wanted))


def parse(pairs: Sequence[str]) -> Faults:
    """`key=value` words as faults. Raises click.UsageError."""
    values: dict[str, bool | float | int | str] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if key not in KEYS:
            near = nearest(key, KEYS)
            hint = f"did you mean {near}?" if near else f"expected one of: {', '.join(KEYS)}"
            raise click.UsageError(f"there is no fault {key!r}; {hint}")
        if not separator:
            raise click.UsageError(f"expected {key}=VALUE, found {pair!r}")
        values[key] = _value(key, text)
    return msgspec.convert(values, Faults)


def _value(key: str, text: str) -> bool | float | int | str:
    if key == "say":
        return text
    if key in ("children", "say_times"):
        if not (text.isascii() and text.isdigit() and len(text) < 9):
            raise click.UsageError(f"{key} is a whole number, 0 or more, found {text!r}")
        return int(text)
    if not key.endswith("_ms"):
        try:
            return (ON | OFF)[text.lower()]
        except KeyError:
            raise click.UsageError(f"{key} is true or false, found {text!r}") from None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise click.UsageError(f"{key} is a number of milliseconds, 0 or more, found {text!r}")
    return number
