"""Picking the next token from logits, each sequence with its own temperature, top_p and random numbers.

A seeded sequence draws from a generator of its own, one number a token, so its answer does not depend on whom it was
batched with. Logits are (vocabulary,) in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.backends.requests import Sampling

LIKELY = 512
"""top_p looks at so many of the likeliest tokens first; they hold its share but for very flat distributions."""


class Sampler:
    """One sequence's way to pick: temperature 0 is the likeliest token, the first of equal ones."""

    def __init__(self, sampling: Sampling) -> None:
        self.greedy = sampling.temperature == 0
        self._temperature = sampling.temperature
        self._top_p = sampling.top_p
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def pick(self, logits: torch.Tensor) -> int:
        """A token by its probability, logits on the CPU; out of the fewest likeliest that hold `top_p` in all."""
        logits = (logits.double() - logits.max()) / self._temperature
        probabilities = torch.softmax(logits, -1)
        if self._top_p >= 1:
            return self._draw(probabilities)
        shares, tokens = probabilities.topk(min(LIKELY, len(probabilities)))
        if float(shares.sum()) < self._top_p:
            shares, tokens = probabilities.sort(descending=True)
        enough = int(torch.searchsorted(shares.cumsum(0), self._top_p)) + 1
        return int(tokens[self._draw(shares[:enough])])

    def _draw(self, shares: torch.Tensor) -> int:
        """A place, by the share that it has of their sum."""
        sums = shares.cumsum(0)
        point = torch.rand(1, dtype=torch.float64, generator=self._random) * sums[-1]
        return min(int(torch.searchsorted(sums, point, right=True)), len(shares) - 1)


def pick_all(samplers: Sequence[Sampler], logits: torch.Tensor) -> list[int]:
    """A token a row of logits, (rows, vocabulary)."""
    likeliest: list[int] = logits.argmax(-1).tolist()
    if all(sampler.greedy for sampler in samplers):
        return likeliest
    rows = logits.cpu()
    return [
        best if sampler.greedy else sampler.pick(row)
        for sampler, row, best in zip(samplers, rows, likeliest, strict=True)
    ]
