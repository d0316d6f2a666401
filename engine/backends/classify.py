"""The task `classify`: labels of texts by a model with a head for sequences, its own probabilities (spec 10).

The labels are the config's `id2label`. Logits become probabilities as the config's `problem_type` says: a share of one
for one label of many (softmax), each for itself for `multi_label_classification` or a single label (sigmoid), and a
`regression` stays the number that it is. A text longer than the model reads is cut at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from engine.backends import answers, requests
from engine.backends.base import Job, LoadError, Row
from engine.backends.heads import HeadTokeniser, SequenceHead, load_head
from engine.messages import Route

if TYPE_CHECKING:
    from engine.backends.checkpoint import Checkpoint

Activation = Callable[[torch.Tensor], torch.Tensor]
"""Logits (rows, labels) to what is answered, of the same shape."""

_ACTIVATIONS: dict[str, Activation] = {
    "single_label_classification": lambda logits: torch.softmax(logits, -1),
    "multi_label_classification": torch.sigmoid,
    "regression": lambda logits: logits,
}


class ClassifyTask:
    """Labels of one model."""

    name = "classify"
    routes = frozenset({Route.CLASSIFY})
    dimensions = None
    normalised = False
    scoring = None

    def __init__(self, head: SequenceHead, tokeniser: HeadTokeniser, served: str) -> None:
        self.max_model_len = tokeniser.limit
        self._head = head
        self._tokeniser = tokeniser
        self._served = served
        self._labels = head.labels
        self._activation = _activation(head.problem_type, len(head.labels))

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        self._head.to(device)

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job:
        """Read and tokenise a request. Raises RequestError."""
        asked = requests.parse_classify(body)
        rows = self._tokeniser.rows([(text, None) for text in asked.inputs], "input")
        return _ClassifyJob(asked, rows, self._labels, self._served)

    def forward(self, rows: Sequence[Row]) -> list[list[float]]:
        """The probability of each label, a row."""
        with torch.inference_mode():
            probabilities: list[list[float]] = self._activation(self._head.logits(rows)).tolist()
        return probabilities

    def golden(self) -> Sequence[bytes]:
        """Texts of two lengths."""
        return [msgspec.json.encode({"input": ["Hello", "I did not expect it to be this good, and it was."]})]


class _ClassifyJob(Job):
    def __init__(
        self, asked: requests.ClassifyRequest, rows: Sequence[Row], labels: Sequence[str], served: str
    ) -> None:
        self.rows = rows
        self._asked = asked
        self._labels = labels
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        tokens = sum(row.tokens for row in self.rows)
        return answers.classify_answer(self._asked, outputs, self._labels, tokens, self._served)


def _activation(problem_type: str | None, labels: int) -> Activation:
    kind = problem_type or ("multi_label_classification" if labels == 1 else "single_label_classification")
    if kind not in _ACTIVATIONS:
        raise LoadError(f"problem_type: expected one of {', '.join(_ACTIVATIONS)}, found {kind}", final=True)
    return _ACTIVATIONS[kind]


def load(checkpoint: Checkpoint) -> ClassifyTask:
    """The task of a checkpoint, its weights on the CPU. Raises LoadError."""
    return ClassifyTask(*load_head(checkpoint), checkpoint.served)
