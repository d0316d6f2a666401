"""The task `embed`: vectors of texts, pooled and normalised exactly as the model's own files say (spec 10).

A model made for sentence-transformers says in `modules.json` what comes after its transformer: pooling,
perhaps a dense layer, perhaps normalising. What is said there is done or refused by name, never approximated.
A model that says nothing gets mean pooling and unit length, and a line in the log that says so.

Rules that no file gives:
- An input longer than the model reads is cut at its end, as sentence-transformers does, and not refused. The
  answer's `usage` counts the tokens that were read.
- Token ids are used as given, and get the model's own special tokens (`[CLS]` … `[SEP]`) unless they carry
  them already: a text and the ids of that text have the same vector, with either habit of making ids.
- An empty text is a text: it is refused only where the tokeniser makes nothing at all of it.
- `dimensions` other than the model's own is for models that say they are made for it (`is_matryoshka`,
  `matryoshka_dimensions` in config.json); the cut vector is brought to unit length again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from engine.backends import answers, requests
from engine.backends.artifacts import read_json
from engine.backends.base import Job, LoadError, RequestError, Row
from engine.backends.tokenisers import key_of
from engine.messages import Route

if TYPE_CHECKING:
    from engine.backends.checkpoint import Checkpoint
    from engine.backends.encoders import Encoder
    from engine.backends.tokenisers import Tokeniser

log = logging.getLogger(__name__)

Vectors = npt.NDArray[np.float32]
Head = Callable[[torch.Tensor], torch.Tensor]
"""A module after pooling: (rows, width) to (rows, width)."""


# --------------------------------------------------------------------------------- what the model's files say


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How a model makes a vector of a text.

    transformer: folder of its weights and tokeniser. pooling: names of `POOLINGS`, joined in this order.
    heads: kind and folder of what follows the pooling. max_seq_length: most tokens that it reads, special
    ones included. prompt: what goes before each text.
    """

    transformer: Path
    pooling: tuple[str, ...]
    heads: tuple[tuple[str, Path], ...]
    max_seq_length: int | None = None
    lower_case: bool = False
    prompt: str = ""


def read_recipe(folder: Path) -> Recipe:
    """The recipe that `folder` holds, or the default one. Raises LoadError for what is not supported."""
    if not (folder / "modules.json").exists():
        log.warning("%s has no modules.json: mean pooling and unit length are used", folder)
        return Recipe(folder, ("mean",), (("Normalize", folder),))
    modules = sorted(read_json(folder / "modules.json"), key=lambda module: int(module.get("idx", 0)))
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    paths = [folder / str(module["path"]) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise LoadError(f"modules.json: expected Transformer, Pooling, …, found {', '.join(kinds)}", final=True)
    heads = tuple((kind, path) for kind, path in zip(kinds[2:], paths[2:], strict=True) if kind != "Dropout")
    for kind, path in heads:
        if kind not in ("Dense", "Normalize"):
            known = "Dense, Normalize, Dropout"
            raise LoadError(f"modules.json: after the pooling {known} are known, found {kind}", final=True)
        if kind == "Dense" and not (path / "config.json").exists():
            raise LoadError(f"modules.json names a Dense module in {path}, and nothing is there", final=True)
    prompt = _default_prompt(folder)
    return Recipe(paths[0], _pooling(paths[1], prompt), heads, *_reading(paths[0]), prompt)


_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The switches of a pooling's config.json, in the order in which sentence-transformers joins several."""


def _pooling(folder: Path, prompt: str) -> tuple[str, ...]:
    """Both ways of saying it: a switch a mode (all versions), or the name in `pooling_mode` (newer ones)."""
    config = read_json(folder / "config.json")
    named = config.get("pooling_mode")
    if named is not None:
        asked = set(named.split("+") if isinstance(named, str) else named)
        chosen = tuple(mode for mode in _MODES.values() if mode in asked)
        unknown = asked - set(chosen)
    else:
        chosen = tuple(mode for switch, mode in _MODES.items() if config.get(switch))
        unknown = {key for key in config if key.startswith("pooling_mode_") and config[key]} - set(_MODES)
    if unknown or not chosen:
        found = ", ".join(sorted(map(str, unknown))) or "none"
        raise LoadError(f"pooling of {folder}: expected {', '.join(_MODES.values())}, found {found}", final=True)
    if prompt and config.get("include_prompt") is False:
        raise LoadError(f"pooling of {folder}: leaving the prompt out of it is not supported", final=True)
    return chosen


def _reading(transformer: Path) -> tuple[int | None, bool]:
    """`max_seq_length` and `do_lower_case` of sentence_bert_config.json, where it is there."""
    file = transformer / "sentence_bert_config.json"
    config = read_json(file) if file.exists() else {}
    return config.get("max_seq_length"), bool(config.get("do_lower_case"))


def _default_prompt(folder: Path) -> str:
    """The prompt that the model wants before every text, if any."""
    file = folder / "config_sentence_transformers.json"
    config = read_json(file) if file.exists() else {}
    name = config.get("default_prompt_name")
    return str((config.get("prompts") or {}).get(name, "")) if name else ""


# ------------------------------------------------------------------------------------------ pooling and heads
# hidden: (rows, tokens, width). mask: (rows, tokens) of 1 and 0, None where nothing is padding. Both float32.


def _weighted(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.einsum("nlh,nl->nh", hidden, weights)


def _cls(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return hidden[:, 0]


def _max(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is not None:
        hidden = hidden.masked_fill(mask.unsqueeze(-1) == 0, -1e9)
    return hidden.amax(1)


def _mean(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None:
        return hidden.mean(1)
    return _weighted(hidden, mask) / mask.sum(1, keepdim=True)


def _mean_sqrt_len(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2])
    return _weighted(hidden, mask) / mask.sum(1, keepdim=True).sqrt()


def _weightedmean(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Later tokens weigh more: 1, 2, 3, …"""
    places = torch.arange(1, hidden.shape[1] + 1, dtype=hidden.dtype, device=hidden.device)
    weights = places.expand(hidden.shape[:2]) if mask is None else mask * places
    return _weighted(hidden, weights) / weights.sum(1, keepdim=True)


def _lasttoken(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None:
        return hidden[:, -1]
    last = mask.sum(1).long() - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weightedmean,
    "lasttoken": _lasttoken,
}

_ACTIVATIONS: dict[str, Head] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}


def _normalize(vectors: torch.Tensor) -> torch.Tensor:
    return functional.normalize(vectors, p=2.0, dim=1)


class _Dense:
    """A linear layer with an activation after the pooling."""

    def __init__(self, folder: Path) -> None:
        activation = str(read_json(folder / "config.json").get("activation_function", "Tanh")).rpartition(".")[2]
        if activation not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise LoadError(f"Dense in {folder}: expected one of {known}, found {activation}", final=True)
        self._activation = _ACTIVATIONS[activation]
        weights = _dense_weights(folder)
        self._weight = weights["linear.weight"].float()
        self._bias = weights["linear.bias"].float() if "linear.bias" in weights else None

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        if self._weight.device != vectors.device:  # once: `load` is on the CPU, forwards may be elsewhere
            self._weight = self._weight.to(vectors.device)
            self._bias = None if self._bias is None else self._bias.to(vectors.device)
        return self._activation(functional.linear(vectors, self._weight, self._bias))


def _dense_weights(folder: Path) -> dict[str, torch.Tensor]:
    if (file := folder / "model.safetensors").exists():
        from safetensors.torch import load_file

        found: dict[str, torch.Tensor] = load_file(file)
        return found
    if (file := folder / "pytorch_model.bin").exists():
        old: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return old
    raise LoadError(f"Dense in {folder}: expected model.safetensors, found no weights", final=True)


def _heads(recipe: Recipe) -> list[Head]:
    return [_Dense(folder) if kind == "Dense" else _normalize for kind, folder in recipe.heads]


# --------------------------------------------------------------------------------------------------- the task


class EmbedTask:
    """Embeddings of one model. `dimensions`: length of its vectors; `normalised`: they have unit length."""

    name = "embed"
    scoring = None
    routes = frozenset({Route.EMBEDDINGS})

    def __init__(
        self, encoder: Encoder, tokeniser: Tokeniser, recipe: Recipe, served: str, matryoshka: frozenset[int]
    ) -> None:
        self._encoder = encoder
        self._tokeniser = tokeniser
        self._pooling = [POOLINGS[mode] for mode in recipe.pooling]
        self._heads = _heads(recipe)
        self._served = served
        self._matryoshka = matryoshka
        self.normalised = bool(recipe.heads) and recipe.heads[-1][0] == "Normalize"
        self.max_model_len = tokeniser.limit
        with torch.inference_mode():
            self.dimensions = self._finish(torch.zeros(1, encoder.width * len(self._pooling))).shape[1]

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        self._encoder.to(device)

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job:
        """Read and tokenise a request; there is nothing to stream. Raises RequestError."""
        asked = requests.parse_embeddings(body)
        return _EmbedJob(asked, self.rows_of(asked.inputs), self._cut(asked), self._served)

    def forward(self, rows: Sequence[Row]) -> list[Vectors]:
        """One vector (dimensions,) a row, in order."""
        with torch.inference_mode():
            groups = self._encoder.encode([row.data for row in rows])
            pooled = [
                torch.cat([pool(group.hidden.float(), group.mask) for pool in self._pooling], 1) for group in groups
            ]
            vectors = self._finish(torch.cat(pooled)).cpu().numpy()
        order = [row for group in groups for row in group.rows]
        placed: list[Vectors] = [vectors[0]] * len(rows)
        for vector, row in zip(vectors, order, strict=True):
            placed[row] = vector
        return placed

    def golden(self) -> Sequence[bytes]:
        """Texts of three lengths, and token ids: 40 tokens in all, as this is part of every start."""
        pangram = "The quick brown fox jumps over the lazy dog, while nine wizards mix 3 jugs of liquid."
        texts = ["Hello", "Grüße, 世界! 🙂", pangram]
        return [msgspec.json.encode({"input": texts}), msgspec.json.encode({"input": [[1, 2, 3]]})]

    def rows_of(self, inputs: Sequence[requests.Text]) -> list[Row]:
        """A row an input. Raises RequestError."""
        requests.require_vocabulary(inputs, self._encoder.vocabulary, "input")
        rows = [Row(len(ids), ids, key_of(ids)) for ids in self._tokeniser.encode(inputs)]
        for index, row in enumerate(rows):
            if not row.tokens:
                raise RequestError(f"input[{index}]: no tokens in this text", param=f"input[{index}]")
        return rows

    def _finish(self, pooled: torch.Tensor) -> torch.Tensor:
        for head in self._heads:
            pooled = head(pooled)
        return pooled

    def _cut(self, asked: requests.EmbeddingsRequest) -> int | None:
        """The length to cut vectors to, None for whole ones. Raises RequestError."""
        wanted = asked.dimensions
        if wanted is None or wanted == self.dimensions:
            return None
        if wanted in self._matryoshka:
            return wanted
        allowed = ", ".join(map(str, sorted({*self._matryoshka, self.dimensions}, reverse=True)[:8]))
        raise RequestError(f"dimensions: this model has {allowed}, found {wanted}", param="dimensions")


class _EmbedJob(Job):
    """One request; `cut`: see EmbedTask."""

    def __init__(self, asked: requests.EmbeddingsRequest, rows: Sequence[Row], cut: int | None, served: str) -> None:
        self.rows = rows
        self._asked = asked
        self._cut = cut
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        vectors: Vectors = np.stack(outputs)
        if self._cut is not None:
            vectors = vectors[:, : self._cut]
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        numbers = vectors.tolist() if self._asked.base64 else short_decimals(vectors)
        tokens = sum(row.tokens for row in self.rows)
        return answers.embeddings_answer(self._asked, numbers, tokens, self._served)


_POWERS = np.array([float(f"1e{power}") for power in range(-45, 60)])
_LOG10_2 = 0.30103


def short_decimals(vectors: Vectors) -> list[list[float]]:
    """Python floats that print short and are the same float32: 0.1 where widening gives 0.10000000149011612.

    Each number is rounded to 9, 8 and 7 significant digits, and the shortest that comes back to the same
    float32 is taken; where none does, the number itself is. Cuts an answer's size by a third for some 20 µs
    a row of 384.
    """
    wide = vectors.astype(np.float64)
    decade = np.clip(np.ceil(np.frexp(wide)[1] * _LOG10_2), -45, 39).astype(np.int64)
    short = wide
    with np.errstate(invalid="ignore"):  # NaN and infinity go through as they are, and are refused by `answers`
        for digits in (9, 8, 7):
            scale = _POWERS[digits - decade + 45]
            rounded = np.rint(wide * scale) / scale
            short = np.where(rounded.astype(np.float32) == vectors, rounded, short)
    numbers: list[list[float]] = short.tolist()
    return numbers


def load(checkpoint: Checkpoint) -> EmbedTask:
    """The task of a checkpoint, its weights on the CPU. Raises LoadError."""
    recipe = read_recipe(checkpoint.folder)
    encoder = checkpoint.encoder(recipe.transformer)
    limit = checkpoint.max_tokens(recipe.transformer, recipe.max_seq_length)
    tokeniser = checkpoint.tokeniser(
        recipe.transformer, limit=limit, prompt=recipe.prompt, lower_case=recipe.lower_case
    )
    width = encoder.width * len(recipe.pooling)
    return EmbedTask(encoder, tokeniser, recipe, checkpoint.served, _matryoshka(recipe.transformer, width))


def _matryoshka(transformer: Path, width: int) -> frozenset[int]:
    """Lengths that the model was trained to be cut to, as vLLM reads them from its config."""
    config = read_json(transformer / "config.json")
    if named := config.get("matryoshka_dimensions"):
        return frozenset(map(int, named))
    return frozenset(range(1, width)) if config.get("is_matryoshka") else frozenset()
