"""Calibration: the limits of a forward that the config leaves open, found by each replica at its start (spec 3, 5).

- On a CPU the bound is time: the largest forward that takes no more than `READING_BOUND_S`. It is told from the golden
  check's forwards, which run anyway, because a forked replica has no time for others: 100 ms from command to ready.
  They are small, and a large forward takes less a token, so what is found errs on the quick side.
- On a GPU the bound is memory: forwards are tried, each twice as large as the one before, until one does not fit.
- A model that writes text also holds keys and values for every token of the texts under way. They get a share of the
  memory that is free, and a text that does not fit waits.

Here is what decides: no tensor, no clock. Backends measure and act (`Backend.calibrate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_NUM_SEQS = "max_num_seqs"
MAX_NUM_BATCHED_TOKENS = "max_num_batched_tokens"
"""The limits that can be left open, as config and card call them."""

READING_BOUND_S = 0.25
"""Longest forward over texts that are read whole: a row that comes now waits for one of them, or for two."""

WRITING_BOUND_S = 1.0
"""Longest forward over prompts while no text is being written; beside others a prompt is read in smaller pieces."""

LEAST_TOKENS, MOST_TOKENS = 64, 8192
"""A CPU's budget, whatever was measured: below, a forward costs as much for fewer tokens; above, nothing is gained."""

MOST_GPU_TOKENS = 16384
"""A GPU's budget at most: its arithmetic is busy long before that, and rows only wait longer."""

TOKENS_A_ROW = 16
"""Length of the shortest rows that still fill a budget: shorter ones are bounded by `max_num_seqs`."""

LEAST_SEQS, MOST_SEQS = 8, 256

TOKENS_A_TEXT = 512
"""Tokens for which a text that is being written should find memory, when `max_num_seqs` is chosen."""

MOST_CPU_TEXTS, MOST_GPU_TEXTS = 32, 256
"""Texts that are written side by side at most."""

FORWARD_SHARE = 0.5
"""Share of a GPU's free memory that a forward may need: its size varies with lengths, and memory has holes."""

GPU_CACHE_SHARE = 0.85
"""Share of a GPU's free memory for keys and values together with the forward."""

CPU_CACHE_SHARE = 0.5
"""Share of the available main memory for keys and values: other programs live there, too."""


class Pass(NamedTuple):
    """A forward that was measured. cpu_s: seconds of CPU that it cost, of all threads together.

    Not seconds of the clock: how busy neighbours were in that moment must not decide what a replica does all day.
    """

    tokens: int
    cpu_s: float


def tokens_in_time(passes: Sequence[Pass], threads: int, bound_s: float) -> int | None:
    """The largest power of two whose forward takes at most `bound_s`, within the limits; None without a measurement."""
    seconds = [one.cpu_s / threads / one.tokens for one in passes if one.tokens and one.cpu_s > 0]
    if not seconds:
        return None
    return min(max(power_of_two(bound_s / min(seconds)), LEAST_TOKENS), MOST_TOKENS)


def largest_that_fits(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Doubling from `least` while it fits, up to `most`. `least` itself is never refused: something must be served."""
    tokens = least
    while tokens * 2 <= most and fits(tokens * 2):
        tokens *= 2
    return tokens


def rows_for(tokens: int) -> int:
    """`max_num_seqs` that goes with a token budget."""
    return min(max(tokens // TOKENS_A_ROW, LEAST_SEQS), MOST_SEQS)


def texts_for(cache_tokens: int, most: int) -> int:
    """`max_num_seqs` for texts that are written, where their memory holds so many tokens in all."""
    return min(max(power_of_two(cache_tokens / TOKENS_A_TEXT), 1), most)


def power_of_two(number: float) -> int:
    """The largest one that is not above `number`; 1 for less."""
    return 1 << max(int(number).bit_length() - 1, 0)
