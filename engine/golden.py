"""The golden check: fixed inputs, computed twice, before a replica may say that it is ready (spec 5).

It finds weights that are torn, a device that computes nonsense, and a model whose answers depend on what they
are batched with: the first run computes all inputs together, the second each request alone. Both runs must
agree number by number, and each answer must be well formed: finite, of the length that the card says, of unit
length where the model normalises. Where a backend knows the right answers (`Referenced`), it must give them.

Agreeing is within a tolerance, not bit for bit: a matrix product may sum in another order in a larger batch.
1e-4 of the largest number in float32 is a hundred times what that was seen to do, and far below what a fault
does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from engine.backends.base import Backend, Generation, Job, LoadError, Row
from engine.calibration import Pass
from engine.errors import words_of
from engine.messages import Card, Route

UNVERIFIED = "unverified"
VERIFIED = "verified"

SAME_FLOAT32 = 1e-4
"""How far two runs may differ, as a share of the largest number of a vector, in float32."""

SAME_HALF = 2e-2
"""The same in 16 bit floats."""

REFERENCE_CPU = 1e-3
REFERENCE_GPU = 2e-2
"""How far from a known answer a number may be (spec 5); 16 bit floats may be as far everywhere as on a GPU."""

UNIT = 1e-3
"""How far from 1 the length of a normalised vector may be."""

MOST_STEPS = 4096
"""A golden generation that is not done by then never will be."""

_OWN_TO_EACH_ANSWER = frozenset({"id", "created", "model"})
"""Fields that differ between equal answers. `model` is the deployment's name, and another host may have another one."""

Seen = Callable[[Pass], None]
"""Who wants to know what the forwards of a check cost."""


@runtime_checkable
class Normalising(Protocol):
    """A backend that says whether its vectors have unit length."""

    @property
    def normalised(self) -> bool:
        """Whether they have."""


@runtime_checkable
class Referenced(Protocol):
    """A backend that knows the right answers to its golden bodies."""

    def golden_answers(self) -> Sequence[bytes]:
        """One answer a golden body, as JSON; empty where none is known for these weights."""


@runtime_checkable
class Rehearsed(Protocol):
    """A backend that answered its golden bodies when its weights were loaded, before it was forked.

    For models of which one forward costs as much as all else of a start: the first of the two runs was then.
    """

    def rehearsal(self) -> Sequence[bytes]:
        """One answer a golden body, as JSON; empty where there was none on this device."""


def check(backend: Backend, seen: Seen = lambda _: None) -> str:
    """Run the golden inputs twice; "verified" where a reference agreed, else "unverified".

    seen: told of each forward. Raises LoadError, final, with what was wrong: the same weights on the same device will
    do it again.
    """
    bodies = backend.golden()
    if not bodies:
        return UNVERIFIED
    try:
        together = answers(backend, bodies, seen)
        alone = _rehearsed(backend, together) or [each for body in bodies for each in answers(backend, [body], seen)]
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"golden check: {words_of(error)}", final=True) from error
    card = backend.card()
    for answer in together:
        _require_well_formed(backend, card, answer)
    _require_same(together, alone, _tolerance(card), "two runs over the same inputs disagree")
    known = backend.golden_answers() if isinstance(backend, Referenced) else ()
    if not known:
        return UNVERIFIED
    tolerance = max(REFERENCE_CPU if card.device.startswith("cpu") else REFERENCE_GPU, _tolerance(card))
    expected = [msgspec.json.decode(answer) for answer in known]
    _require_same(expected, together, tolerance, "the answers are not the known ones")
    return VERIFIED


# ---------------------------------------------------------------------------------------------------- running


def answers(backend: Backend, bodies: Sequence[bytes], seen: Seen = lambda _: None) -> list[Any]:
    """The decoded answers to all bodies, their rows computed in as few forwards as the limits allow."""
    route = backend.golden_route()
    prepared = [backend.prepare(route, body, False) for body in bodies]
    jobs = [one for one in prepared if isinstance(one, Job)]
    outputs = iter(_outputs(backend, [row for job in jobs for row in job.rows], seen))
    found = []
    for one in prepared:
        if isinstance(one, Job):
            found.append(one.answer([next(outputs) for _ in one.rows]))
        else:
            found.append(_generated(backend, one))
    return [msgspec.json.decode(answer) for answer in found]


def _rehearsed(backend: Backend, together: Sequence[Any]) -> list[Any]:
    """The answers of the rehearsal where they agree; empty where there was none, or the second run must decide."""
    found = [msgspec.json.decode(answer) for answer in backend.rehearsal()] if isinstance(backend, Rehearsed) else []
    agree = bool(found) and _difference(found, together, _tolerance(backend.card()), "answers") is None
    return found if agree else []


def _outputs(backend: Backend, rows: Sequence[Row], seen: Seen) -> Iterator[Any]:
    for start in range(0, len(rows), backend.max_num_seqs):
        part = rows[start : start + backend.max_num_seqs]
        before = time.process_time()
        outputs = backend.forward(part)
        seen(Pass(sum(row.tokens for row in part), time.process_time() - before))
        if len(outputs) != len(part):
            raise LoadError(f"golden check: {len(part)} rows gave {len(outputs)} outputs", final=True)
        yield from outputs


def _generated(backend: Backend, generation: Generation) -> bytes:
    for _ in range(MOST_STEPS):
        if generation.done:
            break
        backend.step([generation])
        if generation.error is not None:
            raise generation.error
    else:
        raise LoadError(f"golden check: a generation is not done after {MOST_STEPS} steps", final=True)
    answer = generation.answer()
    backend.release(generation)
    return answer


# ---------------------------------------------------------------------------------------------------- judging


def _require_well_formed(backend: Backend, card: Card, answer: Any) -> None:
    """JSON has no NaN, so what is left to look at are the vectors of an embeddings answer."""
    if backend.golden_route() is not Route.EMBEDDINGS:
        return
    for item in answer["data"]:
        vector = item["embedding"]
        if card.dimensions is not None and len(vector) != card.dimensions:
            raise _failure(f"expected vectors of {card.dimensions} numbers, found {len(vector)}")
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in vector):
            raise _failure("expected finite numbers, found NaN or infinity")
        length = math.hypot(*vector)
        if isinstance(backend, Normalising) and backend.normalised and abs(length - 1.0) > UNIT:
            raise _failure(f"expected vectors of length 1, found {length:.6g}")


def _require_same(expected: Sequence[Any], found: Sequence[Any], tolerance: float, what: str) -> None:
    difference = _difference(expected, found, tolerance, "answers")
    if difference is not None:
        raise _failure(f"{what}: {difference}")


def _difference(expected: Any, found: Any, tolerance: float, at: str) -> str | None:
    """Where two decoded answers differ, as a sentence; numbers may differ by `tolerance`."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = (expected.keys() | found.keys()) - _OWN_TO_EACH_ANSWER
        pairs = ((expected.get(name), found.get(name), f"{at}.{name}") for name in sorted(names))
        return _first_difference(pairs, tolerance)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        if _are_numbers(expected) and _are_numbers(found):
            return _vector_difference(expected, found, tolerance, at)
        pairs = ((one, other, f"{at}[{index}]") for index, (one, other) in enumerate(zip(expected, found, strict=True)))
        return _first_difference(pairs, tolerance)
    if _are_numbers([expected, found]):
        return _vector_difference([expected], [found], tolerance, at)
    return None if expected == found else f"{at}: {expected!r:.80} and {found!r:.80}"


def _first_difference(pairs: Iterator[tuple[Any, Any, str]], tolerance: float) -> str | None:
    differences = (_difference(one, other, tolerance, at) for one, other, at in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _vector_difference(expected: list[float], found: list[float], tolerance: float, at: str) -> str | None:
    scale = max(1.0, *map(abs, expected)) if expected else 1.0
    worst = max((abs(one - other) for one, other in zip(expected, found, strict=True)), default=0.0)
    if worst <= tolerance * scale:
        return None
    return f"{at}: numbers differ by {worst:.3g}, expected at most {tolerance * scale:.3g}"


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _tolerance(card: Card) -> float:
    return SAME_HALF if card.dtype in ("float16", "bfloat16") else SAME_FLOAT32


def _failure(what: str) -> LoadError:
    return LoadError(f"golden check: {what}", final=True)
