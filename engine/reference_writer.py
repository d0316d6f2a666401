"""`stoker golden`: the answers of a trusted run, for other hosts and devices to be checked against (spec 5).

A process of its own: it takes a launch specification on standard input as a replica does, loads the model, passes the
golden check, and prints a line of `engine.reference` for each of its inputs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import msgspec

from engine import golden, reference
from engine.backends.base import LoadError
from engine.backends.registry import build
from engine.errors import ProtocolError
from engine.messages import ExitCode, LaunchSpec
from engine.process import die_with, leave, read_launch


def main() -> None:
    """Print the known answers of what standard input describes. Never returns."""
    said = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is for people
    try:
        spec = read_launch(0)
    except ProtocolError as error:
        print(f"golden: {error}. It is started by `stoker golden`, not by hand.", file=sys.stderr)
        os._exit(ExitCode.BAD_LAUNCH)
    die_with(spec.supervisor_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    try:
        said.write(b"".join(lines_of(spec)))
    except LoadError as error:
        print(error, file=sys.stderr)
        leave(ExitCode.LOAD_FINAL)
    leave(ExitCode.LEFT)


def lines_of(spec: LaunchSpec) -> Iterator[bytes]:
    """A line for each golden input of a model, which has to pass its golden check first. Raises LoadError.

    Known answers that there are already are left aside: these may be the new ones.
    """
    if spec.engine != "transformers":
        raise LoadError(f"engine {spec.engine} takes no known answers; engine transformers does", final=True)
    backend = build(msgspec.structs.replace(spec, options={**spec.options, "golden": reference.NONE}))
    backend.load()
    backend.warm()
    golden.check(backend)
    bodies = backend.golden()
    for body, answer in zip(bodies, golden.answers(backend, bodies), strict=True):
        yield msgspec.json.encode(reference.Example(msgspec.json.decode(body), answer)) + b"\n"


if __name__ == "__main__":
    main()
