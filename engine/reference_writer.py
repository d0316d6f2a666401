"""`stoker golden`: the answers of a trusted run, for other hosts and devices to be checked against (spec 5).

A one-shot process: it loads the model, passes the golden check, and prints a line of `engine.reference` for each of its
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine import golden, one_shot, reference
from engine.backends.base import LoadError
from engine.backends.registry import build
from engine.messages import LaunchSpec


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
    one_shot.run("stoker golden", lines_of)
