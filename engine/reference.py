"""Known answers: a file of requests and what a trusted run answered to them (spec 5, the golden check's reference).

One JSON object a line, `{"request": {…}, "answer": {…}}`, as they go over HTTP. A replica that finds such a file beside
its artifact, or is given one by `engine_args.golden`, must answer the same before it is `ready`, and its card then says
`golden: verified`. `stoker golden` writes one (`engine.reference_writer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.backends.base import LoadError

BESIDE = "stoker-golden.jsonl"
"""Name of the file in an artifact's folder; beside a single file it has that file's name before it, and a dot. It is
ours alone: a `golden.jsonl` of somebody's evaluation must not keep his model from being served."""

NONE = "none"
"""What `engine_args.golden` says where not even the file beside the artifact is to be looked at."""

MOST_BYTES = 64 * 1024 * 1024


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request and its known answer."""

    request: dict[str, Any]
    answer: dict[str, Any]


_decoder = msgspec.json.Decoder(Example)


def find(artifact: Path, named: str | None) -> Path | None:
    """The file that holds for an artifact's folder or file. Raises LoadError where a named one is not there."""
    if named == NONE:
        return None
    if named is not None:
        file = Path(named).expanduser().absolute()
        if not file.is_file():
            raise LoadError(f"engine_args.golden: expected a file, found none at {file}", final=True)
        return file
    beside = artifact / BESIDE if artifact.is_dir() else artifact.with_name(f"{artifact.name}.{BESIDE}")
    return beside if beside.is_file() else None


def read(file: Path) -> Sequence[Example]:
    """The examples of a file, at least one. Raises LoadError that names the line."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise LoadError(f"{file}: expected at most {MOST_BYTES >> 20} MiB of known answers", final=True)
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise LoadError(f"{file}: it cannot be read: {error.strerror}", final=True) from error
    examples = [_example(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not examples:
        raise LoadError(
            f"{file}: expected known answers, found an empty file; write one with: stoker golden", final=True
        )
    return examples


def _example(file: Path, number: int, line: bytes) -> Example:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        wanted = 'expected {"request": {…}, "answer": {…}}'
        raise LoadError(f"{file}, line {number}: {wanted}, found: {error}", final=True) from error
