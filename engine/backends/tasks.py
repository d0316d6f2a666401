"""The tasks of the engine `transformers`: what one is, which there are, and which one a model is for (spec 10)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from engine.backends.artifacts import read_json
from engine.backends.base import Generation, Job, LoadError, Row
from engine.backends.checkpoint import Checkpoint
from engine.messages import Route


class Task(Protocol):
    """One kind of model. A new one is a file with a `load(checkpoint)` and a line in `TASKS`."""

    @property
    def name(self) -> str:
        """As in `engine_args.task`."""

    @property
    def routes(self) -> frozenset[Route]:
        """What it answers."""

    @property
    def dimensions(self) -> int | None:
        """Length of its vectors, where it makes any."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of an input, and of what it generates with it."""

    @property
    def scoring(self) -> str | None:
        """How it comes to its scores, where that needs saying."""

    @property
    def normalised(self) -> bool:
        """Whether its vectors have unit length."""

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        """See Backend."""

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See Backend."""

    def golden(self) -> Sequence[bytes]:
        """See Backend."""


@runtime_checkable
class Generating(Protocol):
    """A task that answers token by token."""

    def step(self, generations: Sequence[Generation], budget: int) -> None:
        """See Backend; budget: most tokens of a forward."""

    def release(self, generation: Generation) -> None:
        """See Backend."""

    def bound(self, memory_bytes: int) -> int:
        """Keep keys and values of all texts within so many bytes; the tokens that these have room for."""


TASKS = ("embed", "classify", "rerank", "generate")
"""The tasks that there are; each is a module of this package, imported when it is wanted."""


def load_task(name: str, checkpoint: Checkpoint) -> Task:
    """A task of `TASKS`, its weights on the CPU. Raises LoadError."""
    match name:
        case "embed":
            from engine.backends import embed

            return embed.load(checkpoint)
        case "classify":
            from engine.backends import classify

            return classify.load(checkpoint)
        case "rerank":
            from engine.backends import rerank

            return rerank.load(checkpoint)
        case "generate":
            from engine.backends import generate

            return generate.load(checkpoint)
    raise LoadError(f"task: expected auto or one of {', '.join(TASKS)}, found {name}", final=True)


def task_of(folder: Path) -> str:
    """What a model is for, as its own files say it (`task: auto`)."""
    if folder.is_file() or (not (folder / "config.json").exists() and any(folder.glob("*.gguf"))):
        return "generate"
    if (folder / "modules.json").exists():
        return "embed"
    config = read_json(folder / "config.json")
    architecture = str((config.get("architectures") or ["unknown"])[0])
    if architecture.endswith("ForSequenceClassification"):
        return "rerank" if len(config.get("id2label") or (0, 1)) == 1 else "classify"
    return "generate" if architecture.endswith(("ForCausalLM", "LMHeadModel")) else "embed"
