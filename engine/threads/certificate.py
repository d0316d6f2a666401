"""`stoker threads certify`: is the answer of this model on this host the same at every thread count? (spec 9)

A one-shot process: it loads the model, computes a grid of batch sizes and lengths at every count, compares the bits
with those at the configured count, and writes the record. What it says on standard output is one JSON object a line:
`Step` as it goes, and `Verdict` at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from engine import one_shot
from engine.backends.base import Backend, Job, LoadError, Row
from engine.backends.registry import build
from engine.messages import LaunchSpec, Route, ThreadDrift
from engine.threads import records
from engine.threads.exactness import same_bits
from engine.threads.learning import counts_to_try
from engine.threads.shadows import Team

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LENGTHS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
LEAST_SHAPES = 80
DEFAULT_LENGTH = 512
WORDS = ("time", "year", "people", "way", "day", "man", "life", "world", "school", "state", "family", "hand", "place")
"""Words that are one token each in the vocabularies of English models."""


def certify(spec: LaunchSpec) -> Iterator[records.Said]:
    """Load the model and run the grid. Raises LoadError."""
    from engine.threads.team import Team

    backend = build(spec)
    backend.load()
    backend.warm()
    if not backend.repeatable:
        raise LoadError(f"{spec.artifact}: its thread counts are not learned, there is nothing to certify", final=True)
    counts = counts_to_try(spec.threads)
    started = time.monotonic()
    shapes: list[tuple[int, int]] = []
    drift: list[ThreadDrift] = []
    card = backend.card()
    plan = grid(backend.max_num_seqs, backend.max_num_batched_tokens, card.max_model_len or DEFAULT_LENGTH)
    team = Team()
    for size, length in plan:
        rows = _rows(backend, size, length)
        lengths = [row.tokens for row in rows]
        drifted = _drifting(backend, team, rows, counts)
        drift += [ThreadDrift(count=count, lengths=lengths) for count in drifted]
        shapes.append((len(rows), max(lengths)))
        yield records.Step(len(shapes), len(plan), *shapes[-1], bool(drifted))
    certificate = records.Certificate(
        key=records.host_key(card),
        counts=list(counts),
        shapes=shapes,
        drift=drift,
        seconds=time.monotonic() - started,
        finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    yield records.Verdict(certificate, str(records.write_certificate(certificate)))


def grid(most_rows: int, most_tokens: int, longest: int) -> list[tuple[int, int]]:
    """Batch sizes and lengths within the limits of a forward, at least 80 where the limits allow so many."""
    shapes = [
        (rows, tokens)
        for tokens in LENGTHS
        for rows in BATCHES
        if tokens <= longest and rows <= most_rows and rows * tokens <= most_tokens
    ]
    known = set(shapes)
    for rows in range(1, most_rows + 1):
        for tokens in range(LENGTHS[0], min(longest, most_tokens // rows) + 1):
            if len(shapes) >= LEAST_SHAPES:
                return shapes
            if (rows, tokens) not in known:
                shapes.append((rows, tokens))
    return shapes


def _drifting(backend: Backend, team: Team, rows: Sequence[Row], counts: Sequence[int]) -> list[int]:
    """The counts at which these rows have other bits than at the last, configured one."""
    *others, configured = counts
    team.use(configured)
    expected = list(backend.forward(rows))
    found = []
    for count in reversed(others or [configured]):
        team.use(count)
        if not same_bits(expected, list(backend.forward(rows))):
            found.append(count)
    return found


def _rows(backend: Backend, size: int, length: int) -> Sequence[Row]:
    """So many rows of about so many tokens each: different words, one token a word, between the special ones."""
    around = _prepare(backend, ["time"])[0].tokens - 1
    words = max(1, length - around)
    texts = [" ".join(WORDS[(7 * row + at * (row + 1)) % len(WORDS)] for at in range(words)) for row in range(size)]
    return _prepare(backend, texts)


def _prepare(backend: Backend, texts: Sequence[str]) -> Sequence[Row]:
    route = backend.golden_route()
    body: dict[str, object] = {"input": texts}
    if route is Route.RERANK:
        body = {"query": "time", "documents": texts}
    prepared = backend.prepare(route, msgspec.json.encode(body), False)
    if not isinstance(prepared, Job):
        raise LoadError("this model generates: decode steps keep the configured count, nothing to certify", final=True)
    return prepared.rows


def lines_of(spec: LaunchSpec) -> Iterator[bytes]:
    """The same as lines of JSON. Raises LoadError."""
    return (msgspec.json.encode(each) + b"\n" for each in certify(spec))


if __name__ == "__main__":
    one_shot.run("stoker threads certify", lines_of)
