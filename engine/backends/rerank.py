"""The task `rerank`: how well documents answer a query (spec 10). Two kinds of models can say:

- A cross-encoder reads query and document as one text. Its one logit becomes the score as sentence-transformers makes
  it: by the activation that the model's config names, else the sigmoid.
- An embedding model reads them apart, and the score is the cosine of their vectors. It is quicker and blunter, and
  nobody gets it unasked: it takes `task: rerank`, and log and card say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from engine.backends import answers, embed, requests
from engine.backends.artifacts import read_json
from engine.backends.base import Job, LoadError, Row
from engine.backends.heads import HeadTokeniser, SequenceHead, load_head
from engine.messages import Route

if TYPE_CHECKING:
    from engine.backends.checkpoint import Checkpoint

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Sigmoid": torch.sigmoid,
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
}

GOLDEN = [
    msgspec.json.encode(
        {"query": "How tall is it?", "documents": ["330 metres.", "It was built in 1889 by an engineer."]}
    )
]
"""One query with two documents of unlike length."""


class CrossEncoderTask:
    """Scores of one cross-encoder."""

    name = "rerank"
    routes = frozenset({Route.RERANK})
    dimensions = None
    normalised = False
    scoring = None

    def __init__(self, head: SequenceHead, tokeniser: HeadTokeniser, activation: str, served: str) -> None:
        self.max_model_len = tokeniser.limit
        self._head = head
        self._tokeniser = tokeniser
        self._activation = _ACTIVATIONS[activation]
        self._served = served

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        self._head.to(device)

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job:
        """Read and tokenise a request: a row a document. Raises RequestError."""
        asked = requests.parse_rerank(body)
        rows = self._tokeniser.rows([(asked.query, document) for document in asked.documents], "documents")
        return _PairJob(asked, rows, self._served)

    def forward(self, rows: Sequence[Row]) -> list[float]:
        """A score a row."""
        with torch.inference_mode():
            scores: list[float] = self._activation(self._head.logits(rows)[:, 0]).tolist()
        return scores

    def golden(self) -> Sequence[bytes]:
        """See Backend."""
        return GOLDEN


class _PairJob(Job):
    def __init__(self, asked: requests.RerankRequest, rows: Sequence[Row], served: str) -> None:
        self.rows = rows
        self._asked = asked
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        return answers.rerank_answer(self._asked, outputs, sum(row.tokens for row in self.rows), self._served)


class CosineTask:
    """Scores of one embedding model; its rows are the query, then the documents."""

    name = "rerank"
    routes = frozenset({Route.RERANK})
    normalised = False
    scoring = "cosine of embeddings"

    def __init__(self, vectors: embed.EmbedTask, served: str) -> None:
        self.dimensions = vectors.dimensions
        self.max_model_len = vectors.max_model_len
        self._vectors = vectors
        self._served = served

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        self._vectors.to(device)

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job:
        """Read and tokenise a request. Raises RequestError."""
        asked = requests.parse_rerank(body)
        return _CosineJob(asked, self._vectors.rows_of([asked.query, *asked.documents]), self._served)

    def forward(self, rows: Sequence[Row]) -> list[embed.Vectors]:
        """A vector a row."""
        return self._vectors.forward(rows)

    def golden(self) -> Sequence[bytes]:
        """See Backend."""
        return GOLDEN


class _CosineJob(_PairJob):
    def answer(self, outputs: Sequence[Any]) -> bytes:
        vectors = np.stack(outputs).astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return super().answer((vectors[1:] @ vectors[0]).tolist())


def load(checkpoint: Checkpoint) -> CrossEncoderTask | CosineTask:
    """The task of a checkpoint, its weights on the CPU. Raises LoadError."""
    folder = checkpoint.folder
    if not is_cross_encoder(read_json(folder / "config.json")):
        print(f"{folder}: no cross-encoder: documents are scored by the cosine of embeddings", flush=True)
        return CosineTask(embed.load(checkpoint), checkpoint.served)
    head, tokeniser = load_head(checkpoint)
    if len(head.labels) != 1:
        raise LoadError(f"task rerank: expected a model with one logit, found {len(head.labels)}", final=True)
    return CrossEncoderTask(head, tokeniser, _activation(read_json(folder / "config.json")), checkpoint.served)


def is_cross_encoder(config: dict[str, Any]) -> bool:
    """Whether a model has a head for sequences, as its config says."""
    return str((config.get("architectures") or [""])[0]).endswith("ForSequenceClassification")


def _activation(config: dict[str, Any]) -> str:
    """The two places where sentence-transformers keeps it; the class's name, its module left off."""
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    name = str(named).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise LoadError(f"activation_fn: expected one of {', '.join(_ACTIVATIONS)}, found {named}", final=True)
    return name
