"""MiniLM through plain transformers on a set number of threads, as the peers' workers and the bare loop run it.

Batches are split by length: sorted, then cut so that no forward has more than `BUDGET` tokens or more than `PADDING` of
them wasted. Without that split a batch of mixed lengths costs about twice the time, and the comparison would be one of
padding.

torch and transformers are those of Stoker's environment (BENCH_PACKAGES, behind the peer's own packages): the same
numbers for all, and two gigabytes less on disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

sys.path.append(os.environ["BENCH_PACKAGES"])

import torch
from transformers import AutoModel, AutoTokenizer

BUDGET = 512
PADDING = 0.1
LONGEST = 256
THREADS = 1


class SentenceEncoder:
    """Texts to unit vectors: mean pooling and normalising, as the model's files say."""

    def __init__(self) -> None:
        folder = os.environ["BENCH_MODEL"]
        torch.set_num_threads(THREADS)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order."""
        ids = self._tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
        vectors: list[list[float]] = [[]] * len(ids)
        for rows in by_length([len(row) for row in ids]):
            for row, vector in zip(rows, self._forward([ids[row] for row in rows]), strict=True):
                vectors[row] = vector
        return vectors

    @torch.inference_mode()
    def _forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        longest = max(map(len, rows))
        inputs = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        hidden = self._model(input_ids=inputs, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).float()
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(pooled, dim=1).tolist()  # type: ignore[no-any-return]


def by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of rows of like length: at most `BUDGET` tokens with their padding, and little of that padding."""
    part: list[int] = []
    real = 0
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        padded = lengths[row] * (len(part) + 1)
        if part and (padded > BUDGET or padded > (real + lengths[row]) * (1 + PADDING)):
            yield part
            part, real = [], 0
        part.append(row)
        real += lengths[row]
    if part:
        yield part
